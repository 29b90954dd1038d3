//! `sluice models`, and how a model is put into words.

use serde_json::json;
use sluice_proto::v1::{ListModelsRequest, Model, ModelState};
use sluice_shared::units;

use crate::{
    connection::Daemon,
    json,
    output::{Failure, Out},
    text::sanitise_line,
};

/// Lists the models that the daemon knows.
pub(super) async fn run(daemon: &Daemon, json: bool, out: &mut Out) -> Result<(), Failure> {
    let answer = daemon.models().list_models(ListModelsRequest {}).await;
    let models = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner()
        .models;
    if json {
        let models: Vec<_> = models.iter().map(json::model).collect();
        return out.line(&json!({"models": models}).to_string());
    }
    if models.is_empty() {
        return out.line("no models");
    }
    for model in &models {
        out.line(&describe(model))?;
    }
    Ok(())
}

/// A model in one line.
pub(crate) fn describe(model: &Model) -> String {
    let mut line = format!("{} ({})", model.name, json::model_state(model.state()));
    if let Some(shape) = &model.shape {
        line += &format!(
            ": {}, {} parameters, {}, {} layers of width {}, context {}",
            shape.family,
            units::count(shape.parameters),
            shape.formats.join(" + "),
            shape.layers,
            shape.width,
            units::count(shape.context_length.into()),
        );
        if !shape.has_tokenizer {
            line += ", no tokenizer";
        }
    }
    if model.state() == ModelState::Loading
        && let Some(progress) = &model.progress
    {
        line += &format!(
            ", {} of {} read",
            units::bytes(progress.loaded_bytes),
            units::bytes(progress.total_bytes)
        );
    }
    if model.is_demonstration {
        line += ", demonstration model";
    }
    if !model.path.is_empty() {
        line += &format!(", from {}", model.path);
    }
    if !model.error.is_empty() {
        line += &format!(", error: {}", model.error);
    }
    sanitise_line(&line)
}
