//! Requests that come while a model loads: they stand in line for it, listed and with word of how far it is, and are made for
//! the model that comes of it, in the order in which they came. Those that waited with the engine when another model took the
//! place of theirs come to this line, too.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sluice_engine::EngineError;
use sluice_proto::v1::{self, OperationKind, generation_event::Event};
use tokio::sync::watch;

use super::{Daemon, ModelInUse};
use crate::{
    failure::Failure,
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

/// Ids of the requests that wait for a model, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct WaitingLine {
    waiting: Mutex<VecDeque<u64>>,
    /// Told when a request leaves the line.
    moved: watch::Sender<()>,
}

impl WaitingLine {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Puts a request at the end; how many are ahead of it. As many may wait as with the engine.
    fn join(&self, id: u64, capacity: usize) -> Result<usize, Failure> {
        let mut waiting = self.lock();
        if waiting.len() >= capacity.max(1) {
            return Err(EngineError::QueueFull { capacity }.into());
        }
        Ok(insert(&mut waiting, id))
    }

    /// Puts one back that the engine had; how many are ahead of it. It was let in before, and no more than the engine's queue
    /// holds come at once.
    fn rejoin(&self, id: u64) -> usize {
        insert(&mut self.lock(), id)
    }

    fn leave(&self, id: u64) {
        self.lock().retain(|waiting| *waiting != id);
        self.moved.send_replace(());
    }

    /// Waits until nobody is ahead of it.
    async fn is_first(&self, id: u64) {
        let mut moved = self.moved.subscribe();
        // The sender lives in `self`, so `changed` cannot fail.
        while self.lock().front() != Some(&id) && moved.changed().await.is_ok() {}
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        // Each change is one step, so a panic leaves nothing half-done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Inserts by id: ids grow in the order of arrival, so a request that comes back gets its old place.
fn insert(waiting: &mut VecDeque<u64>, id: u64) -> usize {
    let place = waiting.partition_point(|other| *other < id);
    waiting.insert(place, id);
    place
}

/// A request's place in the line, which it leaves however it ends.
struct WaitingPlace {
    daemon: Arc<Daemon>,
    record: Arc<RequestRecord>,
    _wanted: ModelInUse,
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.daemon.line.leave(self.record.id());
        self.daemon.changes.tell();
    }
}

/// Admits a request at once where a model serves; otherwise it gets a place in the line for the one that comes.
pub(super) async fn admit(
    daemon: &Arc<Daemon>,
    kind: OperationKind,
    make: AdmitFn,
) -> Result<Arc<RequestRecord>, Failure> {
    // Before looking for the model, so that it is not unloaded as idle between the look and the submission.
    let wanted = daemon.want();
    let coming = daemon.models.coming(&daemon.engine)?;
    if coming.is_none() && daemon.line.len() == 0 {
        match make(None).await {
            Err(failure) if is_gone(&failure) => {
                // The model was unloaded or replaced after the look above.
                let coming = next(daemon, failure)?;
                return stand_in_line(daemon, kind, make, coming, wanted);
            }
            Err(failure) => return Err(failure),
            Ok(record) => {
                tokio::spawn(attend(daemon.clone(), record.clone(), make));
                return Ok(record);
            }
        }
    }
    stand_in_line(daemon, kind, make, coming, wanted)
}

/// Stays by a request until the engine begins with it. One whose model went before its turn waits for the next.
async fn attend(daemon: Arc<Daemon>, record: Arc<RequestRecord>, make: AdmitFn) {
    while record.is_given_back().await {
        let place = WaitingPlace {
            daemon: daemon.clone(),
            record: record.clone(),
            _wanted: daemon.want(),
        };
        let ahead = daemon.line.rejoin(record.id());
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
    kind: OperationKind,
    make: AdmitFn,
    coming: Option<ComingModel>,
    wanted: ModelInUse,
) -> Result<Arc<RequestRecord>, Failure> {
    let model = coming.as_ref().map_or("", |coming| &coming.model);
    let facts = RequestDescription::unknown(kind);
    let record = daemon.requests.create(facts, model);
    let capacity = daemon.engine.queue().capacity;
    let ahead = daemon.line.join(record.id(), capacity)?;
    // Made before the record is listed: its drop leaves the line, whatever happens from here on.
    let place = WaitingPlace {
        daemon: daemon.clone(),
        record: record.clone(),
        _wanted: wanted,
    };
    daemon.requests.expect(&record, ahead);
    let (daemon, waiting) = (daemon.clone(), record.clone());
    tokio::spawn(async move {
        wait(place, &make, coming).await;
        attend(daemon, waiting, make).await;
    });
    Ok(record)
}

/// Waits for the model and makes the request for it, unless nobody wants that any more.
async fn wait(place: WaitingPlace, make: &AdmitFn, coming: Option<ComingModel>) {
    let WaitingPlace { daemon, record, .. } = &place;
    let admitted = tokio::select! {
        biased;
        () = record.unwanted() => return end_unwanted(daemon, record),
        // A model may take longer to load than there is time left.
        () = daemon.draining.cancelled() => Err(Failure::Draining),
        admitted = become_admitted(daemon, record, make, coming) => admitted,
    };
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
        daemon.line.is_first(record.id()).await;
        match make(Some(record.clone())).await {
            // Another model loads, or this one went again: wait for the next.
            Err(failure) if is_gone(&failure) => coming = next(daemon, failure)?,
            Err(Failure::Engine(EngineError::QueueFull { .. })) => {
                has_room(daemon).await;
                coming = None;
            }
            made => return made.map(drop),
        }
    }
}

/// Waits until the engine takes one more.
async fn has_room(daemon: &Daemon) {
    let mut changes = daemon.changes.subscribe();
    let is_full = || {
        let queue = daemon.engine.queue();
        // An idle engine takes one request even if its queue has no capacity.
        queue.waiting >= queue.capacity && queue.waiting + queue.running > 0
    };
    // The sender lives in the daemon, so `changed` cannot fail.
    while is_full() && changes.changed().await.is_ok() {}
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
    tracing::info!(
        request = record.id(),
        "cancelled while it waited for a model"
    );
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
