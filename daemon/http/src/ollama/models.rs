//! What there is to call: `GET /api/tags`, `GET /api/ps`, `POST /api/show`, `GET /api/version`.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use sluice_proto::v1;

use crate::{
    body::HeldBody,
    failure::Failure,
    fields::{self, fields},
    models,
    services::Services,
    streaming::{self, Answer},
};

fields! {
    /// A request of Ollama's `show`.
    pub(crate) struct ShowRequest {
        honoured model: String = "a name of `GET /api/tags`",
        honoured name: String = "the same by its older name",
        accepted "verbose" = "there is no more",
    }
}

#[derive(Debug, Serialize)]
struct ModelList {
    models: Vec<Model>,
}

/// A model as lists have it.
#[derive(Debug, Serialize)]
struct Model {
    name: String,
    model: String,
    size: u64,
    /// The hub's commit, where there is one.
    digest: String,
    details: Details,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_vram: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Details {
    parent_model: &'static str,
    format: String,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
}

impl From<v1::Model> for Model {
    fn from(model: v1::Model) -> Self {
        Self {
            details: details(&model),
            size: model.disk_bytes,
            digest: model.commit,
            size_vram: None,
            model: model.name.clone(),
            name: model.name,
        }
    }
}

fn details(model: &v1::Model) -> Details {
    let shape = model.shape.as_ref();
    let family = shape.map_or(&model.family, |shape| &shape.family).clone();
    let parameters = shape.map(|shape| shape.parameters).or(model.parameters);
    let format = shape.and_then(|shape| shape.formats.first());
    Details {
        parent_model: "",
        format: match model.file_format() {
            v1::FileFormat::Unspecified => String::new(),
            format => format.to_string(),
        },
        families: vec![family.clone()],
        family,
        parameter_size: parameters.map_or_else(String::new, parameter_size),
        quantization_level: format
            .map_or_else(String::new, |format| format.to_string().to_uppercase()),
    }
}

/// As Ollama writes it, such as `8.0B`.
fn parameter_size(parameters: u64) -> String {
    match parameters {
        many if many >= 1_000_000_000 => format!("{:.1}B", many as f64 / 1e9),
        some => format!("{:.2}M", some as f64 / 1e6),
    }
}

/// The models that requests can name.
///
/// # Errors
/// When the caller may not see them.
pub(crate) async fn tags(services: &Services) -> Result<Answer, Failure> {
    let models = models::all(services).await?;
    let list = ModelList {
        models: models.into_iter().map(Model::from).collect(),
    };
    Ok(streaming::json(StatusCode::OK, &list))
}

/// The models in memory.
///
/// # Errors
/// When the caller may not see them.
pub(crate) async fn ps(services: &Services) -> Result<Answer, Failure> {
    let snapshot = models::snapshot(services).await?;
    let models = snapshot.loaded_models.into_iter().filter_map(|loaded| {
        let model = loaded.model?;
        Some(Model {
            size_vram: Some(loaded.device_bytes),
            size: model.shape.as_ref().map_or(0, |shape| shape.weight_bytes),
            ..Model::from(model)
        })
    });
    let list = ModelList {
        models: models.collect(),
    };
    Ok(streaming::json(StatusCode::OK, &list))
}

/// What a model is.
///
/// # Errors
/// When there is none of this name, or the caller may not see it.
pub(crate) async fn show(services: &Services, body: HeldBody) -> Result<Answer, Failure> {
    let request: ShowRequest = fields::read(body.bytes())?;
    drop(body);
    let name = request.model.or(request.name);
    let name = name.ok_or_else(|| Failure::field("model", "is missing"))?;
    let model = models::find(services, &name).await?;
    let shape = model.shape.clone().unwrap_or_default();
    let architecture = details(&model).family;
    let key = |name: &str| format!("{architecture}.{name}");
    let facts: BTreeMap<String, Value> = [
        ("general.architecture".to_owned(), json!(architecture)),
        (
            "general.parameter_count".to_owned(),
            json!(shape.parameters),
        ),
        (key("context_length"), json!(shape.context_length)),
        (key("embedding_length"), json!(shape.hidden_size)),
        (key("block_count"), json!(shape.layers)),
        (key("attention.head_count"), json!(shape.attention_heads)),
        (key("attention.head_count_kv"), json!(shape.kv_heads)),
    ]
    .into();
    let mut capabilities = vec!["completion"];
    if shape.takes_tools {
        capabilities.push("tools");
    }
    if shape.kind() == v1::ModelKind::MaskedDiffusion {
        capabilities.push("insert");
    }
    let shown = json!({
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": details(&model),
        "model_info": facts,
        "capabilities": capabilities,
    });
    Ok(streaming::json(StatusCode::OK, &shown))
}

/// The daemon's version.
///
/// # Errors
/// When the caller may not see it.
pub(crate) async fn version(services: &Services) -> Result<Answer, Failure> {
    let daemon = models::snapshot(services).await?.daemon.unwrap_or_default();
    let version = json!({ "version": daemon.version });
    Ok(streaming::json(StatusCode::OK, &version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_written_as_ollama_does() {
        assert_eq!(parameter_size(8_030_261_248), "8.0B");
        assert_eq!(parameter_size(134_515_008), "134.52M");
    }
}
