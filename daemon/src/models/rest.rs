//! Letting a model go and having it back: on demand, or after a time without requests.

use std::sync::Arc;

use sluice_engine::Engine;
use tokio::sync::{oneshot, watch};

use super::{AskedBy, LoadState, ModelName, Models, Request};
use crate::failure::Failure;

/// Why a model goes, and so what becomes of the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Somebody wants its memory: it stays away.
    Asked,
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
        reason: Reason,
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
            if reason == Reason::Idle {
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
                engine.unload(id, reason == Reason::Idle, report);
                went.await.unwrap_or(false)
            }
            // It sleeps, or there is none.
            None => false,
        };
        let before = {
            let mut known = self.lock();
            // One that sleeps already goes on sleeping, if it was not asked to stay away.
            if reason == Reason::Asked || (id.is_some() && !went) {
                known.asleep = None;
            }
            if reason == Reason::Asked {
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
        self.changes.tell();
        // One whose place another has taken is gone as well.
        Ok(name.filter(|_| went || reason == Reason::Asked))
    }

    /// Whether a request now is one that loads the model again, or waits for that.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        let known = self.lock();
        known.is_waking || (known.asleep.is_some() && self.serving_of(&known).is_none())
    }

    /// Has a model that was let go for want of requests loaded again, or joins who does. `None`: there is nothing to
    /// wait for.
    ///
    /// # Errors
    /// When another model is being loaded.
    pub fn wake(
        self: &Arc<Self>,
        engine: &Engine,
    ) -> Result<Option<watch::Receiver<LoadState>>, Failure> {
        let name = {
            let known = self.lock();
            if known.is_waking {
                return Ok(known.states.clone());
            }
            match self.serving_of(&known) {
                Some(_) => None,
                None => known.asleep.clone(),
            }
        };
        let Some(name) = name else { return Ok(None) };
        let model = name.name.clone();
        match self.load(engine, Request::of(name), AskedBy::Request) {
            Ok(states) => {
                tracing::info!(model, "a request wakes the model");
                Ok(Some(states))
            }
            // Another request was quicker.
            Err(Failure::LoadInProgress { .. }) => Ok(self.lock().states.clone()),
            Err(failure) => Err(failure),
        }
    }
}
