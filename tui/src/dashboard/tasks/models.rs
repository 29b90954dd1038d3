//! Calls about models: the list, loads and downloads.

use futures_util::StreamExt;
use sluice_proto::v1::{
    ListModelsRequest, LoadModelRequest, ModelRef, PullModelRequest,
    model_ref::By,
    operation::{Detail, Outcome},
};
use sluice_shared::units;
use tokio::sync::mpsc::Sender;

use super::super::event::Event;
use crate::{connection::DaemonConnection, output::Failure};

/// Loads a model by its name or path, in the place of the present one.
pub(super) async fn load(
    daemon: DaemonConnection,
    model: String,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let call = LoadModelRequest {
        model: model_ref(model),
        ..Default::default()
    };
    let answer = daemon.models().load_model(call).await;
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut notices = 0;
    while let Some(answer) = stream.next().await {
        let answer = answer.map_err(|status| daemon.failure(status))?;
        // Progress comes with the snapshots.
        let Some(operation) = answer.operation else {
            continue;
        };
        let mut told: Vec<_> = operation.notices.iter().skip(notices).cloned().collect();
        notices = operation.notices.len();
        if let Some(Outcome::Load(result)) = operation.outcome {
            told.extend(
                result
                    .model
                    .map(|model| format!("{} is loaded", model.name)),
            );
        }
        for words in told {
            let _ = events.send(Event::Succeeded(words)).await;
        }
    }
    list(daemon, events).await
}

/// Begins a download, or joins it. Progress comes with the snapshots and the list of models.
pub(super) async fn pull(
    daemon: DaemonConnection,
    name: String,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let call = PullModelRequest {
        model: By::Name(name).into(),
        // The user's token: the daemon has another environment, and may run as another user.
        hub_token: std::env::var("HF_TOKEN").unwrap_or_default(),
        ..Default::default()
    };
    let answer = daemon.models().pull_model(call).await;
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let (mut is_planned, mut notices) = (false, 0);
    while let Some(answer) = stream.next().await {
        let answer = answer.map_err(|status| daemon.failure(status))?;
        let Some(operation) = answer.operation else {
            continue;
        };
        let mut told = Vec::new();
        if let (false, Some(Detail::PullPlan(plan))) = (is_planned, &operation.detail) {
            is_planned = true;
            list(daemon.clone(), events.clone()).await?;
            let size = units::bytes(plan.total_bytes);
            told.push(format!("{}: {size} to come", plan.name));
        }
        told.extend(operation.notices.iter().skip(notices).cloned());
        notices = operation.notices.len();
        if let Some(Outcome::Pull(result)) = operation.outcome {
            told.extend(result.model.map(|model| format!("{} is there", model.name)));
        }
        for words in told {
            let _ = events.send(Event::Succeeded(words)).await;
        }
    }
    list(daemon, events).await
}

/// The model of this name, or at this path.
pub(super) fn model_ref(model: String) -> Option<ModelRef> {
    match model.starts_with('/') {
        true => By::Path(model).into(),
        false => By::Name(model).into(),
    }
}

/// Lists the models.
pub(super) async fn list(daemon: DaemonConnection, events: Sender<Event>) -> Result<(), Failure> {
    let answer = daemon.models().list_models(ListModelsRequest {}).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let _ = events.send(Event::Models(answer.into_inner().models)).await;
    Ok(())
}
