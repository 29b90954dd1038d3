//! Calls that concern models: the list, loads and downloads.

use futures_util::StreamExt;
use sluice_proto::v1::{
    ListModelsRequest, LoadModelRequest, ModelRef, PullModelRequest, load_model_response,
    model_ref::By, pull_model_response,
};
use sluice_shared::units;
use tokio::sync::mpsc::Sender;

use super::super::event::Event;
use crate::{connection::DaemonConnection, output::Failure};

/// Puts a model in the present one's place, by its name or path.
pub(super) async fn load(
    daemon: DaemonConnection,
    model: String,
    events: Sender<Event>,
) -> Result<(), Failure> {
    use load_model_response::Kind;

    let call = LoadModelRequest {
        model: model_ref(model),
        ..Default::default()
    };
    let answer = daemon.models().load_model(call).await;
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    while let Some(answer) = stream.next().await {
        // How far it is, the snapshots tell.
        match answer.map_err(|status| daemon.failure(status))?.kind {
            Some(Kind::Notice(text)) => {
                let _ = events.send(Event::Succeeded(text)).await;
            }
            Some(Kind::Model(model)) => {
                let told = format!("{} is loaded", model.name);
                let _ = events.send(Event::Succeeded(told)).await;
            }
            _ => {}
        }
    }
    list(daemon, events).await
}

/// Begins a download, or joins it. How far it is, the list of models tells.
pub(super) async fn pull(
    daemon: DaemonConnection,
    name: String,
    events: Sender<Event>,
) -> Result<(), Failure> {
    use pull_model_response::Kind;

    let call = PullModelRequest {
        model: By::Name(name).into(),
        // The daemon has its own environment; this one is the user's.
        hub_token: std::env::var("HF_TOKEN").unwrap_or_default(),
        ..Default::default()
    };
    let answer = daemon.models().pull_model(call).await;
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    while let Some(answer) = stream.next().await {
        let told = match answer.map_err(|status| daemon.failure(status))?.kind {
            Some(Kind::Plan(plan)) => {
                list(daemon.clone(), events.clone()).await?;
                format!("{}: {} to come", plan.name, units::bytes(plan.total_bytes))
            }
            Some(Kind::Notice(text)) => text,
            Some(Kind::Model(model)) => format!("{} is there", model.name),
            Some(Kind::Progress(_)) | None => continue,
        };
        let _ = events.send(Event::Succeeded(told)).await;
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

/// Asks for the models.
pub(super) async fn list(daemon: DaemonConnection, events: Sender<Event>) -> Result<(), Failure> {
    let answer = daemon.models().list_models(ListModelsRequest {}).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let _ = events.send(Event::Models(answer.into_inner().models)).await;
    Ok(())
}
