//! Requests as objects: listed, watched and cancelled by id while they wait and run, and for
//! a while after.

mod record;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use sluice_engine::{Engine, runtime::RequestTicket};
use sluice_proto::v1::{self, generation_event::Event};

use self::record::RequestHandle;
pub use self::record::{NOTICES_MAX, RecordReader, RequestDescription, RequestEnd, RequestRecord};
use crate::operations::{ChangeNotifier, OperationDescription, Operations};

/// Requests that are remembered after their end.
pub const ENDED_MAX: usize = 64;
/// Bytes that they may hold together, as the wire counts.
pub const ENDED_BYTES_MAX: usize = 16 << 20;

/// Figures since the daemon started.
#[derive(Debug, Default)]
pub struct RequestTotals {
    done: AtomicU64,
    cancelled: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    passes: AtomicU64,
    tokens_committed: AtomicU64,
}

impl RequestTotals {
    /// A request was not admitted.
    pub fn refused(&self) {
        add(&self.refused, 1);
    }

    /// A pass ran and committed so many tokens.
    pub fn pass(&self, committed: u64) {
        add(&self.passes, 1);
        add(&self.tokens_committed, committed);
    }

    fn ended(&self, ending: &RequestEnd) {
        match ending {
            RequestEnd::Done(_) => add(&self.done, 1),
            RequestEnd::Cancelled => add(&self.cancelled, 1),
            RequestEnd::Failed(_) => add(&self.failed, 1),
        }
    }

    /// As the wire has them.
    #[must_use]
    pub fn to_wire(&self) -> v1::RequestTotals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        v1::RequestTotals {
            done_requests: read(&self.done),
            cancelled_requests: read(&self.cancelled),
            failed_requests: read(&self.failed),
            refused_requests: read(&self.refused),
            passes: read(&self.passes),
            committed_tokens: read(&self.tokens_committed),
        }
    }
}

/// Relaxed: figures for people; no other memory is ordered by them.
fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// All requests that are known.
pub struct Requests {
    known: Mutex<KnownRequests>,
    operations: Arc<Operations>,
    /// Asked to stop them.
    engine: Weak<Engine>,
    changes: ChangeNotifier,
    totals: RequestTotals,
}

#[derive(Default)]
struct KnownRequests {
    records: BTreeMap<u64, Arc<RequestRecord>>,
    /// Those that ended, the earliest first, with the bytes that each was counted with.
    ended: VecDeque<(u64, usize)>,
    ended_bytes: usize,
}

impl Requests {
    /// None yet.
    #[must_use]
    pub fn new(operations: Arc<Operations>, engine: Weak<Engine>, changes: ChangeNotifier) -> Self {
        Self {
            known: Mutex::default(),
            operations,
            engine,
            changes,
            totals: RequestTotals::default(),
        }
    }

    /// A request with an id, not listed before [`Requests::admit`].
    #[must_use]
    pub fn create(&self, facts: RequestDescription, model: &str) -> Arc<RequestRecord> {
        let handle = Arc::new(RequestHandle::new(self.engine.clone()));
        let stops = handle.clone();
        let description = OperationDescription {
            kind: facts.kind,
            ..Default::default()
        };
        let cancel = Box::new(move || stops.stop());
        let operation = self.operations.create(description, cancel);
        let record = RequestRecord::new(operation, handle);
        record.describe(facts, model);
        Arc::new(record)
    }

    /// It waits for a model, behind so many: listed, though the engine has not heard of it.
    pub fn expect(&self, record: &Arc<RequestRecord>, ahead: usize) {
        record.queued(ahead);
        self.operations.list(record.operation());
        self.lock().records.insert(record.id(), record.clone());
        self.changes.tell();
    }

    /// The engine took it; it may have ended already.
    pub fn admit(&self, record: &Arc<RequestRecord>, ticket: RequestTicket) {
        record.admitted(ticket);
        self.operations.list(record.operation());
        self.lock().records.insert(record.id(), record.clone());
        self.settle(record);
        self.changes.tell();
    }

    /// Something about it changed that watchers of the daemon should see.
    pub fn touched(&self) {
        self.changes.tell();
    }

    /// It ended, with its last event if it has one; nothing follows. The first end counts.
    pub fn end(&self, record: &Arc<RequestRecord>, last: Option<Event>, ending: RequestEnd) {
        if record.has_ended() {
            return;
        }
        // Counted first: who reads the result finds it in the totals.
        self.totals.ended(&ending);
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

    /// The request of this id.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<Arc<RequestRecord>> {
        self.lock().records.get(&id).cloned()
    }

    /// All, in order of admission.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<RequestRecord>> {
        self.lock().records.values().cloned().collect()
    }

    /// Those that wait or run.
    #[must_use]
    pub fn active(&self) -> Vec<Arc<RequestRecord>> {
        let mut active = self.all();
        active.retain(|record| !record.has_ended());
        active
    }

    /// Returns once no request waits or runs.
    pub async fn idle(&self) {
        let mut changes = self.changes.subscribe();
        // The sender lives in `self`, so `changed` can't fail.
        while !self.active().is_empty() && changes.changed().await.is_ok() {}
    }

    /// Figures since the start.
    #[must_use]
    pub fn totals(&self) -> &RequestTotals {
        &self.totals
    }

    fn lock(&self) -> MutexGuard<'_, KnownRequests> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl KnownRequests {
    /// Counts a listed request among the ended ones once it is, and forgets the earliest of
    /// those beyond the bounds, which are returned. Who reads a forgotten one still reads it to its end.
    fn settle(&mut self, record: &Arc<RequestRecord>) -> Vec<u64> {
        let id = record.id();
        let mut forgotten = Vec::new();
        let is_settled = self.ended.iter().any(|(ended, _)| *ended == id);
        if !record.has_ended() || !self.records.contains_key(&id) || is_settled {
            return forgotten;
        }
        // A quick engine ends it before it is told how many are ahead: what it holds may still change.
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
