//! The daemon's line: requests that come while a model loads, or while the engine's queue has no room for their user. They are
//! listed, and told why they wait and of how many are ahead. Turns go round between users and their connections, as in the
//! engine's queue. Those that waited with the engine when another model took the place of theirs come to this line, too.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sluice_engine::{
    EngineError, ShareKey,
    fair::{FairQueue, Room},
};
use sluice_proto::v1::{self, OperationKind, generation_event::Event};
use tokio::sync::Notify;

use super::{Daemon, ModelInUse, call_terms::CallTerms};
use crate::{
    caller::Caller,
    failure::Failure,
    limits::WAITING_MAX,
    models::ComingModel,
    requests::{RequestDescription, RequestEnd, RequestRecord},
};

/// Makes a request for the model that serves, of a record that stands in line where there is one.
pub(super) type AdmitFn = Box<
    dyn Fn(
            Option<Arc<RequestRecord>>,
        ) -> Pin<Box<dyn Future<Output = Result<Arc<RequestRecord>, Failure>> + Send>>
        + Send
        + Sync,
>;

/// The requests that wait with the daemon, by share.
#[derive(Debug, Default)]
pub(super) struct WaitingLine {
    state: Mutex<LineState>,
}

#[derive(Debug, Default)]
struct LineState {
    /// By id, which grows in the order of arrival: what to tell each of, that it is its turn.
    waiting: FairQueue<Arc<Notify>>,
    /// Whether somebody calls the next, [`call_in_turn`].
    is_called: bool,
}

impl WaitingLine {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Puts a request into the line; how many are ahead of it.
    fn join(&self, id: u64, share: ShareKey) -> Result<usize, Failure> {
        let mut state = self.lock();
        if !state.waiting.has_place(share, WAITING_MAX) {
            return Err(Failure::LineFull { max: WAITING_MAX });
        }
        Ok(state.insert(id, share))
    }

    /// Puts one back that the engine had; how many are ahead of it. It was let in before, and no more than the engine's queue
    /// holds come at once. It gets its old place, since the place follows from the id.
    fn rejoin(&self, id: u64, share: ShareKey) -> usize {
        self.lock().insert(id, share)
    }

    /// Takes a request out of the line. One that was admitted has had a turn of its share.
    fn leave(&self, id: u64, was_admitted: bool) {
        let waiting = &mut self.lock().waiting;
        match was_admitted {
            true => waiting.serve(id),
            false => waiting.remove(id),
        };
    }

    /// The request whose turn is next, among those of shares that find room.
    fn next(&self, room: impl Fn(ShareKey) -> Room) -> Option<u64> {
        self.lock().waiting.next_of(room)
    }

    /// Tells the one whose turn is next; false where nobody waits, so that nobody calls any more.
    fn call(&self, room: impl Fn(ShareKey) -> Room) -> bool {
        let mut state = self.lock();
        if let Some(next) = state.waiting.next_of(room)
            && let Some(turn) = state.waiting.get(next)
        {
            turn.notify_one();
        }
        state.is_called = !state.waiting.is_empty();
        state.is_called
    }

    /// What a request is told by.
    fn turn_of(&self, id: u64) -> Option<Arc<Notify>> {
        self.lock().waiting.get(id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, LineState> {
        // Each change is one step, so a panic leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LineState {
    fn insert(&mut self, id: u64, share: ShareKey) -> usize {
        // Nobody knows yet what it will cost: each counts for one turn.
        self.waiting.insert(share, id, 1, Arc::default());
        self.waiting.ahead(id).unwrap_or(0)
    }
}

/// A request's place in the line, which it leaves however it ends.
struct WaitingPlace {
    daemon: Arc<Daemon>,
    record: Arc<RequestRecord>,
    was_admitted: bool,
    _wanted: ModelInUse,
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.daemon.line.leave(self.record.id(), self.was_admitted);
        self.daemon.changes.tell();
    }
}

/// Admits a request at once where a model serves and there is room; otherwise it gets a place in the line.
pub(super) async fn admit(
    daemon: &Arc<Daemon>,
    terms: CallTerms,
    kind: OperationKind,
    make: AdmitFn,
) -> Result<Arc<RequestRecord>, Failure> {
    let (caller, share) = (terms.caller, terms.caller.share());
    // Before looking for the model, so that it is not unloaded as idle between the look and the submission.
    let wanted = daemon.want();
    let mut coming = daemon.models.coming(&daemon.engine)?;
    // Not past those who wait. One that will not wait itself takes room that none of them could have, or none.
    let is_first = match terms.waits {
        true => daemon.line.len() == 0,
        false => daemon.line.next(|share| room(daemon, share)).is_none(),
    };
    if coming.is_none() && !is_first && !terms.waits {
        let capacity = daemon.engine.queue().capacity;
        return Err(EngineError::QueueFull { capacity }.into());
    }
    if coming.is_none() && is_first {
        match make(None).await {
            // The model was unloaded or replaced after the look above.
            Err(failure) if is_gone(&failure) => coming = next(daemon, failure)?,
            Err(failure) if is_full(&failure) && terms.waits => {}
            Err(failure) => return Err(failure),
            Ok(record) => {
                if let Some(message) = &terms.message {
                    message.admitted();
                }
                tokio::spawn(attend(daemon.clone(), share, record.clone(), make));
                return Ok(record);
            }
        }
    }
    if let Some(message) = &terms.message {
        message.wait_in_line()?;
    }
    stand_in_line(daemon, caller, kind, make, coming, wanted)
}

/// Stays by a request until the engine begins with it. One whose model went before its turn waits for the next.
async fn attend(daemon: Arc<Daemon>, share: ShareKey, record: Arc<RequestRecord>, make: AdmitFn) {
    while record.is_given_back().await {
        let place = WaitingPlace {
            daemon: daemon.clone(),
            record: record.clone(),
            was_admitted: false,
            _wanted: daemon.want(),
        };
        let ahead = daemon.line.rejoin(record.id(), share);
        daemon.requests.expect(&record, ahead);
        tracing::info!(
            request = record.id(),
            ahead,
            "its model went before its turn; it waits for the next"
        );
        record.notice("the model went before this request's turn; another takes it if one comes");
        // A load that began at this very moment is found by `next` later.
        let coming = daemon.models.coming(&daemon.engine).unwrap_or(None);
        wait(place, &make, coming).await;
    }
}

/// Whether a request could not be made because there is no model, or another by now.
fn is_gone(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::ModelLoading { .. }
            | Failure::Engine(EngineError::NoModel | EngineError::ModelReplaced)
    )
}

/// Whether a request could not be made for want of room.
fn is_full(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::PreparingFull { .. } | Failure::Engine(EngineError::QueueFull { .. })
    )
}

/// The load that a request waits for after its model went; `None` if another model serves already.
fn next(daemon: &Daemon, failure: Failure) -> Result<Option<ComingModel>, Failure> {
    let coming = daemon.models.coming(&daemon.engine)?;
    match coming.is_some() || daemon.models.serving().is_ok() {
        true => Ok(coming),
        false => Err(failure),
    }
}

fn stand_in_line(
    daemon: &Arc<Daemon>,
    caller: Caller,
    kind: OperationKind,
    make: AdmitFn,
    coming: Option<ComingModel>,
    wanted: ModelInUse,
) -> Result<Arc<RequestRecord>, Failure> {
    let model = coming.as_ref().map_or("", |coming| &coming.model);
    let facts = RequestDescription::unknown(kind);
    let share = caller.share();
    let record = daemon.requests.create(caller, facts, model);
    let ahead = daemon.line.join(record.id(), share)?;
    // Made before the record is listed: its drop leaves the line, whatever happens from here on.
    let place = WaitingPlace {
        daemon: daemon.clone(),
        record: record.clone(),
        was_admitted: false,
        _wanted: wanted,
    };
    // Those that the engine has come before all who wait here.
    let queue = daemon.engine.queue();
    daemon
        .requests
        .expect(&record, ahead + queue.waiting + queue.running);
    if coming.is_none() {
        record.notice("waiting for room in the queue");
    }
    let (daemon, waiting) = (daemon.clone(), record.clone());
    tokio::spawn(async move {
        wait(place, &make, coming).await;
        attend(daemon, share, waiting, make).await;
    });
    Ok(record)
}

/// Waits for the model and makes the request for it, unless nobody wants that any more.
async fn wait(mut place: WaitingPlace, make: &AdmitFn, coming: Option<ComingModel>) {
    let WaitingPlace { daemon, record, .. } = &place;
    let admitted = tokio::select! {
        biased;
        () = record.unwanted() => return end_unwanted(daemon, record),
        // A model may take longer to load than there is time left.
        () = daemon.draining.cancelled() => Err(Failure::Draining),
        admitted = become_admitted(daemon, record, make, coming) => admitted,
    };
    let was_admitted = admitted.is_ok();
    match admitted {
        // A cancel between submission and the ticket's arrival found no ticket, so it is repeated.
        Ok(()) if record.is_unwanted() => drop(record.cancel()),
        Ok(()) => {}
        Err(failure) => {
            tracing::info!(request = record.id(), reason = %failure, "request failed while it waited");
            let ending = RequestEnd::Failed(failure.into());
            daemon.requests.end(record, None, ending);
        }
    }
    place.was_admitted = was_admitted;
}

async fn become_admitted(
    daemon: &Arc<Daemon>,
    record: &Arc<RequestRecord>,
    make: &AdmitFn,
    mut coming: Option<ComingModel>,
) -> Result<(), Failure> {
    loop {
        if let Some(coming) = coming {
            come(coming, record).await;
        }
        turn(daemon, record.id()).await;
        match make(Some(record.clone())).await {
            // Another model loads, or this one went again: wait for the next.
            Err(failure) if is_gone(&failure) => coming = next(daemon, failure)?,
            Err(failure) if is_full(&failure) => coming = None,
            made => return made.map(drop),
        }
    }
}

/// Waits until it is a request's turn: there is room for its share, and of all of which that is true it is the next.
async fn turn(daemon: &Arc<Daemon>, id: u64) {
    // It stands in line as long as this is waited for.
    let Some(turn) = daemon.line.turn_of(id) else {
        return;
    };
    if !std::mem::replace(&mut daemon.line.lock().is_called, true) {
        tokio::spawn(call_in_turn(daemon.clone()));
    }
    // What it was told earlier may no longer be so.
    while daemon.line.next(|share| room(daemon, share)) != Some(id) {
        turn.notified().await;
    }
}

/// Finds out whose turn it is whenever something changes, for all who wait, as long as anybody does: they would otherwise all
/// look with every pass.
async fn call_in_turn(daemon: Arc<Daemon>) {
    let mut changes = daemon.changes.subscribe();
    while daemon.line.call(|share| room(&daemon, share)) {
        // The sender lives in the daemon, so `changed` cannot fail.
        let _ = changes.changed().await;
    }
}

/// What there is for a share where requests are prepared, and in the engine's queue. The locks of both are taken, so they are
/// never held while the line's is waited for.
fn room(daemon: &Daemon, share: ShareKey) -> Room {
    daemon.engine.room(share).max(daemon.preparing.room(share))
}

/// Waits until a load ends, however it ends, and shows its progress in the record. The reason of a failure comes from the
/// next attempt to make the request.
async fn come(coming: ComingModel, record: &RequestRecord) {
    let ComingModel { model, operation } = coming;
    tracing::info!(request = record.id(), model, "waits for a model");
    record.notice(&format!("waiting for the model {model} to load"));
    let mut statuses = operation.subscribe();
    while !statuses.borrow_and_update().has_ended() {
        let (loaded_bytes, total_bytes) = operation.loaded_bytes();
        record.waits_for(v1::GenerationLoading {
            model: model.clone(),
            loaded_bytes,
            total_bytes,
        });
        // The sender lives in the operation, so `changed` cannot fail.
        if statuses.changed().await.is_err() {
            return;
        }
    }
}

/// Ends a request that was cancelled before the engine knew of it. A generation still gets its last event.
fn end_unwanted(daemon: &Daemon, record: &Arc<RequestRecord>) {
    tracing::info!(request = record.id(), "cancelled while it waited in line");
    let done = (record.kind() == OperationKind::Generate).then(|| {
        Event::Done(v1::GenerationDone {
            request_id: record.id(),
            finish_reason: v1::FinishReason::Cancelled.into(),
            ..Default::default()
        })
    });
    daemon.requests.end(record, done, RequestEnd::Cancelled);
}

#[cfg(test)]
mod tests;
