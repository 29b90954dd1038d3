//! The daemon's line: requests that come while a model loads, or while its engine's queue has no room for their user. They are
//! listed, and told why they wait and of how many are ahead. Turns go round between users and their connections, as in the
//! engine's queue; each model has turns of its own. Those that waited with an engine when another model took the place of
//! theirs come to this line, too.

use std::{
    collections::HashMap,
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sluice_engine::{
    EngineError, ShareKey,
    fair::{FairQueue, Room},
};
use sluice_proto::v1::{self, OperationKind, generation_event::Event};
use tokio::sync::Notify;

use super::{Daemon, call_terms::CallTerms};
use crate::{
    caller::Caller,
    failure::Failure,
    limits::WAITING_MAX,
    model_name::ModelName,
    models::{MeantModel, ModelInUse, Pending, PendingModel, WantedProgress},
    operations::Operation,
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

/// The requests that wait with the daemon: a line for each model that they are for.
#[derive(Debug, Default)]
pub(super) struct WaitingLine {
    state: Mutex<LineState>,
}

#[derive(Debug, Default)]
struct LineState {
    /// By id, which grows in the order of arrival: the places of all lines together.
    places: FairQueue<()>,
    lines: HashMap<LineKey, ModelLine>,
}

/// Where a line's model lies; `None`: inside the program, or nobody knows which model it will be.
type LineKey = Option<PathBuf>;

/// Those who wait for one model.
#[derive(Debug, Default)]
struct ModelLine {
    /// What to tell each of, that it is its turn.
    waiting: FairQueue<Arc<Notify>>,
    /// Whether somebody calls the next, [`call_in_turn`].
    is_called: bool,
}

impl WaitingLine {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.lock().places.len()
    }

    /// Whether nobody waits for this model.
    fn is_empty(&self, key: &LineKey) -> bool {
        let state = self.lock();
        (state.lines.get(key)).is_none_or(|line| line.waiting.is_empty())
    }

    /// Puts a request into the line; how many are ahead of it.
    fn join(&self, key: &LineKey, id: u64, share: ShareKey) -> Result<usize, Failure> {
        let mut state = self.lock();
        if !state.places.has_place(share, WAITING_MAX) {
            return Err(Failure::LineFull { max: WAITING_MAX });
        }
        Ok(state.insert(key, id, share))
    }

    /// Puts one back that an engine had; how many are ahead of it. It was let in before, and no more than the engines' queues
    /// hold come at once. It gets its old place, since the place follows from the id.
    fn rejoin(&self, key: &LineKey, id: u64, share: ShareKey) -> usize {
        self.lock().insert(key, id, share)
    }

    /// Takes a request out of the line. One that was admitted has had a turn of its share.
    fn leave(&self, key: &LineKey, id: u64, was_admitted: bool) {
        let mut state = self.lock();
        state.places.remove(id);
        let Some(line) = state.lines.get_mut(key) else {
            return;
        };
        match was_admitted {
            true => line.waiting.serve(id),
            false => line.waiting.remove(id),
        };
        // Whoever calls finds nobody, and ends.
        if line.waiting.is_empty() && !line.is_called {
            state.lines.remove(key);
        }
    }

    /// The request whose turn is next, among those of shares that find room.
    fn next(&self, key: &LineKey, room: impl Fn(ShareKey) -> Room) -> Option<u64> {
        self.lock().lines.get(key)?.waiting.next_of(room)
    }

    /// Tells the one whose turn is next; false where nobody waits, so that nobody calls any more.
    fn call(&self, key: &LineKey, room: impl Fn(ShareKey) -> Room) -> bool {
        let mut state = self.lock();
        let Some(line) = state.lines.get_mut(key) else {
            return false;
        };
        if let Some(next) = line.waiting.next_of(room)
            && let Some(turn) = line.waiting.get(next)
        {
            turn.notify_one();
        }
        if line.waiting.is_empty() {
            state.lines.remove(key);
            return false;
        }
        true
    }

    /// What a request is told by, and whether somebody calls those of its line already, as is so from now on.
    fn turn_of(&self, key: &LineKey, id: u64) -> Option<(Arc<Notify>, bool)> {
        let mut state = self.lock();
        let line = state.lines.get_mut(key)?;
        let turn = line.waiting.get(id).cloned()?;
        Some((turn, std::mem::replace(&mut line.is_called, true)))
    }

    fn lock(&self) -> MutexGuard<'_, LineState> {
        // Each change is one step, so a panic leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LineState {
    fn insert(&mut self, key: &LineKey, id: u64, share: ShareKey) -> usize {
        // Nobody knows yet what it will cost: each counts for one turn.
        self.places.insert(share, id, 1, ());
        let line = self.lines.entry(key.clone()).or_default();
        line.waiting.insert(share, id, 1, Arc::default());
        line.waiting.ahead(id).unwrap_or(0)
    }
}

/// A request's place in the line, which it leaves however it ends.
struct WaitingPlace {
    daemon: Arc<Daemon>,
    record: Arc<RequestRecord>,
    key: LineKey,
    was_admitted: bool,
    /// Keeps the model for those in its line; `None` where nobody knows which it will be.
    in_use: Option<ModelInUse>,
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        let id = self.record.id();
        self.daemon.line.leave(&self.key, id, self.was_admitted);
        if let (Some(in_use), true) = (self.in_use.take(), self.was_admitted) {
            in_use.let_in();
        }
        self.daemon.changes.tell();
    }
}

/// A request that is to be made, and for which model.
struct Asked {
    model: MeantModel,
    kind: OperationKind,
    make: AdmitFn,
}

/// Admits a request at once where its model serves and there is room; otherwise it gets a place in the line.
pub(super) async fn admit(
    daemon: &Arc<Daemon>,
    terms: CallTerms,
    (kind, model): (OperationKind, MeantModel),
    make: AdmitFn,
) -> Result<Arc<RequestRecord>, Failure> {
    let (caller, share) = (terms.caller, terms.caller.share());
    // Before looking for the model, so that it is not unloaded between the look and the submission.
    let name = daemon.models.name_of(&model);
    let wanted = name.as_ref().map(|name| daemon.models.uses().begin(name));
    let mut pending = daemon.models.pending(&model, share)?;
    let key = key_of(name.as_ref());
    // Another model waits for the place of this one: those who come now get their turn when it is back.
    let is_closing = name
        .as_ref()
        .is_some_and(|name| daemon.models.uses().is_closing(name));
    // Not past those who wait. One that will not wait itself takes room that none of them could have, or none.
    let is_first = match terms.waits {
        true => daemon.line.is_empty(&key),
        false => daemon.line.next(&key, room_of(daemon, &key)).is_none(),
    };
    if pending.is_none() && !is_first && !terms.waits && !is_closing {
        let capacity = daemon.engine.queue().capacity;
        return Err(EngineError::QueueFull { capacity }.into());
    }
    let asked = Asked { model, kind, make };
    if pending.is_none() && is_first && !is_closing {
        match (asked.make)(None).await {
            // The model was unloaded or replaced after the look above.
            Err(failure) if is_gone(&failure) => {
                check_unloaded(&asked.model, wanted.as_ref())?;
                pending = next(daemon, share, &asked.model, failure)?;
            }
            Err(failure) if is_full(&failure) && terms.waits => {}
            Err(failure) => return Err(failure),
            Ok(record) => {
                if let Some(message) = &terms.message {
                    message.admitted();
                }
                tokio::spawn(attend(daemon.clone(), share, record.clone(), asked));
                return Ok(record);
            }
        }
    }
    if let Some(message) = &terms.message {
        message.wait_in_line()?;
    }
    // Until it stands there, the model is kept by `wanted`.
    let record = stand_in_line(daemon, caller, asked, pending);
    drop(wanted);
    record
}

fn key_of(name: Option<&ModelName>) -> LineKey {
    name.and_then(|name| name.path.clone())
}

/// Stays by a request until an engine begins with it. One whose model went before its turn waits for the next.
async fn attend(daemon: Arc<Daemon>, share: ShareKey, record: Arc<RequestRecord>, asked: Asked) {
    while record.is_given_back().await {
        // Kept until it stands in line, and it tells whether somebody asked for the unload.
        let before = record.take_use();
        if let Err(failure) = check_unloaded(&asked.model, before.as_ref()) {
            tracing::info!(request = record.id(), reason = %failure, "request failed");
            let ending = RequestEnd::Failed(failure.into());
            return daemon.requests.end(&record, None, ending);
        }
        let name = daemon.models.name_of(&asked.model);
        let uses = daemon.models.uses();
        let place = WaitingPlace {
            daemon: daemon.clone(),
            record: record.clone(),
            key: key_of(name.as_ref()),
            was_admitted: false,
            in_use: name.map(|name| uses.stand_in_line(&name)),
        };
        drop(before);
        let ahead = daemon.line.rejoin(&place.key, record.id(), share);
        daemon.requests.expect(&record, ahead);
        tracing::info!(
            request = record.id(),
            ahead,
            "its model went before its turn; it waits for the next"
        );
        record.notice("the model went before this request's turn; another takes it if one comes");
        // A load that began since then is found by `next` later.
        let pending = daemon.models.pending(&asked.model, share).unwrap_or(None);
        wait(place, share, &asked, pending).await;
    }
}

/// Whether a request could not be made because there is no model, or another by now.
fn is_gone(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::ModelLoading { .. }
            | Failure::ModelNotLoaded { .. }
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

/// Whether a request may go on to wait for its model: not where somebody asked meanwhile that it be unloaded.
fn check_unloaded(model: &MeantModel, in_use: Option<&ModelInUse>) -> Result<(), Failure> {
    match model {
        MeantModel::Named(name) if in_use.is_some_and(ModelInUse::was_unloaded) => {
            Err(Failure::ModelUnloaded {
                model: name.name.clone(),
            })
        }
        _ => Ok(()),
    }
}

/// The load that a request waits for after its model went; `None` if another model serves already.
fn next(
    daemon: &Arc<Daemon>,
    share: ShareKey,
    model: &MeantModel,
    failure: Failure,
) -> Result<Option<PendingModel>, Failure> {
    let pending = daemon.models.pending(model, share)?;
    match pending.is_some() || daemon.models.serving_as(model).is_ok() {
        true => Ok(pending),
        false => Err(failure),
    }
}

fn stand_in_line(
    daemon: &Arc<Daemon>,
    caller: Caller,
    asked: Asked,
    pending: Option<PendingModel>,
) -> Result<Arc<RequestRecord>, Failure> {
    let name = daemon.models.name_of(&asked.model);
    let model = pending.as_ref().map_or("", |pending| &pending.name.name);
    let facts = RequestDescription::unknown(asked.kind);
    let share = caller.share();
    let record = daemon.requests.create(caller, facts, model);
    let key = key_of(name.as_ref());
    let ahead = daemon.line.join(&key, record.id(), share)?;
    let uses = daemon.models.uses();
    // Made before the record is listed: its drop leaves the line, whatever happens from here on.
    let place = WaitingPlace {
        daemon: daemon.clone(),
        record: record.clone(),
        key,
        was_admitted: false,
        in_use: name.as_ref().map(|name| uses.stand_in_line(name)),
    };
    // Those that the engine has come before all who wait here.
    let serving = daemon.models.serving_as(&asked.model);
    let engine = serving.ok().and_then(|serving| serving.engine().ok());
    let queued = engine.map_or(0, |engine| {
        let queue = engine.queue();
        queue.waiting + queue.running
    });
    daemon.requests.expect(&record, ahead + queued);
    if pending.is_none() {
        record.notice(match name.is_some_and(|name| uses.is_closing(&name)) {
            true => "waiting for its model's turn: another model needs its place",
            false => "waiting for room in the queue",
        });
    }
    let (daemon, waiting) = (daemon.clone(), record.clone());
    tokio::spawn(async move {
        wait(place, share, &asked, pending).await;
        attend(daemon, share, waiting, asked).await;
    });
    Ok(record)
}

/// Waits for the model and makes the request for it, unless nobody wants that any more.
async fn wait(
    mut place: WaitingPlace,
    share: ShareKey,
    asked: &Asked,
    pending: Option<PendingModel>,
) {
    let WaitingPlace { daemon, record, .. } = &place;
    let admitted = tokio::select! {
        biased;
        () = record.unwanted() => return end_unwanted(daemon, record),
        // A model may take longer to load than there is time left.
        () = daemon.draining.cancelled() => Err(Failure::Draining),
        admitted = become_admitted(&place, share, asked, pending) => admitted,
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
    place: &WaitingPlace,
    share: ShareKey,
    asked: &Asked,
    mut pending: Option<PendingModel>,
) -> Result<(), Failure> {
    let WaitingPlace {
        daemon,
        record,
        key,
        in_use,
        ..
    } = place;
    loop {
        if let Some(pending) = pending {
            let loaded = wait_for_load(pending, record, &asked.model).await;
            check_unloaded(&asked.model, in_use.as_ref())?;
            loaded?;
        }
        turn(daemon, key, record.id()).await;
        match (asked.make)(Some(record.clone())).await {
            // Another model loads, or this one went again: wait for the next.
            Err(failure) if is_gone(&failure) => {
                check_unloaded(&asked.model, in_use.as_ref())?;
                pending = next(daemon, share, &asked.model, failure)?;
            }
            Err(failure) if is_full(&failure) => pending = None,
            made => return made.map(drop),
        }
    }
}

/// Waits until it is a request's turn: there is room for its share, and of all of which that is true it is the next.
async fn turn(daemon: &Arc<Daemon>, key: &LineKey, id: u64) {
    // It stands in line as long as this is waited for.
    let Some((turn, is_called)) = daemon.line.turn_of(key, id) else {
        return;
    };
    if !is_called {
        tokio::spawn(call_in_turn(daemon.clone(), key.clone()));
    }
    // What it was told earlier may no longer be so.
    while daemon.line.next(key, room_of(daemon, key)) != Some(id) {
        turn.notified().await;
    }
}

/// Finds out whose turn it is whenever something changes, for all who wait for a model, as long as anybody does: they would
/// otherwise all look with every pass.
async fn call_in_turn(daemon: Arc<Daemon>, key: LineKey) {
    let mut changes = daemon.changes.subscribe();
    while daemon.line.call(&key, room_of(&daemon, &key)) {
        // The sender lives in the daemon, so `changed` cannot fail.
        let _ = changes.changed().await;
    }
}

/// What there is for each share where requests are prepared, and in the queue of the model's engine. The locks of both are
/// taken, so they are never held while the line's is waited for.
fn room_of(daemon: &Daemon, key: &LineKey) -> impl Fn(ShareKey) -> Room {
    // The same for all shares: looked up before the line is locked.
    let serving = daemon.models.in_line_for(key);
    let is_closed =
        (serving.as_ref()).is_some_and(|serving| daemon.models.uses().is_closed(&serving.name));
    // One whose model is not there finds out what becomes of it.
    let engine = serving.and_then(|serving| serving.engine().ok());
    move |share| {
        if is_closed {
            return Room::None;
        }
        let queue = (engine.as_ref()).map_or(Room::Free, |engine| engine.room(share));
        queue.max(daemon.preparing.room(share))
    }
}

/// Waits until a load ends, and shows its progress in the record. What a load for the present model failed of comes from the
/// next attempt to make the request.
///
/// # Errors
/// What the load of a model failed of that the request names.
async fn wait_for_load(
    pending: PendingModel,
    record: &RequestRecord,
    meant: &MeantModel,
) -> Result<(), Failure> {
    let PendingModel { name, pending } = pending;
    let model = name.name;
    tracing::info!(request = record.id(), model, "waits for a model");
    record.notice(&format!("waiting for the model {model} to load"));
    let ended = match pending {
        Pending::Load(operation) => loaded(&model, &operation, record).await,
        Pending::Wanted(wanted) => {
            let mut progress = wanted.subscribe();
            loop {
                let now = progress.borrow_and_update().clone();
                match now {
                    WantedProgress::Waiting => record.waits_for(v1::GenerationLoading {
                        model: model.clone(),
                        ..Default::default()
                    }),
                    WantedProgress::Loading(operation) => {
                        // Its end follows at once, with whatever comes after it.
                        let _ = loaded(&model, &operation, record).await;
                    }
                    WantedProgress::Ended(result) => break result,
                }
                // The sender lives in what is wanted, so `changed` cannot fail.
                if progress.changed().await.is_err() {
                    return Ok(());
                }
            }
        }
    };
    match (ended, meant) {
        (Err(reason), MeantModel::Named(_)) => Err(Failure::ModelFailed { model, reason }),
        _ => Ok(()),
    }
}

/// Waits until a load ends, and shows its progress in the record.
async fn loaded(model: &str, operation: &Operation, record: &RequestRecord) -> Result<(), String> {
    let mut statuses = operation.subscribe();
    loop {
        {
            let status = statuses.borrow_and_update();
            if status.has_ended() {
                let error = status.error().map(|error| error.message().to_owned());
                return error.map_or(Ok(()), Err);
            }
        }
        let (loaded_bytes, total_bytes) = operation.loaded_bytes();
        record.waits_for(v1::GenerationLoading {
            model: model.to_owned(),
            loaded_bytes,
            total_bytes,
        });
        // The sender lives in the operation, so `changed` cannot fail.
        if statuses.changed().await.is_err() {
            return Ok(());
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
