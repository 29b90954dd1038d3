//! Requests of a job, one after another, each of which waits in the queue as anybody's does.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use crate::{
    error::EngineError,
    event::{Event, Outcome},
    fair::ShareKey,
    request::Work,
    runtime::{Engine, RequestTicket},
};

/// How often it is looked whether to stop, and whether a full queue has a place.
const LOOK: Duration = Duration::from_millis(25);

/// Why a job cannot go on.
#[derive(Debug)]
pub(crate) enum TurnError {
    /// A request was refused, or failed.
    Engine(EngineError),
    /// It is to stop.
    Cancelled,
}

impl From<EngineError> for TurnError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// Whoever submits them.
pub(crate) struct Turns<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) share: ShareKey,
    pub(crate) stop: &'a AtomicBool,
}

impl Turns<'_> {
    /// # Errors
    /// When the job is to stop.
    pub(crate) fn check(&self) -> Result<(), TurnError> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(TurnError::Cancelled),
            false => Ok(()),
        }
    }

    /// Submits a request as soon as the queue has a place. `watch` sees its events, on the engine's thread.
    pub(crate) fn submit(
        &self,
        work: Work,
        watch: impl FnMut(&Event) + Send + Clone + 'static,
    ) -> Result<Turn<'_>, TurnError> {
        loop {
            self.check()?;
            let (send, ended) = mpsc::channel();
            let mut watch = watch.clone();
            let sink = Box::new(move |event| {
                watch(&event);
                if let Event::Finished(result) = event {
                    drop(send.send(result));
                }
            });
            match self.engine.submit(self.share, work.clone(), sink) {
                Ok(ticket) => {
                    return Ok(Turn {
                        turns: self,
                        ticket,
                        ended,
                    });
                }
                Err(EngineError::QueueFull { .. }) => thread::sleep(LOOK),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A request under way; dropped, it is cancelled.
pub(crate) struct Turn<'a> {
    turns: &'a Turns<'a>,
    ticket: RequestTicket,
    ended: Receiver<Result<Outcome, EngineError>>,
}

impl Turn<'_> {
    /// What the request sends next; `None` once it has dropped the sender.
    ///
    /// # Errors
    /// When the job is to stop.
    pub(crate) fn next<T>(&self, items: &Receiver<T>) -> Result<Option<T>, TurnError> {
        loop {
            self.turns.check()?;
            match items.recv_timeout(LOOK) {
                Ok(item) => return Ok(Some(item)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// When the request failed, or the job is to stop.
    pub(crate) fn finish(self) -> Result<Outcome, TurnError> {
        match self.next(&self.ended)? {
            Some(result) => Ok(result?),
            None => Err(EngineError::Stopped.into()),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Does nothing when it has ended.
        self.turns.engine.cancel(self.ticket);
    }
}
