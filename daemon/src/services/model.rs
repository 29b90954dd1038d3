//! `ModelService`: what is loaded and what could be, loading, downloading, removing.

use std::sync::Arc;

use sluice_proto::{
    model::{Loading, ModelRef},
    v1::{self, model_service_server::ModelService},
};
use tonic::{Request, Response, Status};

use super::{Daemon, library, operation, requests::ResponseStream};
use crate::{
    caller::Caller,
    failure::Failure,
    models::{self, Requester},
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl ModelService for Service {
    type LoadModelStream = ResponseStream<v1::LoadModelResponse>;
    type PullModelStream = ResponseStream<v1::PullModelResponse>;

    async fn list_models(
        &self,
        request: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        Ok(Response::new(self.0.list(Caller::of(&request)).await?))
    }

    async fn load_model(
        &self,
        request: Request<v1::LoadModelRequest>,
    ) -> Result<Response<Self::LoadModelStream>, Status> {
        self.0.check_open()?;
        let caller = Caller::of(&request);
        let asked = Loading::try_from(request.into_inner()).map_err(Failure::from)?;
        let request = models::LoadRequest {
            name: self.0.resolve(caller, asked.model).await?,
            requested: asked.options,
            pin: asked.pin,
        };
        if asked.make_default {
            self.0.library.check_default()?;
        }
        let record = library::LoadRecord {
            daemon: self.0.clone(),
            name: request.name.clone(),
            change: request.requested,
            make_default: asked.make_default,
        };
        let load = || self.0.models.load(request, Requester::Client);
        let load = self.0.writes.begin(load, |load| {
            library::is_loaded(load).then_some(move || record.write())
        })?;
        Ok(Response::new(operation::follow(load, &self.0.closing)))
    }

    async fn unload_model(
        &self,
        request: Request<v1::UnloadModelRequest>,
    ) -> Result<Response<v1::UnloadModelResponse>, Status> {
        let caller = Caller::of(&request);
        let model = request.into_inner().model;
        Ok(Response::new(self.0.unload(caller, model).await?))
    }

    async fn pull_model(
        &self,
        request: Request<v1::PullModelRequest>,
    ) -> Result<Response<Self::PullModelStream>, Status> {
        self.0.check_open()?;
        Ok(Response::new(
            self.0.pull(Caller::of(&request), request.into_inner())?,
        ))
    }

    async fn remove_model(
        &self,
        request: Request<v1::RemoveModelRequest>,
    ) -> Result<Response<v1::RemoveModelResponse>, Status> {
        let caller = Caller::of(&request);
        let v1::RemoveModelRequest {
            model,
            force,
            converted_weights_only,
        } = request.into_inner();
        let name = ModelRef::try_from(model).and_then(ModelRef::name);
        let name = name.map_err(Failure::from)?;
        let removed = match converted_weights_only {
            true => self.0.remove_converted_weights(name).await?,
            false => self.0.remove(caller, name, force).await?,
        };
        Ok(Response::new(removed))
    }

    async fn inspect_model(
        &self,
        request: Request<v1::InspectModelRequest>,
    ) -> Result<Response<v1::InspectModelResponse>, Status> {
        let caller = Caller::of(&request);
        let model = ModelRef::try_from(request.into_inner().model);
        let model = model.and_then(ModelRef::with_weights);
        let model = model.map_err(Failure::from)?;
        Ok(Response::new(self.0.inspect(caller, model).await?))
    }
}
