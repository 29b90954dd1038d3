//! Operations: everything that takes time, as one kind of record. They are listed while they wait and run and for a while
//! after, followed and cancelled by id. What they do, the registry doesn't know.

pub mod change;
pub mod files;
mod operation;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard},
};

use sluice_proto::v1;
use tokio::sync::watch;
use tonic::Status;

pub use self::operation::{
    CancelFn, Detail, NOTICES_MAX, Operation, OperationDescription, OperationStatus, Outcome,
    progress,
};
use crate::failure::Failure;

/// Operations that are remembered after their end. Requests are counted by themselves (`requests`), so that many of them don't
/// push out a load.
pub const ENDED_MAX: usize = 64;

/// Tells whoever watches the whole daemon that something changed; not what.
#[derive(Debug, Clone)]
pub struct ChangeNotifier(watch::Sender<()>);

impl Default for ChangeNotifier {
    fn default() -> Self {
        Self(watch::Sender::new(()))
    }
}

impl ChangeNotifier {
    /// Something changed.
    pub fn tell(&self) {
        self.0.send_replace(());
    }

    /// Changes from now on.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}

/// All operations that are known.
#[derive(Debug)]
pub struct Operations {
    known: Mutex<Known>,
    changes: ChangeNotifier,
}

#[derive(Debug, Default)]
struct Known {
    last_id: u64,
    all: BTreeMap<u64, Arc<Operation>>,
    /// Those that ended and are no requests, the earliest first.
    ended: VecDeque<u64>,
    /// Nothing begins any more.
    is_closed: bool,
}

impl Operations {
    /// None yet.
    #[must_use]
    pub fn new(changes: ChangeNotifier) -> Self {
        Self {
            known: Mutex::default(),
            changes,
        }
    }

    /// Begins an operation, which is listed from here on and runs. `cancel` stops it; without that, nobody can.
    ///
    /// # Errors
    /// When one of its kind is in the way, or the daemon is about to end.
    pub fn begin(
        self: &Arc<Self>,
        description: OperationDescription,
        cancel: Option<CancelFn>,
    ) -> Result<RunningOperation, Failure> {
        let operation = {
            let mut known = self.lock();
            known.check(description.kind)?;
            let operation = known.create(description, cancel, self.changes.clone());
            operation.start();
            known.all.insert(operation.id(), operation.clone());
            operation
        };
        self.changes.tell();
        Ok(RunningOperation {
            operation,
            operations: self.clone(),
        })
    }

    /// An operation with an id that waits, not listed before [`Operations::list`].
    pub(crate) fn create(
        &self,
        description: OperationDescription,
        cancel: CancelFn,
    ) -> Arc<Operation> {
        let changes = self.changes.clone();
        self.lock().create(description, Some(cancel), changes)
    }

    /// Lists one that was created.
    pub(crate) fn list(&self, operation: &Arc<Operation>) {
        self.lock().all.insert(operation.id(), operation.clone());
    }

    /// Lists one no longer that ended. Who follows it still follows it to its end.
    pub(crate) fn forget(&self, id: u64) {
        self.lock().all.remove(&id);
    }

    /// It ended. The first end counts.
    pub(crate) fn end(&self, operation: &Operation, result: Result<Option<Outcome>, Status>) {
        if operation.end(result) {
            // How many requests are remembered, whoever keeps their events says.
            if !operation.kind().is_request() {
                self.lock().settle(operation);
            }
            self.changes.tell();
        }
    }

    /// The operation of an id.
    ///
    /// # Errors
    /// When there is none, or no longer.
    pub fn find(&self, id: u64) -> Result<Arc<Operation>, Failure> {
        let found = self.lock().all.get(&id).cloned();
        found.ok_or(Failure::UnknownOperation { id })
    }

    /// Stops an operation; whether it waited or ran.
    ///
    /// # Errors
    /// When there is none, or no longer, or it can't be stopped.
    pub fn cancel(&self, id: u64) -> Result<bool, Failure> {
        self.find(id)?.cancel()
    }

    /// All, in the order of their ids.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Operation>> {
        self.lock().all.values().cloned().collect()
    }

    /// Those that wait or run.
    #[must_use]
    pub fn active(&self) -> Vec<Arc<Operation>> {
        let mut active = self.all();
        active.retain(|operation| operation.is_active());
        active
    }

    /// Those of some kinds that wait or run.
    #[must_use]
    pub fn active_of(&self, kinds: &[v1::OperationKind]) -> Vec<Arc<Operation>> {
        let mut active = self.active();
        active.retain(|operation| kinds.contains(&operation.kind()));
        active
    }

    /// Nothing begins any more, and work on files is stopped: nobody waits for hours of it, and what is done of it is kept.
    pub fn close(&self) {
        self.lock().is_closed = true;
        for operation in self.active_of(&v1::OperationKind::FILES) {
            // One that ends in this very moment needs no stop.
            let _ = operation.cancel();
        }
    }

    /// Whether the daemon is about to end.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Returns once no operation of these kinds waits or runs.
    pub async fn idle(&self, kinds: &[v1::OperationKind]) {
        let mut changes = self.changes.subscribe();
        // The sender lives in `self`, so `changed` can't fail.
        while !self.active_of(kinds).is_empty() && changes.changed().await.is_ok() {}
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl Known {
    /// What is in the way of another operation.
    fn check(&self, kind: v1::OperationKind) -> Result<(), Failure> {
        if self.is_closed {
            return Err(Failure::Draining);
        }
        // Each takes all of the cores that work on files should have.
        if !kind.is_on_files() {
            return Ok(());
        }
        let is_in_the_way =
            |other: &&Arc<Operation>| other.kind().is_on_files() && other.is_active();
        match self.all.values().find(is_in_the_way) {
            None => Ok(()),
            Some(other) => Err(Failure::OperationInProgress {
                id: other.id(),
                kind: other.kind(),
                path: other.description().input_path.clone(),
            }),
        }
    }

    fn create(
        &mut self,
        description: OperationDescription,
        cancel: Option<CancelFn>,
        changes: ChangeNotifier,
    ) -> Arc<Operation> {
        self.last_id += 1;
        Arc::new(Operation::new(self.last_id, description, cancel, changes))
    }

    /// Forgets the earliest of those that ended beyond the bound. Who follows a forgotten one still follows it to its end.
    fn settle(&mut self, operation: &Operation) {
        self.ended.push_back(operation.id());
        while self.ended.len() > ENDED_MAX {
            let earliest = self.ended.pop_front();
            earliest.map(|earliest| self.all.remove(&earliest));
        }
    }
}

/// Held by whoever does the work. Dropped before its end, the operation has failed.
#[derive(Debug)]
pub struct RunningOperation {
    operation: Arc<Operation>,
    operations: Arc<Operations>,
}

impl RunningOperation {
    /// The record, which outlives the work.
    #[must_use]
    pub fn operation(&self) -> Arc<Operation> {
        self.operation.clone()
    }

    /// It ended: with what came of it, or why nothing did.
    pub fn finish(&self, result: Result<Outcome, Failure>) {
        let result = result.map(Some).map_err(Status::from);
        self.operations.end(&self.operation, result);
    }
}

impl Deref for RunningOperation {
    type Target = Operation;

    fn deref(&self) -> &Operation {
        &self.operation
    }
}

impl Drop for RunningOperation {
    fn drop(&mut self) {
        if self.is_active() {
            self.finish(Err(Failure::EngineLost));
        }
    }
}

#[cfg(test)]
mod tests;
