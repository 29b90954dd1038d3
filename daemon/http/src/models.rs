//! The models that the daemon knows, for both APIs.

use sluice_proto::v1;
use sluice_shared::names;

use crate::{failure::Failure, services::Services};

/// A full picture of the daemon.
///
/// # Errors
/// When the caller may not see it.
pub(crate) async fn snapshot(services: &Services) -> Result<v1::Snapshot, Failure> {
    let request = v1::GetSnapshotRequest {};
    let answer = services.telemetry().get_snapshot(request).await?;
    let snapshot = answer.into_inner().snapshot;
    snapshot.ok_or_else(|| Failure::unexpected("a snapshot shows nothing"))
}

/// The models that a request can name: those in memory, on their way there, and asleep; and those on disk, where requests
/// have models loaded.
///
/// # Errors
/// When the caller may not see them.
pub(crate) async fn all(services: &Services) -> Result<Vec<v1::Model>, Failure> {
    let request = v1::ListModelsRequest {};
    let answer = services.models().list_models(request).await?.into_inner();
    let loads = answer.loads_on_request;
    let can_answer = |model: &v1::Model| match model.state() {
        v1::ModelState::Ready | v1::ModelState::Loading | v1::ModelState::Asleep => true,
        v1::ModelState::Available => loads,
        _ => false,
    };
    Ok(answer.models.into_iter().filter(can_answer).collect())
}

/// The model of this name.
///
/// # Errors
/// When there is none.
pub(crate) async fn find(services: &Services, name: &str) -> Result<v1::Model, Failure> {
    let mut all = all(services).await?.into_iter();
    all.find(|model| is_named(model, name))
        .ok_or_else(|| Failure::unknown_model(name))
}

/// Whether people call the model so: by its name, or a short one.
fn is_named(model: &v1::Model, name: &str) -> bool {
    let name = untagged(name);
    name == model.name || names::full(name) == Some(model.name.as_str())
}

/// The name without what Ollama's clients put behind one that has no tag.
pub(crate) fn untagged(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}
