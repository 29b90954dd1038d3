//! Blocking calls, for programs that do one thing after another. Not for reports and sinks, which run on the engine's
//! own thread and would wait for themselves.

use std::sync::{Arc, mpsc};

use sluice_checkpoint::Source;

use super::{Engine, LoadEvent, LoadedModel, PlanSettings};
use crate::{
    error::EngineError,
    event::{Event, Outcome, PassReport},
    fair::ShareKey,
    request::{Generate, Work},
};

impl Engine {
    /// [`Engine::load`], and waits for the end.
    ///
    /// # Errors
    /// When the load fails, or the engine stops.
    pub fn load_now(
        &self,
        source: Source,
        settings: PlanSettings,
    ) -> Result<Arc<LoadedModel>, EngineError> {
        let (send, finished) = mpsc::channel();
        let report = Box::new(move |event| {
            if let LoadEvent::Finished(result) = event {
                drop(send.send(result));
            }
        });
        self.load(source, settings, Arc::default(), report);
        finished.recv().map_err(|_| EngineError::Stopped)?
    }

    /// [`Engine::submit`], and waits for the end.
    ///
    /// # Errors
    /// When the request is refused or fails, or the engine stops.
    pub fn run(&self, work: Work) -> Result<Outcome, EngineError> {
        let (send, finished) = mpsc::channel();
        let sink = Box::new(move |event| {
            if let Event::Finished(result) = event {
                drop(send.send(result));
            }
        });
        self.submit(ShareKey::default(), work, sink)?;
        finished.recv().map_err(|_| EngineError::Stopped)?
    }

    /// Runs a request until it has had `count` passes, then cancels it; returns the passes' reports.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn passes(&self, request: Generate, count: usize) -> Result<Vec<PassReport>, EngineError> {
        let (send, events) = mpsc::channel();
        let sink = Box::new(move |event| drop(send.send(event)));
        let ticket = self.submit(ShareKey::default(), Work::Generate(request), sink)?;
        let mut reports = Vec::new();
        for event in events {
            match event {
                Event::Pass(report) => {
                    reports.push(*report);
                    if reports.len() == count {
                        self.cancel(ticket);
                    }
                }
                // A cancelled request ends with an outcome and no error, so the reports get to the caller.
                Event::Finished(result) => return result.map(|_| reports),
                _ => {}
            }
        }
        Err(EngineError::Stopped)
    }
}
