//! Letting a model go and having it back: on demand, or after a time without requests.

use std::sync::Arc;

use sluice_engine::{Engine, PlanOptions};
use tokio::sync::oneshot;

use super::{ComingModel, LoadRequest, ModelName, Models, Requester};
use crate::{allocator, failure::Failure};

/// Why a model goes, and so what becomes of the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnloadReason {
    /// Somebody wants its memory: it stays away.
    Requested,
    /// Nobody has wanted it for a while: whoever wants it next gets it back.
    Idle,
}

impl Models {
    /// Lets the present model go, after the request that runs; which one it was. For want of requests it goes only if
    /// there are none.
    ///
    /// # Errors
    /// While one is being loaded.
    pub async fn unload(
        &self,
        engine: &Engine,
        reason: UnloadReason,
    ) -> Result<Option<ModelName>, Failure> {
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
                // Known before it goes, so that whoever misses it knows that it can be had back.
                known.asleep.clone_from(&name);
            }
            (id, name)
        };
        let went = match id {
            Some(id) => {
                let (send, went) = oneshot::channel();
                let report = Box::new(move |goes| {
                    // Whoever asked may be gone.
                    let _ = send.send(goes);
                });
                engine.unload(id, reason == UnloadReason::Idle, report);
                went.await.unwrap_or(false)
            }
            // It sleeps, or there is none.
            None => false,
        };
        let before = {
            let mut known = self.lock();
            // One that sleeps already goes on sleeping, if it was not asked to stay away.
            if reason == UnloadReason::Requested || (id.is_some() && !went) {
                known.asleep = None;
            }
            if reason == UnloadReason::Requested {
                // What could not be loaded once is no reason why there is no model now.
                known.failed = None;
            }
            // Its tokenizer, too, unless another was loaded meanwhile.
            match self.serving_of(&known) {
                Some(_) => None,
                None => known.serving.take(),
            }
        };
        // Freed outside the lock.
        drop(before);
        allocator::give_back();
        self.changes.tell();
        // One whose place another has taken is gone as well.
        Ok(name.filter(|_| went || reason == UnloadReason::Requested))
    }

    /// Whether a request now is one that loads the model again, or waits for that.
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
        // As it was when it went, whatever was said since of later loads.
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
            // Another request was quicker.
            Err(Failure::LoadInProgress { .. }) => Ok(self.lock().coming()),
            Err(failure) => Err(failure),
        }
    }
}
