//! Requests as objects: listed, watched and cancelled by id while they wait and run, and for
//! a while after.

mod record;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use sluice_engine::runtime::RequestTicket;
use sluice_proto::v1;

pub use self::record::{
    NOTICES_MAX, RecordEvent, RecordReader, RequestDescription, RequestEnd, RequestRecord,
};
use crate::operations::ChangeNotifier;

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

    fn ended(&self, state: v1::RequestState) {
        match state {
            v1::RequestState::Cancelled => add(&self.cancelled, 1),
            v1::RequestState::Failed => add(&self.failed, 1),
            _ => add(&self.done, 1),
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
    last_id: AtomicU64,
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
    pub fn new(changes: ChangeNotifier) -> Self {
        Self {
            known: Mutex::default(),
            last_id: AtomicU64::new(0),
            changes,
            totals: RequestTotals::default(),
        }
    }

    /// A request with an id, not listed before [`Requests::admit`].
    #[must_use]
    pub fn create(&self, facts: RequestDescription) -> Arc<RequestRecord> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        Arc::new(RequestRecord::new(id, facts))
    }

    /// It waits for a model, behind so many: listed, though the engine has not heard of it.
    pub fn expect(&self, record: &Arc<RequestRecord>, ahead: usize) {
        record.queued(ahead);
        self.lock().records.insert(record.id(), record.clone());
        self.changes.tell();
    }

    /// The engine took it; it may have ended already.
    pub fn admit(&self, record: &Arc<RequestRecord>, ticket: RequestTicket) {
        record.admitted(ticket);
        let mut known = self.lock();
        known.records.insert(record.id(), record.clone());
        known.settle(record);
        drop(known);
        self.changes.tell();
    }

    /// Something about it changed that watchers of the daemon should see.
    pub fn touched(&self) {
        self.changes.tell();
    }

    /// It ended, with its result if it has one; nothing follows. The first end counts.
    pub fn end(
        &self,
        record: &Arc<RequestRecord>,
        result: Option<RecordEvent>,
        ending: RequestEnd,
    ) {
        if record.has_ended() {
            return;
        }
        // Counted first: who reads the result finds it in the totals.
        self.totals.ended(ending.state);
        record.end(result, ending);
        self.lock().settle(record);
        self.changes.tell();
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
    /// those beyond the bounds. Who reads a forgotten one still reads it to its end.
    fn settle(&mut self, record: &Arc<RequestRecord>) {
        let id = record.id();
        let is_settled = self.ended.iter().any(|(ended, _)| *ended == id);
        if !record.has_ended() || !self.records.contains_key(&id) || is_settled {
            return;
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
        }
    }
}

#[cfg(test)]
mod tests;
