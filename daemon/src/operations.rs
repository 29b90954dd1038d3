//! Operations: everything that takes time, as one kind of record. They are listed while they wait and run and for a while
//! after, followed and cancelled by id. The registry does not know what they do.

mod calibration;
pub mod change;
pub(crate) mod command;
pub mod files;
mod operation;
pub(crate) mod optimization;
mod persistence;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard},
};

use sluice_proto::v1;
use sluice_shared::units;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use self::operation::Recorded;

pub use self::operation::{
    CancelFn, Detail, NOTICES_MAX, Operation, OperationDescription, OperationStatus, Outcome,
    PROGRESS_INTERVAL, Unsaved, progress,
};
pub use self::persistence::WriteQueue;
pub use crate::state::ENDED_MAX;
use crate::{
    allocator,
    failure::Failure,
    limits::{CHANGES_MAX, CHANGES_OF_USER_MAX, IMPORTS_MAX, IMPORTS_OF_USER_MAX},
    state::StateStore,
};

/// Ids that are set aside on disk at once, so that no later daemon gives them again: two such writes in the time that it takes to
/// begin as many operations.
const IDS_RESERVED: u64 = 1024;

/// Kinds that a shutdown stops before it ends the streams that tell of them. They can take hours, and what they have finished
/// is kept.
pub const STOPPED_AT_SHUTDOWN: [v1::OperationKind; 8] = [
    v1::OperationKind::Optimize,
    v1::OperationKind::Calibrate,
    v1::OperationKind::Compress,
    v1::OperationKind::Decompress,
    v1::OperationKind::Verify,
    v1::OperationKind::Prune,
    v1::OperationKind::Pull,
    v1::OperationKind::Remember,
];

/// How many operations of some kinds may be unfinished at once: wait, run, or write to disk what they leave there.
struct Limit {
    kinds: &'static [v1::OperationKind],
    max: usize,
    /// How many of them may be one user's.
    max_of_user: usize,
    /// Refuses one more; gets the limit and one that is in the way.
    refusal: fn(usize, &Operation) -> Failure,
}

/// The limits. A load is limited by `Models`, which must name the model in the way, and requests by the engine's queue.
const LIMITS: [Limit; 4] = [
    Limit {
        kinds: &v1::OperationKind::MODEL_FILES,
        // Two would share cores and disk, and each takes memory of its own.
        max: 1,
        max_of_user: 1,
        refusal: |_, other| Failure::OperationInProgress {
            id: other.id(),
            kind: other.kind(),
            path: other.description().input_path.clone(),
        },
    },
    Limit {
        kinds: &[v1::OperationKind::Pull],
        // More would only share the network's bandwidth.
        max: 4,
        max_of_user: 3,
        refusal: |max, _| Failure::TooManyPulls { max },
    },
    Limit {
        kinds: &[v1::OperationKind::Remember],
        // They take turns with the store, and each keeps a source's content on disk.
        max: IMPORTS_MAX,
        max_of_user: IMPORTS_OF_USER_MAX,
        refusal: |max, _| Failure::TooManyImports { max },
    },
    Limit {
        kinds: &v1::OperationKind::CHANGES,
        // A change supersedes the one before, but each leaves settings on disk, and nobody can cancel it.
        max: CHANGES_MAX,
        max_of_user: CHANGES_OF_USER_MAX,
        refusal: |max, _| Failure::TooManyChanges { max },
    },
];

/// Tells watchers of the whole daemon that something changed, but not what: they make a new snapshot.
#[derive(Debug, Clone)]
pub struct ChangeNotifier(watch::Sender<()>);

impl Default for ChangeNotifier {
    fn default() -> Self {
        Self(watch::Sender::new(()))
    }
}

impl ChangeNotifier {
    /// Wakes all subscribers. Several calls before a subscriber looks count as one.
    pub fn tell(&self) {
        self.0.send_replace(());
    }

    /// A receiver that hears of changes from now on.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}

/// The registry of operations: those that wait or run, and the last ones that ended.
#[derive(Debug)]
pub struct Operations {
    known: Mutex<Known>,
    changes: ChangeNotifier,
    /// Keeps what ended, and which ids were given.
    state: Arc<StateStore>,
}

#[derive(Debug, Default)]
struct Known {
    last_id: u64,
    /// The last id that no later daemon gives.
    reserved_id: u64,
    all: BTreeMap<u64, Arc<Operation>>,
    /// Ids of ended operations other than requests, the earliest first.
    ended: VecDeque<u64>,
    /// Set at shutdown: no operation may begin any more.
    is_closed: bool,
}

impl Operations {
    /// An empty registry that nothing outlives.
    #[must_use]
    pub fn new(changes: ChangeNotifier) -> Self {
        Self::after(Arc::default(), changes)
    }

    /// The registry with what earlier daemons did. Writes a file: not for async code.
    #[must_use]
    pub fn after(state: Arc<StateStore>, changes: ChangeNotifier) -> Self {
        let (last_id, earlier) =
            state.read(|state| (state.last_operation_id, state.operations.clone()));
        let mut known = Known {
            last_id,
            reserved_id: last_id + IDS_RESERVED,
            ..Known::default()
        };
        let mut interrupted = Vec::new();
        for picture in earlier {
            let was_active = picture.is_active();
            let operation = Operation::of_earlier_daemon(picture, changes.clone());
            if was_active {
                interrupted.push(operation.to_wire());
            }
            known.ended.push_back(operation.id());
            known.all.insert(operation.id(), Arc::new(operation));
        }
        let reserved_id = known.reserved_id;
        // The thread that writes says in the log what it could not write. Then ids may be given again after a kill.
        let _ = state.save(|state| {
            interrupted
                .into_iter()
                .for_each(|one| state.put_operation(one));
            state.last_operation_id = reserved_id;
        });
        Self {
            known: Mutex::new(known),
            changes,
            state,
        }
    }

    /// Writes which ids were given, so that the next daemon goes on there, and waits for all writes before it: not for async
    /// code.
    pub fn save(&self) {
        let last_id = self.lock().last_id;
        // As above.
        let _ = self.state.save(|state| state.last_operation_id = last_id);
    }

    /// Begins an operation, which is listed from here on and runs. `cancel` stops it; without that, nobody can.
    ///
    /// # Errors
    /// When too many of its kind wait or run, or the daemon is about to end.
    pub fn begin(
        self: &Arc<Self>,
        description: OperationDescription,
        cancel: Option<CancelFn>,
    ) -> Result<RunningOperation, Failure> {
        let operation = {
            // Check and insertion under one lock: two operations, or one and a shutdown, must not pass each other.
            let mut known = self.lock();
            known.check(&description)?;
            let operation = self.create_in(&mut known, description, cancel);
            if !operation.kind().is_request() {
                operation.is_recorded_at(Recorded::default());
            }
            operation.start();
            known.all.insert(operation.id(), operation.clone());
            operation
        };
        self.record(&operation, |recorded| &recorded.begin);
        self.changes.tell();
        let about = operation.description();
        tracing::info!(
            operation = operation.id(),
            kind = %about.kind,
            model = given(&about.model),
            input = given(&about.input_path),
            output = given(&about.output_path),
            "an operation begins"
        );
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
        self.create_in(&mut self.lock(), description, Some(cancel))
    }

    fn create_in(
        &self,
        known: &mut Known,
        description: OperationDescription,
        cancel: Option<CancelFn>,
    ) -> Arc<Operation> {
        known.last_id += 1;
        if known.last_id + IDS_RESERVED / 2 >= known.reserved_id {
            known.reserved_id += IDS_RESERVED;
            let reserved_id = known.reserved_id;
            self.state
                .change(move |state| state.last_operation_id = reserved_id, drop);
        }
        let changes = self.changes.clone();
        Arc::new(Operation::new(known.last_id, description, cancel, changes))
    }

    /// Has the operation's picture written, and tells by this signal that it is on disk, or cannot be.
    fn record(&self, operation: &Operation, signal: fn(&Recorded) -> &CancellationToken) {
        let Some(recorded) = operation.recorded() else {
            return;
        };
        let (picture, signal) = (operation.lasting_picture(), signal(recorded).clone());
        // An operation goes on where the list cannot be written, which the log says.
        self.state.change(
            |state| state.put_operation(picture),
            move |_| signal.cancel(),
        );
    }

    /// Lists an operation that [`Operations::create`] made.
    pub(crate) fn list(&self, operation: &Arc<Operation>) {
        self.lock().all.insert(operation.id(), operation.clone());
    }

    /// Removes an ended operation from the list. Its followers hold the record and still read it to its end.
    pub(crate) fn forget(&self, id: u64) {
        self.lock().all.remove(&id);
    }

    /// Ends an operation. Only the first end counts.
    pub(crate) fn end(&self, operation: &Operation, result: Result<Option<Outcome>, Status>) {
        if operation.end(result) {
            // Ended requests are counted by `Requests`, which bounds the bytes of their events as well.
            if !operation.kind().is_request() {
                self.lock().settle(operation);
                self.record(operation, |recorded| &recorded.end);
            }
            self.changes.tell();
        }
    }

    /// The operation with this id.
    ///
    /// # Errors
    /// When there is none, or it is no longer remembered.
    pub fn find(&self, id: u64) -> Result<Arc<Operation>, Failure> {
        let found = self.lock().all.get(&id).cloned();
        found.ok_or(Failure::UnknownOperation { id })
    }

    /// All listed operations, in the order of their ids.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Operation>> {
        self.lock().all.values().cloned().collect()
    }

    /// The operations that wait or run.
    #[must_use]
    pub fn active(&self) -> Vec<Arc<Operation>> {
        let mut active = self.all();
        active.retain(|operation| operation.is_active());
        active
    }

    /// The operations of the given kinds that wait or run.
    #[must_use]
    pub fn active_of(&self, kinds: &[v1::OperationKind]) -> Vec<Arc<Operation>> {
        let mut active = self.active();
        active.retain(|operation| kinds.contains(&operation.kind()));
        active
    }

    /// Lets no operation begin any more and stops those of [`STOPPED_AT_SHUTDOWN`].
    pub fn close(&self) {
        self.lock().is_closed = true;
        for operation in self.active_of(&STOPPED_AT_SHUTDOWN) {
            // Fails only for kinds that cannot be stopped, of which these are none.
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
        // The subscription comes before the first look, so that no end is missed between the two.
        // The sender lives in `self`, so `changed` cannot fail.
        while !self.active_of(kinds).is_empty() && changes.changed().await.is_ok() {}
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl Known {
    /// Refuses an operation at shutdown, and beyond the limits of its kind.
    fn check(&self, one: &OperationDescription) -> Result<(), Failure> {
        if self.is_closed {
            return Err(Failure::Draining);
        }
        for limit in LIMITS
            .iter()
            .filter(|limit| limit.kinds.contains(&one.kind))
        {
            let is_counted = |other: &&Arc<Operation>| {
                limit.kinds.contains(&other.kind()) && !other.is_finished()
            };
            let counted = || self.all.values().filter(is_counted);
            let user = |one: &OperationDescription| one.caller.map(|caller| caller.user);
            let is_theirs = |other: &&Arc<Operation>| user(other.description()) == user(one);
            if let Some(other) = counted().filter(is_theirs).nth(limit.max_of_user - 1) {
                return Err((limit.refusal)(limit.max_of_user, other));
            }
            if let Some(other) = counted().nth(limit.max - 1) {
                return Err((limit.refusal)(limit.max, other));
            }
        }
        Ok(())
    }

    /// Counts an operation among the ended ones and forgets the earliest beyond the bound. Followers of a forgotten one
    /// still read it to its end.
    fn settle(&mut self, operation: &Operation) {
        self.ended.push_back(operation.id());
        while self.ended.len() > ENDED_MAX {
            // Those that still write to disk are counted against their limit.
            let all = &self.all;
            let is_over = |id: &u64| all.get(id).is_none_or(|operation| operation.is_finished());
            let Some(place) = self.ended.iter().position(is_over) else {
                return;
            };
            let earliest = self.ended.remove(place);
            earliest.map(|earliest| self.all.remove(&earliest));
        }
    }
}

/// A text for the log, which leaves empty ones out.
fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// An operation's handle for the code that does the work. If it is dropped before the end, as by a panic, the operation fails.
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

    /// Ends the operation with its result or its failure, and logs that. A later end is ignored.
    pub fn finish(&self, result: Result<Outcome, Failure>) {
        // What the work freed would otherwise stay with the process as free memory of the allocator.
        allocator::give_back();
        let (id, kind) = (self.id(), self.kind());
        let model = given(&self.description().model);
        let took = units::duration_ms(self.elapsed_ms());
        match &result {
            Ok(_) => tracing::info!(operation = id, %kind, model, took, "an operation is done"),
            Err(failure) => {
                let reason = failure.to_string();
                tracing::info!(operation = id, %kind, model, took, reason, "an operation ends");
            }
        }
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
            self.finish(Err(Failure::WorkLost));
        }
    }
}

#[cfg(test)]
mod tests;
