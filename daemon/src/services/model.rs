//! `ModelService`: what is loaded, and loading another.

use std::{path::Path, pin::Pin, sync::Arc};

use futures_util::{
    StreamExt,
    stream::{self, Stream},
};
use sluice_proto::v1::{self, load_model_response::Kind, model_service_server::ModelService};
use tonic::{Request, Response, Status};

use super::Daemon;
use crate::{
    failure::Failure,
    models::{AskedBy, LoadState, ModelName},
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl ModelService for Service {
    type LoadModelStream =
        Pin<Box<dyn Stream<Item = Result<v1::LoadModelResponse, Status>> + Send>>;

    async fn list_models(
        &self,
        _: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        Ok(Response::new(v1::ListModelsResponse {
            models: self.0.models.list(),
        }))
    }

    async fn load_model(
        &self,
        request: Request<v1::LoadModelRequest>,
    ) -> Result<Response<Self::LoadModelStream>, Status> {
        self.0.check_open()?;
        let name = model_name(request.into_inner().path)?;
        tracing::info!(model = name.name, "loading a model for a client");
        let states = self.0.models.load(&self.0.engine, name, AskedBy::Client)?;
        // Loading goes on when the caller goes away; a watcher of the daemon sees its end.
        let answers = stream::unfold(Some(states), |states| async {
            let mut states = states?;
            states.changed().await.ok()?;
            let state = states.borrow_and_update().clone();
            Some(match state {
                LoadState::Running(progress) => (Ok(Kind::Progress(progress)), Some(states)),
                LoadState::Ready(model) => (Ok(Kind::Model(*model)), None),
                LoadState::Failed(status) => (Err(status), None),
            })
        });
        let answers = answers
            .map(|kind| kind.map(|kind| v1::LoadModelResponse { kind: Some(kind) }))
            .take_until(self.0.closing.clone().cancelled_owned());
        Ok(Response::new(answers.boxed()))
    }
}

fn model_name(path: String) -> Result<ModelName, Failure> {
    if path.is_empty() {
        return Ok(ModelName::embedded());
    }
    if !Path::new(&path).is_absolute() {
        return Err(Failure::PathNotAbsolute { path });
    }
    Ok(ModelName::at(Path::new(&path)))
}
