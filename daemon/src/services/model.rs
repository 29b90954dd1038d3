//! `ModelService`: what is loaded, and loading another.

use std::{path::Path, pin::Pin, sync::Arc};

use futures_util::{
    StreamExt,
    stream::{self, Stream},
};
use sluice_proto::{
    model::Loading,
    v1::{self, load_model_response::Kind, model_service_server::ModelService},
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::Daemon;
use crate::{
    failure::Failure,
    models::{self, AskedBy, LoadStage, LoadState, ModelName},
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
        let asked = Loading::try_from(request.into_inner()).map_err(Failure::from)?;
        let request = models::Request {
            name: model_name(asked.path)?,
            level: asked.level,
            budget_bytes: asked.budget_bytes,
        };
        tracing::info!(model = request.name.name, "loading a model for a client");
        let states = self
            .0
            .models
            .load(&self.0.engine, request, AskedBy::Client)?;
        // Loading goes on when the caller goes away; a watcher of the daemon sees its end.
        let answers = stream::unfold(Some(Told::new(states)), |told| async {
            let mut told = told?;
            told.states.changed().await.ok()?;
            let (answers, ended) = told.news();
            Some((stream::iter(answers), (!ended).then_some(told)))
        });
        let answers = answers
            .flatten()
            .map(|kind| kind.map(|kind| v1::LoadModelResponse { kind: Some(kind) }))
            .take_until(self.0.closing.clone().cancelled_owned());
        Ok(Response::new(answers.boxed()))
    }

    async fn cancel_load(
        &self,
        _: Request<v1::CancelLoadRequest>,
    ) -> Result<Response<v1::CancelLoadResponse>, Status> {
        let was_loading = self.0.models.cancel_load(&self.0.engine);
        tracing::info!(was_loading, "a client cancels the load");
        Ok(Response::new(v1::CancelLoadResponse { was_loading }))
    }
}

/// A load, and what its caller has heard of it.
struct Told {
    states: watch::Receiver<LoadState>,
    plan: bool,
    notices: usize,
}

impl Told {
    fn new(states: watch::Receiver<LoadState>) -> Self {
        Self {
            states,
            plan: false,
            notices: 0,
        }
    }

    /// What the caller has not heard, and whether that is all there will be.
    fn news(&mut self) -> (Vec<Result<Kind, Status>>, bool) {
        let LoadState {
            plan,
            notices,
            stage,
        } = self.states.borrow_and_update().clone();
        let mut answers = Vec::new();
        if let Some(plan) = plan.filter(|_| !self.plan) {
            self.plan = true;
            answers.push(Ok(Kind::Plan(v1::Plan::clone(&plan))));
        }
        let told = std::mem::replace(&mut self.notices, notices.len());
        let notices = notices.into_iter().skip(told);
        answers.extend(notices.map(|text| Ok(Kind::Notice(text))));
        let (answer, ended) = match stage {
            LoadStage::Converting(conversion) => (Ok(Kind::Conversion(conversion)), false),
            LoadStage::Reading(progress) => (Ok(Kind::Progress(progress)), false),
            LoadStage::Ready(model) => (Ok(Kind::Model(*model)), true),
            LoadStage::Failed(status) => (Err(status), true),
        };
        answers.push(answer);
        (answers, ended)
    }
}

/// The model that a path on the wire means.
pub(super) fn model_name(path: String) -> Result<ModelName, Failure> {
    if path.is_empty() {
        return Ok(ModelName::embedded());
    }
    if !Path::new(&path).is_absolute() {
        return Err(Failure::PathNotAbsolute { path });
    }
    Ok(ModelName::at(Path::new(&path)))
}
