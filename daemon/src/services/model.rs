//! `ModelService`: what is loaded and what could be, loading, downloading, removing.

use std::sync::Arc;

use sluice_proto::{
    model::{Loading, ModelRef},
    v1::{self, load_model_response::Kind, model_service_server::ModelService},
};
use tonic::{Request, Response, Status};

use super::{
    Daemon,
    follow::{FollowUpdate, follow},
    library,
    persistence::PendingWrite,
    requests::ResponseStream,
};
use crate::{
    failure::Failure,
    models::{self, LoadStage, LoadState, Requester},
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl ModelService for Service {
    type LoadModelStream = ResponseStream<v1::LoadModelResponse>;
    type PullModelStream = ResponseStream<v1::PullModelResponse>;

    async fn list_models(
        &self,
        _: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        let daemon = self.0.clone();
        let list = tokio::task::spawn_blocking(move || daemon.list()).await;
        Ok(Response::new(list.map_err(Failure::from)?))
    }

    async fn load_model(
        &self,
        request: Request<v1::LoadModelRequest>,
    ) -> Result<Response<Self::LoadModelStream>, Status> {
        self.0.check_open()?;
        let asked = Loading::try_from(request.into_inner()).map_err(Failure::from)?;
        let request = models::LoadRequest {
            name: self.0.resolve(asked.model).await?,
            requested: asked.options,
        };
        tracing::info!(model = request.name.name, "loading a model for a client");
        if asked.make_default {
            self.0.library.check_default()?;
        }
        let (name, change) = (request.name.clone(), request.requested);
        let states = self
            .0
            .models
            .load(&self.0.engine, request, Requester::Client)?;
        let record = library::LoadRecord {
            daemon: self.0.clone(),
            name,
            change,
            make_default: asked.make_default,
        };
        let recorded = (self.0.recording).then(record.once_loaded(states.clone()));
        let mut told = LoadWatcher {
            plan: false,
            notices: 0,
            recorded,
        };
        let answers = follow(states, &self.0.closing, move |state| told.news(state));
        Ok(Response::new(answers))
    }

    async fn cancel_load(
        &self,
        _: Request<v1::CancelLoadRequest>,
    ) -> Result<Response<v1::CancelLoadResponse>, Status> {
        let was_loading = self.0.models.cancel_load(&self.0.engine);
        tracing::info!(was_loading, "a client cancels the load");
        Ok(Response::new(v1::CancelLoadResponse { was_loading }))
    }

    async fn unload_model(
        &self,
        _: Request<v1::UnloadModelRequest>,
    ) -> Result<Response<v1::UnloadModelResponse>, Status> {
        Ok(Response::new(self.0.unload().await?))
    }

    async fn pull_model(
        &self,
        request: Request<v1::PullModelRequest>,
    ) -> Result<Response<Self::PullModelStream>, Status> {
        self.0.check_open()?;
        Ok(Response::new(self.0.pull(request.into_inner())?))
    }

    async fn cancel_pull(
        &self,
        request: Request<v1::CancelPullRequest>,
    ) -> Result<Response<v1::CancelPullResponse>, Status> {
        let was_pulling = self.0.pulls.cancel(&request.into_inner().name);
        tracing::info!(was_pulling, "a client cancels a download");
        Ok(Response::new(v1::CancelPullResponse { was_pulling }))
    }

    async fn remove_model(
        &self,
        request: Request<v1::RemoveModelRequest>,
    ) -> Result<Response<v1::RemoveModelResponse>, Status> {
        let v1::RemoveModelRequest {
            model,
            force,
            converted_weights_only,
        } = request.into_inner();
        let name = ModelRef::try_from(model).and_then(ModelRef::name);
        let name = name.map_err(Failure::from)?;
        let removed = match converted_weights_only {
            true => self.0.remove_converted_weights(name).await?,
            false => self.0.remove(name, force).await?,
        };
        Ok(Response::new(removed))
    }

    async fn inspect_model(
        &self,
        request: Request<v1::InspectModelRequest>,
    ) -> Result<Response<v1::InspectModelResponse>, Status> {
        let model = ModelRef::try_from(request.into_inner().model);
        let model = model.and_then(ModelRef::with_weights);
        let model = model.map_err(Failure::from)?;
        Ok(Response::new(self.0.inspect(model).await?))
    }
}

/// What the caller of a load has heard of it.
struct LoadWatcher {
    plan: bool,
    notices: usize,
    recorded: PendingWrite,
}

impl LoadWatcher {
    fn news(&mut self, state: LoadState) -> FollowUpdate<v1::LoadModelResponse> {
        let LoadState {
            plan,
            notices,
            stage,
        } = state;
        let mut answers = Vec::new();
        if let Some(plan) = plan.filter(|_| !self.plan) {
            self.plan = true;
            answers.push(Ok(Kind::Plan(v1::Plan::clone(&plan))));
        }
        let told = std::mem::replace(&mut self.notices, notices.len());
        let notices = notices.into_iter().skip(told);
        answers.extend(notices.map(|text| Ok(Kind::Notice(text))));
        let (answer, end) = match stage {
            LoadStage::Converting(conversion) => (Ok(Kind::Conversion(conversion)), None),
            LoadStage::Reading(progress) => (Ok(Kind::Progress(progress)), None),
            LoadStage::Ready(model) => (Ok(Kind::Model(*model)), Some(self.recorded.clone())),
            LoadStage::Failed(status) => (Err(status), Some(PendingWrite::nothing())),
        };
        answers.push(answer);
        let answers = answers.into_iter();
        FollowUpdate {
            answers: answers
                .map(|kind| kind.map(|kind| v1::LoadModelResponse { kind: Some(kind) }))
                .collect(),
            end,
        }
    }
}
