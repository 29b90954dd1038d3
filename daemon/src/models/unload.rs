//! Unloading a model on demand or as idle, and loading an idle one again for a request.

use std::sync::Arc;

use sluice_engine::{Engine, PlanOptions};
use tokio::sync::oneshot;

use super::{ComingModel, LoadRequest, ModelName, Models, Requester};
use crate::{allocator, failure::Failure};

/// Why a model is unloaded, which decides what the next request meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnloadReason {
    /// A client wants its memory back: requests are refused afterwards.
    Requested,
    /// No request came for a while: the next one loads it again.
    Idle,
}

impl Models {
    /// Unloads the present model after the running request, and returns its name. As idle it is unloaded only if no request
    /// waits or runs. `None` if there was no model or it stays.
    ///
    /// # Errors
    /// While one is being loaded.
    pub async fn unload(
        &self,
        engine: &Engine,
        reason: UnloadReason,
    ) -> Result<Option<ModelName>, Failure> {
        // One at a time with the engine, and until it has answered, even if the caller leaves: those who leave earlier are
        // forgotten, and the engine's queue gets no longer.
        let turn = self.unloading.clone().lock_owned().await;
        let (id, name) = {
            let mut known = self.lock();
            if let Some((other, _)) = &known.loading {
                let model = other.name.clone();
                return Err(Failure::LoadInProgress { model });
            }
            let serving = self.serving_of(&known);
            let id = serving.map(|serving| serving.loaded.id);
            let name = serving
                .map(|serving| serving.name.clone())
                .or_else(|| known.asleep.clone());
            if reason == UnloadReason::Idle {
                // Set before the unload: a request that comes in between finds the model asleep, not gone.
                known.asleep.clone_from(&name);
            }
            (id, name)
        };
        let went = match id {
            Some(id) => {
                let (send, went) = oneshot::channel();
                let report = Box::new(move |goes| {
                    drop(turn);
                    // Fails if the caller is gone, which changes nothing.
                    let _ = send.send(goes);
                });
                engine.unload(id, reason == UnloadReason::Idle, report);
                // Not under the lock: the engine gets to this after the running request.
                went.await.unwrap_or(false)
            }
            // The model sleeps, or there is none.
            None => false,
        };
        let before = {
            let mut known = self.lock();
            // After a request to unload nothing may wake it; a refused idle unload leaves it awake.
            if reason == UnloadReason::Requested || (id.is_some() && !went) {
                known.asleep = None;
            }
            if reason == UnloadReason::Requested {
                // From here on the unload is why no model serves, not an earlier failed load.
                known.failed = None;
            }
            // The record holds the tokenizer. It stays if another model was loaded meanwhile.
            match self.serving_of(&known) {
                Some(_) => None,
                None => known.serving.take(),
            }
        };
        // Freed outside the lock, for which calls wait.
        drop(before);
        allocator::give_back();
        self.changes.tell();
        // A model that another one replaced meanwhile is gone as well.
        Ok(name.filter(|_| went || reason == UnloadReason::Requested))
    }

    /// Whether a request would load the idle model again, or wait for that load.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        let known = self.lock();
        known.is_waking || (known.asleep.is_some() && self.serving_of(&known).is_none())
    }

    /// What a request waits for while no model serves: the load that is under way, or that of a model that was let go for
    /// want of requests, which this begins. `None`: there is nothing to wait for.
    ///
    /// # Errors
    /// When another load was begun in this very moment.
    pub fn coming(self: &Arc<Self>, engine: &Engine) -> Result<Option<ComingModel>, Failure> {
        let asleep = {
            let known = self.lock();
            if self.serving_of(&known).is_some() {
                return Ok(None);
            }
            if let Some(coming) = known.coming() {
                return Ok(Some(coming));
            }
            known.asleep.clone()
        };
        let Some(name) = asleep else { return Ok(None) };
        let model = name.name.clone();
        // With the settings that it had when it was unloaded, not those for later loads.
        let was = engine.settings();
        let asked = PlanOptions {
            level: Some(was.level),
            budget: Some(was.budget),
            ..PlanOptions::default()
        };
        match self.load(
            engine,
            LoadRequest {
                name,
                requested: asked,
            },
            Requester::Request,
        ) {
            Ok(operation) => {
                tracing::info!(model, "a request wakes the model");
                Ok(Some(ComingModel { model, operation }))
            }
            // The lock was released above, and another request began the load first.
            Err(Failure::LoadInProgress { .. }) => Ok(self.lock().coming()),
            Err(failure) => Err(failure),
        }
    }
}
