//! Unloading a model on demand or as idle.

use tokio::sync::oneshot;

use super::{ModelName, Models, ServingModel};
use crate::failure::Failure;

/// Why a model is unloaded, which decides what the next request meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnloadReason {
    /// A client wants its memory back. Requests that wait for the model by its name are refused; one that comes later may have it
    /// loaded again.
    Requested,
    /// No request came for a while: the next one loads it again.
    Idle,
}

impl Models {
    /// Unloads a model, or the present one, after the running request, and returns its name. As idle it is unloaded only if no
    /// request waits or runs. `None` if there was no model or it stays.
    ///
    /// # Errors
    /// While it is being loaded, or another that may take its place.
    pub async fn unload(
        &self,
        model: Option<&ModelName>,
        reason: UnloadReason,
    ) -> Result<Option<ModelName>, Failure> {
        // One at a time with an engine, and until it has answered, even if the caller leaves: those who leave earlier are
        // forgotten, and the engine's queue gets no longer.
        let turn = self.unloading.clone().lock_owned().await;
        let (serving, name, fell_asleep, wanted) = {
            let mut known = self.lock();
            let shown = || self.shown_of(&known).map(|shown| shown.name.clone());
            let meant = model.cloned().or_else(|| known.present.clone());
            let meant = meant.or_else(shown);
            let serving = meant.as_ref().and_then(|name| known.find(name)).cloned();
            if let Some(loading) = &known.loading {
                let is_meant = meant
                    .as_ref()
                    .is_none_or(|name| name.is_same(&loading.name));
                if is_meant || serving.is_none() || self.settings.loaded_models() == 1 {
                    let model = loading.name.name.clone();
                    return Err(Failure::LoadInProgress { model });
                }
            }
            let asleep = meant.as_ref().and_then(|name| known.sleeping(name));
            let name = serving
                .as_ref()
                .map(|serving| serving.name.clone())
                .or_else(|| asleep.map(|asleep| asleep.name.clone()));
            let mut fell_asleep = false;
            if let (UnloadReason::Idle, Some(serving)) = (reason, &serving)
                && let Some(engine) = serving.engine.upgrade()
            {
                // Set before the unload: a request that comes in between finds the model asleep, not gone.
                fell_asleep = known.put_to_sleep(serving, engine.settings());
            }
            let mut wanted = None;
            if let (UnloadReason::Requested, Some(meant)) = (reason, &meant) {
                // Set before, as well: those whom the engine gives back learn by it that they wait in vain.
                self.uses.unload(meant);
                wanted = known.wanted.remove(meant);
            }
            (serving, name, fell_asleep, wanted)
        };
        if let Some(wanted) = wanted {
            wanted.end(Err("it was unloaded meanwhile".to_owned()));
        }
        let went = match &serving {
            Some(serving) => self.unload_now(serving, reason, turn).await,
            // The model sleeps, or there is none.
            None => false,
        };
        {
            let mut known = self.lock();
            // After a request to unload nothing may wake it; a refused idle unload leaves it awake.
            match &name {
                Some(name) if reason == UnloadReason::Requested => known.wake_up(name),
                Some(name) if fell_asleep && !went => known.stays_awake(name),
                _ => {}
            }
            if reason == UnloadReason::Requested {
                // From here on the unload is why no model serves, not an earlier failed load.
                known.failed = None;
                let present = known.present.take();
                known.present = present.filter(|present| known.has(present));
                if known.present.is_none() {
                    // Of the others the one that was used last.
                    known.present = self.shown_of(&known).map(|shown| shown.name.clone());
                }
            }
        }
        self.forget_gone();
        self.changes.tell();
        if went {
            self.reclaim_memory();
        }
        // A model that another one replaced meanwhile is gone as well.
        Ok(name.filter(|_| went || reason == UnloadReason::Requested))
    }

    /// Whether it went.
    async fn unload_now(
        &self,
        serving: &ServingModel,
        reason: UnloadReason,
        turn: tokio::sync::OwnedMutexGuard<()>,
    ) -> bool {
        let Some(engine) = serving.engine.upgrade() else {
            return false;
        };
        let (send, went) = oneshot::channel();
        let report = Box::new(move |goes| {
            drop(turn);
            // Fails if the caller is gone, which changes nothing.
            let _ = send.send(goes);
        });
        engine.unload(serving.loaded.id, reason == UnloadReason::Idle, report);
        if reason == UnloadReason::Requested && engine.queue().running > 0 {
            let model = &serving.name.name;
            tracing::info!(model, "unloading once the running requests have ended");
        }
        // Not under the lock: the engine gets to this after the running request.
        went.await.unwrap_or(false)
    }

    /// Lets the loaded models have what others have left, unless some are to be loaded. Whoever ends a load asks for this again.
    pub(super) fn reclaim_memory(&self) {
        let known = self.lock();
        if known.loading.is_some() || !known.wanted.is_empty() {
            return;
        }
        let engines: Vec<_> = (known.held())
            .filter_map(|model| model.engine.upgrade())
            .collect();
        drop(known);
        for engine in engines {
            engine.reclaim_memory();
        }
    }
}
