//! Requests for a model that was let go: it is loaded again, and they wait, with word of how far that is.

use std::{future::Future, sync::Arc};

use futures_util::{
    StreamExt, TryStreamExt,
    future::ready,
    stream::{self, Stream},
};
use sluice_engine::EngineError;
use sluice_proto::v1::{self, generation_event::Kind};
use tokio::sync::watch;
use tonic::Status;

use super::{Daemon, deadline::Deadline, requests::Answers};
use crate::{
    failure::Failure,
    models::{LoadStage, LoadState},
    registry::Record,
};

impl Daemon {
    /// Admits a request, with the model loaded again before it where that was let go, be it in this very moment. `waking`:
    /// how that goes, where it was begun for this request.
    pub(super) async fn admit_awake<F>(
        &self,
        waking: Option<watch::Receiver<LoadState>>,
        admit: impl Fn() -> F,
    ) -> Result<Arc<Record>, Failure>
    where
        F: Future<Output = Result<Arc<Record>, Failure>>,
    {
        let _wanted = self.want();
        let waking = match waking {
            Some(states) => Some(states),
            None => self.models.wake(&self.engine)?,
        };
        let has_come = come(waking).await;
        match admit().await {
            // One try for each request: what failed for it, or was stopped, the next one may begin again.
            Err(Failure::Engine(EngineError::NoModel | EngineError::ModelReplaced))
                if has_come && self.models.is_asleep() =>
            {
                come(self.models.wake(&self.engine)?).await;
                admit().await
            }
            admitted => admitted,
        }
    }
}

/// Waits for a model that is loaded again, at once where there is nothing to wait for; false when it does not come. Why,
/// whoever asks for the model hears.
async fn come(waking: Option<watch::Receiver<LoadState>>) -> bool {
    let Some(mut states) = waking else {
        return true;
    };
    let is_over =
        |state: &LoadState| matches!(state.stage, LoadStage::Ready(_) | LoadStage::Failed(_));
    let ended = states.wait_for(is_over).await;
    ended.is_ok_and(|state| matches!(state.stage, LoadStage::Ready(_)))
}

/// First how the load goes, then what the request itself answers.
pub(super) fn answers<F>(
    daemon: &Arc<Daemon>,
    states: watch::Receiver<LoadState>,
    deadline: Option<Deadline>,
    request: F,
) -> Answers<v1::GenerateResponse>
where
    F: Future<Output = Result<Answers<v1::GenerateResponse>, Status>> + Send + 'static,
{
    let model = daemon.models.present().map(|model| model.name);
    let loading = progress(states, model.unwrap_or_default())
        .map(Ok)
        .take_until(daemon.closing.clone().cancelled_owned());
    let expired = Deadline::passed(deadline);
    let request = stream::once(request).try_flatten();
    loading.take_until(expired).chain(request).boxed()
}

/// The load's pictures, the latest first, until it is over.
fn progress(
    states: watch::Receiver<LoadState>,
    model: String,
) -> impl Stream<Item = v1::GenerateResponse> {
    stream::unfold(Some(states), |states| async {
        let mut states = states?;
        let stage = states.borrow_and_update().stage.clone();
        let progress = match stage {
            LoadStage::Ready(_) | LoadStage::Failed(_) => return None,
            LoadStage::Reading(progress) => Some(progress),
            LoadStage::Converting(_) => None,
        };
        let is_over = states.changed().await.is_err();
        Some((progress, (!is_over).then_some(states)))
    })
    .filter_map(ready)
    .map(move |progress| v1::GenerateResponse {
        event: Some(v1::GenerationEvent {
            kind: Some(Kind::Loading(v1::Loading {
                model: model.clone(),
                loaded_bytes: progress.loaded_bytes,
                total_bytes: progress.total_bytes,
            })),
        }),
    })
}
