//! The records of requests, found by id while they wait and run, and for a while after.

mod record;
mod totals;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use sluice_engine::{Engine, runtime::RequestTicket};
use sluice_proto::v1::generation_event::Event;

use self::record::RequestHandle;
pub use self::{
    record::{RecordReader, RequestDescription, RequestEnd, RequestRecord},
    totals::RequestTotals,
};
use crate::caller::Caller;
use crate::operations::{ChangeNotifier, OperationDescription, Operations};

/// Requests that are remembered after their end.
pub const ENDED_MAX: usize = 64;
/// Bytes that the events of ended requests may take together, as encoded messages.
pub const ENDED_BYTES_MAX: usize = 16 << 20;

/// The requests that wait or run, and the last ones that ended.
pub struct Requests {
    known: Mutex<KnownRequests>,
    operations: Arc<Operations>,
    changes: ChangeNotifier,
    totals: RequestTotals,
}

#[derive(Default)]
struct KnownRequests {
    records: BTreeMap<u64, Arc<RequestRecord>>,
    /// Ended requests, the earliest first, each with the bytes it was counted with, so that the sum stays right.
    ended: VecDeque<(u64, usize)>,
    ended_bytes: usize,
}

impl Requests {
    /// Without any request.
    #[must_use]
    pub fn new(operations: Arc<Operations>, changes: ChangeNotifier) -> Self {
        Self {
            known: Mutex::default(),
            operations,
            changes,
            totals: RequestTotals::default(),
        }
    }

    /// A request of this caller with an id, which [`Requests::expect`] or [`Requests::admit`] lists.
    #[must_use]
    pub fn create(
        &self,
        caller: Caller,
        facts: RequestDescription,
        model: &str,
    ) -> Arc<RequestRecord> {
        let handle = Arc::<RequestHandle>::default();
        let stops = handle.clone();
        let description = OperationDescription {
            kind: facts.kind,
            caller: Some(caller),
            ..Default::default()
        };
        let cancel = Box::new(move || stops.stop());
        let operation = self.operations.create(description, cancel);
        let record = RequestRecord::new(operation, handle);
        record.describe(facts, model);
        Arc::new(record)
    }

    /// Lists a request that waits for a model behind `ahead` others and that the engine does not know yet.
    pub fn expect(&self, record: &Arc<RequestRecord>, ahead: usize) {
        record.queued(ahead);
        self.operations.list(record.operation());
        self.lock().records.insert(record.id(), record.clone());
        self.changes.tell();
    }

    /// Lists a request that an engine took. It may have ended already.
    pub fn admit(&self, record: &Arc<RequestRecord>, ticket: RequestTicket, engine: Weak<Engine>) {
        record.admitted(ticket, engine);
        self.operations.list(record.operation());
        self.lock().records.insert(record.id(), record.clone());
        // A quick engine may have ended it before it was listed; `end` could not count it then.
        self.settle(record);
        self.changes.tell();
    }

    /// Tells watchers of the daemon that a request changed.
    pub fn touched(&self) {
        self.changes.tell();
    }

    /// Ends a request, with its last event if it has one. Only the first end counts.
    pub fn end(&self, record: &Arc<RequestRecord>, last: Option<Event>, ending: RequestEnd) {
        if record.has_ended() {
            return;
        }
        // Totals first, then the operation, then the events: whoever reads the last event finds the other two.
        self.totals.ended(&ending, record.operation().age());
        self.operations
            .end(record.operation(), ending.clone().result());
        record.end(last, &ending);
        self.settle(record);
        self.changes.tell();
    }

    fn settle(&self, record: &Arc<RequestRecord>) {
        let forgotten = self.lock().settle(record);
        for id in forgotten {
            self.operations.forget(id);
        }
    }

    /// The request with this id; `None` if it is unknown or forgotten.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<Arc<RequestRecord>> {
        self.lock().records.get(&id).cloned()
    }

    /// All listed requests, in the order of their ids.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<RequestRecord>> {
        self.lock().records.values().cloned().collect()
    }

    /// The requests that wait or run.
    #[must_use]
    pub fn active(&self) -> Vec<Arc<RequestRecord>> {
        let mut active = self.all();
        active.retain(|record| !record.has_ended());
        active
    }

    /// Returns once no request waits or runs.
    pub async fn idle(&self) {
        let mut changes = self.changes.subscribe();
        // The sender lives in `self`, so `changed` cannot fail.
        while !self.active().is_empty() && changes.changed().await.is_ok() {}
    }

    /// Counters since the daemon started.
    #[must_use]
    pub fn totals(&self) -> &RequestTotals {
        &self.totals
    }

    fn lock(&self) -> MutexGuard<'_, KnownRequests> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl KnownRequests {
    /// Counts a listed request among the ended ones if it has ended. Forgets the earliest beyond the bounds and returns their
    /// ids. Readers of a forgotten request still read it to its end.
    fn settle(&mut self, record: &Arc<RequestRecord>) -> Vec<u64> {
        let id = record.id();
        let mut forgotten = Vec::new();
        let is_settled = self.ended.iter().any(|(ended, _)| *ended == id);
        if !record.has_ended() || !self.records.contains_key(&id) || is_settled {
            return forgotten;
        }
        // What it is a step of tells what became of it; there may be thousands.
        if record.is_step() {
            self.records.remove(&id);
            return vec![id];
        }
        // Remembered, since a quick engine ends a request before `admit` sets its first event, which changes its size.
        let bytes = record.bytes();
        self.ended.push_back((id, bytes));
        self.ended_bytes += bytes;
        while self.ended.len() > ENDED_MAX || self.ended_bytes > ENDED_BYTES_MAX {
            let Some((earliest, bytes)) = self.ended.pop_front() else {
                break;
            };
            self.records.remove(&earliest);
            self.ended_bytes -= bytes;
            forgotten.push(earliest);
        }
        forgotten
    }
}

#[cfg(test)]
mod tests;
