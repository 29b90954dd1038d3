//! `GET /v1/models`: the models that requests can name.

use hyper::StatusCode;
use serde::Serialize;
use sluice_proto::v1;

use crate::{
    failure::Failure,
    models,
    services::Services,
    streaming::{self, Answer},
};

#[derive(Debug, Serialize)]
struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

/// A model in OpenAI's shape.
#[derive(Debug, Serialize)]
struct Model {
    id: String,
    object: &'static str,
    /// Nobody knows; the shape has to have one.
    created: u64,
    owned_by: &'static str,
    sluice: ModelFacts,
}

#[derive(Debug, Serialize)]
struct ModelFacts {
    state: String,
    family: Option<String>,
    kind: Option<String>,
    parameters: Option<u64>,
    context_length: Option<u32>,
}

impl From<v1::Model> for Model {
    fn from(model: v1::Model) -> Self {
        let shape = model.shape.as_ref();
        Self {
            object: "model",
            created: 0,
            owned_by: "sluice",
            sluice: ModelFacts {
                state: model.state().to_string(),
                family: shape.map(|shape| shape.family.clone()),
                kind: shape.map(|shape| shape.kind().to_string()),
                parameters: shape.map(|shape| shape.parameters),
                context_length: shape.map(|shape| shape.context_length),
            },
            id: model.name,
        }
    }
}

/// All models.
///
/// # Errors
/// When the caller may not see them.
pub(crate) async fn list(services: &Services) -> Result<Answer, Failure> {
    let list = ModelList {
        object: "list",
        data: (models::all(services).await?.into_iter())
            .map(Model::from)
            .collect(),
    };
    Ok(streaming::json(StatusCode::OK, &list))
}

/// The model of this name.
///
/// # Errors
/// When there is none.
pub(crate) async fn find(services: &Services, name: &str) -> Result<Answer, Failure> {
    let model = models::find(services, name).await?;
    Ok(streaming::json(StatusCode::OK, &Model::from(model)))
}
