//! One request: its operation, its small events, its latest picture, and readers that each go at their own pace. Writing never
//! waits for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use prost::Message;
use sluice_engine::{Engine, runtime::RequestTicket};
use sluice_proto::v1::{
    self, OperationKind, OperationStage, ProgressUnit, generation_event::Event,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{
    failure::Failure,
    operations::{Operation, Outcome, progress},
};

/// Notices that a request keeps; later ones are dropped.
pub const NOTICES_MAX: usize = 16;

/// What a request asks for; it never changes once it was made for a model.
#[derive(Debug, Clone, Copy)]
pub struct RequestDescription {
    /// What it is.
    pub kind: OperationKind,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Positions to fill, or tokens of the answer or of all samples.
    pub length: usize,
    /// Blocks of the canvas; 0 for all but generations.
    pub blocks: usize,
    /// Of a measurement, the level that was asked for.
    pub level: v1::Level,
}

impl RequestDescription {
    /// Of a request that waits for its model, whose tokenizer alone tells more.
    #[must_use]
    pub fn unknown(kind: OperationKind) -> Self {
        Self {
            kind,
            prompt_tokens: 0,
            length: 0,
            blocks: 0,
            level: v1::Level::Unspecified,
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone)]
pub enum RequestEnd {
    /// Well; a generation's result is among its events.
    Done(Option<Box<Outcome>>),
    /// Somebody stopped it.
    Cancelled,
    /// It failed.
    Failed(Status),
}

impl RequestEnd {
    /// What the operation ends with.
    pub(super) fn result(self) -> Result<Option<Outcome>, Status> {
        match self {
            Self::Done(outcome) => Ok(outcome.map(|outcome| *outcome)),
            Self::Cancelled => Err(Failure::Cancelled.into()),
            Self::Failed(status) => Err(status),
        }
    }

    /// What the stream of events ends with, when that is not well. The last event tells of a cancellation.
    fn status(&self) -> Option<Status> {
        match self {
            Self::Failed(status) => Some(status.clone()),
            Self::Done(_) | Self::Cancelled => None,
        }
    }
}

/// What stops a request.
#[derive(Debug)]
pub(super) struct RequestHandle {
    engine: Weak<Engine>,
    /// Set when nobody wants it any more and the engine has not heard of it.
    unwanted: CancellationToken,
    /// Its place with the engine, once it has one.
    ticket: Mutex<Option<RequestTicket>>,
}

impl RequestHandle {
    pub(super) fn new(engine: Weak<Engine>) -> Self {
        Self {
            engine,
            unwanted: CancellationToken::new(),
            ticket: Mutex::default(),
        }
    }

    pub(super) fn stop(&self) {
        self.unwanted.cancel();
        // Not under the lock: one that waits with the engine ends on this thread.
        let ticket = *self.ticket();
        if let (Some(ticket), Some(engine)) = (ticket, self.engine.upgrade()) {
            engine.cancel(ticket);
        }
    }

    fn ticket(&self) -> MutexGuard<'_, Option<RequestTicket>> {
        // One step: nothing is left half-done.
        self.ticket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request.
#[derive(Debug)]
pub struct RequestRecord {
    operation: Arc<Operation>,
    handle: Arc<RequestHandle>,
    state: Mutex<RecordState>,
    version: watch::Sender<()>,
}

#[derive(Debug)]
struct RecordState {
    /// The engine gave it back, since its model went before its turn.
    is_given_back: bool,
    /// Blocks + notices + 3 at most.
    small: Vec<Arc<v1::GenerationEvent>>,
    notices: usize,
    picture: Option<LatestEvent>,
    pictures: u64,
    /// With what its events end, once they have.
    ended: Option<Option<Status>>,
}

/// What the latest wins of.
#[derive(Debug)]
struct LatestEvent {
    /// From 1.
    number: u64,
    /// Small events that came before it.
    after: usize,
    item: Arc<v1::GenerationEvent>,
}

impl RequestRecord {
    pub(super) fn new(operation: Arc<Operation>, handle: Arc<RequestHandle>) -> Self {
        let queued = v1::GenerationQueued {
            request_id: operation.id(),
            ahead: 0,
        };
        let state = RecordState {
            // Holds the first place until the engine has said how many are ahead; a quick
            // engine starts before that.
            small: vec![event(Event::Queued(queued))],
            is_given_back: false,
            notices: 0,
            picture: None,
            pictures: 0,
            ended: None,
        };
        Self {
            operation,
            handle,
            state: Mutex::new(state),
            version: watch::Sender::new(()),
        }
    }

    pub(super) fn admitted(&self, ticket: RequestTicket) {
        self.queued(ticket.ahead);
        *self.handle.ticket() = Some(ticket);
        self.version.send_replace(());
    }

    /// It waits behind so many.
    pub(super) fn queued(&self, ahead: usize) {
        let queued = v1::GenerationQueued {
            request_id: self.id(),
            ahead: ahead as u32,
        };
        self.lock().small[0] = event(Event::Queued(queued));
        self.operation.queued(ahead);
    }

    /// What it asks for, once it was made for this model.
    pub fn describe(&self, facts: RequestDescription, model: &str) {
        self.operation.made_for(model);
        self.operation.request(|request| {
            *request = v1::RequestDetail {
                prompt_tokens: facts.prompt_tokens as u32,
                length: facts.length as u32,
                blocks: facts.blocks as u32,
                level: facts.level.into(),
                ..*request
            };
        });
        // Its model is there: who joins late needs not hear how that came.
        self.lock().picture = None;
    }

    /// The record that is listed, followed and cancelled.
    #[must_use]
    pub fn operation(&self) -> &Arc<Operation> {
        &self.operation
    }

    /// The engine took it.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.handle.ticket().is_some()
    }

    /// The engine has begun with it.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.operation.has_started()
    }

    /// The engine won't begin with it, since its model is gone. Whoever stays by it finds it another.
    pub fn give_back(&self) {
        let mut state = self.lock();
        state.is_given_back = true;
        self.tell(state);
    }

    /// Waits until it is known whether the engine has given it back; false once it runs or is over. From then on it is as if
    /// the engine had never had it.
    pub async fn is_given_back(&self) -> bool {
        let mut version = self.version.subscribe();
        loop {
            {
                let mut state = self.lock();
                if std::mem::take(&mut state.is_given_back) {
                    *self.handle.ticket() = None;
                    return true;
                }
                if self.operation.has_started() || state.ended.is_some() {
                    return false;
                }
            }
            // The sender lives in `self`, so `changed` can't fail.
            if version.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Its number, from 1.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.operation.id()
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> OperationKind {
        self.operation.kind()
    }

    /// The engine begins with it.
    pub fn start(&self, first: Option<Event>) {
        self.operation.start();
        let mut state = self.lock();
        state.small.extend(first.map(event));
        self.tell(state);
    }

    /// Adds a picture that replaces the one before.
    pub fn picture(&self, picture: Event, passes: usize, committed: usize) {
        let mut length = 0;
        self.operation.request(|request| {
            request.passes = passes as u32;
            request.committed_positions = committed as u32;
            length = request.length;
        });
        let (computing, positions) = (OperationStage::Computing, ProgressUnit::Positions);
        let far = progress(computing, positions, committed as u64, length.into());
        self.operation.progress(far);
        self.show(self.lock(), picture);
    }

    /// How far the model is that it waits for.
    pub fn waits_for(&self, loading: v1::GenerationLoading) {
        self.show(self.lock(), Event::Loading(loading));
    }

    fn show(&self, mut state: MutexGuard<'_, RecordState>, picture: Event) {
        state.pictures += 1;
        state.picture = Some(LatestEvent {
            number: state.pictures,
            after: state.small.len(),
            item: event(picture),
        });
        self.tell(state);
    }

    /// Adds the end of a block.
    pub fn block_done(&self, block: v1::GenerationBlock) {
        self.operation.request(|request| request.done_blocks += 1);
        let mut state = self.lock();
        state.small.push(event(Event::BlockDone(block)));
        self.tell(state);
    }

    /// Tells its readers something; of a talkative daemon they hear the first notices only.
    pub fn notice(&self, text: &str) {
        let mut state = self.lock();
        if state.ended.is_some() || state.notices == NOTICES_MAX {
            return;
        }
        state.notices += 1;
        self.operation.notice(text);
        let notice = v1::GenerationNotice {
            request_id: self.id(),
            text: text.to_owned(),
        };
        state.small.push(event(Event::Notice(notice)));
        self.tell(state);
    }

    /// Ends its events, with the last one if it has one. Its operation has ended before, so that who reads the last finds that.
    pub(super) fn end(&self, last: Option<Event>, ending: &RequestEnd) {
        let mut state = self.lock();
        state.small.extend(last.map(event));
        state.ended = Some(ending.status());
        self.tell(state);
    }

    /// Nothing follows any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// Stops it within a pass, or at once while it waits for a model; false when it had ended.
    pub fn cancel(&self) -> bool {
        // A request can always be stopped.
        self.operation.cancel().unwrap_or(false)
    }

    /// Whether somebody has cancelled it.
    #[must_use]
    pub fn is_unwanted(&self) -> bool {
        self.handle.unwanted.is_cancelled()
    }

    /// Returns once somebody has cancelled it.
    pub async fn unwanted(&self) {
        self.handle.unwanted.cancelled().await;
    }

    /// Bytes that its events hold, as the wire counts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let state = self.lock();
        let picture = state.picture.as_ref().map(|picture| &picture.item);
        let items = state.small.iter().chain(picture);
        items.map(|item| item.encoded_len()).sum()
    }

    fn tell(&self, state: MutexGuard<'_, RecordState>) {
        drop(state);
        self.version.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, RecordState> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

/// Reads a request from its first event, at its own pace: it misses pictures when it is slow,
/// never a small event.
#[derive(Debug)]
pub struct RecordReader {
    record: Arc<RequestRecord>,
    version: watch::Receiver<()>,
    small_seen: usize,
    picture_seen: u64,
    closed: bool,
}

enum Look {
    Item(Arc<v1::GenerationEvent>),
    Ended(Option<Status>),
    Wait,
}

impl RecordReader {
    /// A reader from the first event on.
    #[must_use]
    pub fn new(record: Arc<RequestRecord>) -> Self {
        Self {
            version: record.version.subscribe(),
            record,
            small_seen: 0,
            picture_seen: 0,
            closed: false,
        }
    }

    /// What is read.
    #[must_use]
    pub fn record(&self) -> &Arc<RequestRecord> {
        &self.record
    }

    /// The next event, or the failure that the request ended with, once; then `None`. May be
    /// dropped while it waits.
    pub async fn next(&mut self) -> Option<Result<Arc<v1::GenerationEvent>, Status>> {
        loop {
            // Marked as seen before looking, so that nothing that comes later is missed.
            self.version.borrow_and_update();
            match self.look() {
                Look::Item(item) => return Some(Ok(item)),
                Look::Ended(status) => {
                    let first = !std::mem::replace(&mut self.closed, true);
                    return status.filter(|_| first).map(Err);
                }
                Look::Wait => {}
            }
            // The sender lives in the record that this reader holds.
            self.version.changed().await.ok()?;
        }
    }

    fn look(&mut self) -> Look {
        let state = self.record.lock();
        if let Some(picture) = &state.picture
            && picture.number > self.picture_seen
            && picture.after <= self.small_seen
        {
            self.picture_seen = picture.number;
            return Look::Item(picture.item.clone());
        }
        if let Some(item) = state.small.get(self.small_seen) {
            self.small_seen += 1;
            return Look::Item(item.clone());
        }
        match &state.ended {
            Some(status) => Look::Ended(status.clone()),
            None => Look::Wait,
        }
    }
}

fn event(kind: Event) -> Arc<v1::GenerationEvent> {
    Arc::new(v1::GenerationEvent { event: Some(kind) })
}
