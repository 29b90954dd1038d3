//! One request: its operation, a bounded log of small events, the latest picture, and readers that each go at their own pace.
//! Writing never waits for readers.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

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
    models::ModelInUse,
    operations::{NOTICES_MAX, Operation, Outcome, progress},
};

/// The size of a request. It does not change once the request was made for a model.
#[derive(Debug, Clone, Copy)]
pub struct RequestDescription {
    /// Kind of request: a generation, a score or a measurement.
    pub kind: OperationKind,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Positions to fill, or tokens of the answer or of all samples.
    pub length: usize,
    /// Blocks of the canvas; 0 for all but generations.
    pub blocks: usize,
    /// The requested level of a measurement; else unspecified.
    pub level: v1::Level,
}

impl RequestDescription {
    /// The description of a request that waits for its model: its tokens cannot be counted without the model's tokenizer.
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
    /// It succeeded. A generation has no outcome here, since its result is its last event.
    Done(Option<Box<Outcome>>),
    /// It was cancelled by a client, its deadline or the shutdown.
    Cancelled,
    /// It failed with the status that its streams end with.
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

    /// The error that the stream of events ends with. A cancellation is not one: the last event tells of it.
    fn status(&self) -> Option<Status> {
        match self {
            Self::Failed(status) => Some(status.clone()),
            Self::Done(_) | Self::Cancelled => None,
        }
    }
}

/// Stops a request, wherever it is: in line for a model or with an engine.
#[derive(Default)]
pub(super) struct RequestHandle {
    /// Cancelled with the request, for those that wait for a model.
    unwanted: CancellationToken,
    /// Its place in an engine's queue; `None` while it waits for a model. Weak, since the engine's thread holds its record.
    ticket: Mutex<Option<(RequestTicket, Weak<Engine>)>>,
}

impl fmt::Debug for RequestHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ticket = self.ticket().as_ref().map(|(ticket, _)| *ticket);
        f.debug_struct("RequestHandle")
            .field("ticket", &ticket)
            .finish_non_exhaustive()
    }
}

impl RequestHandle {
    pub(super) fn stop(&self) {
        // The token first: a request that is being admitted now has no ticket yet and checks the token afterwards.
        self.unwanted.cancel();
        // Not under the lock: cancelling a request in the engine's queue runs its sink on this thread.
        let ticket = self.ticket().clone();
        if let Some((ticket, engine)) = ticket
            && let Some(engine) = engine.upgrade()
        {
            engine.cancel(ticket);
        }
    }

    fn ticket(&self) -> MutexGuard<'_, Option<(RequestTicket, Weak<Engine>)>> {
        // A panic cannot leave a single assignment half-done.
        self.ticket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request: what the registry lists, what its readers read and what stops it.
#[derive(Debug)]
pub struct RequestRecord {
    operation: Arc<Operation>,
    handle: Arc<RequestHandle>,
    state: Mutex<RecordState>,
    version: watch::Sender<()>,
}

#[derive(Debug)]
struct RecordState {
    /// The engine gave it back, since its model was unloaded before its turn.
    is_given_back: bool,
    /// It is a step of something else.
    is_step: bool,
    /// Keeps its model from being unloaded, from the submission to the end.
    in_use: Option<ModelInUse>,
    /// Events that no reader misses: at most the blocks, the notices and four more.
    small: Vec<Arc<v1::GenerationEvent>>,
    notices: usize,
    picture: Option<LatestEvent>,
    pictures: u64,
    /// `None` while events may follow; then the error that they end with, if any.
    ended: Option<Option<Status>>,
}

/// The latest picture. Earlier ones are dropped, read or not, so a slow reader costs no memory.
#[derive(Debug)]
struct LatestEvent {
    /// Counted from 1, so that 0 means a reader that has seen none.
    number: u64,
    /// Number of small events before it: a reader gets those first.
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
            is_step: false,
            in_use: None,
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

    pub(super) fn admitted(&self, ticket: RequestTicket, engine: Weak<Engine>) {
        self.queued(ticket.ahead);
        *self.handle.ticket() = Some((ticket, engine));
        self.version.send_replace(());
    }

    /// Sets the number of requests ahead, in the first event too.
    pub(super) fn queued(&self, ahead: usize) {
        let queued = v1::GenerationQueued {
            request_id: self.id(),
            ahead: ahead as u32,
        };
        self.lock().small[0] = event(Event::Queued(queued));
        self.operation.queued(ahead);
    }

    /// Sets the size and the model, once the request was made for it.
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
        // The model is there, so a late reader need not hear of its load.
        self.lock().picture = None;
    }

    /// The request's operation, which is listed, followed and cancelled.
    #[must_use]
    pub fn operation(&self) -> &Arc<Operation> {
        &self.operation
    }

    /// Keeps the model that it is made for until it ends, or lets it go.
    pub(crate) fn keeps(&self, in_use: Option<ModelInUse>) {
        let mut state = self.lock();
        let kept = in_use.filter(|_| state.ended.is_none());
        let before = std::mem::replace(&mut state.in_use, kept);
        drop(state);
        // Watchers that it wakes look at the record.
        drop(before);
    }

    /// Whether the engine has taken it.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.handle.ticket().is_some()
    }

    /// Whether the engine has begun with it.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.operation.has_started()
    }

    /// Marks the request as given back: its model was unloaded before its turn. The task that waits in
    /// [`RequestRecord::is_given_back`] puts it in line for the next model.
    pub fn give_back(&self) {
        let mut state = self.lock();
        state.is_given_back = true;
        self.tell(state);
    }

    /// What has kept the model of a request that was given back.
    pub(crate) fn take_use(&self) -> Option<ModelInUse> {
        self.lock().in_use.take()
    }

    /// Waits until the engine gives the request back (true), or begins or ends it (false). A request that was given back has
    /// no ticket any more.
    pub async fn is_given_back(&self) -> bool {
        // Before the first look, so that nothing is missed between look and wait.
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
            // The sender lives in `self`, so `changed` cannot fail.
            if version.changed().await.is_err() {
                return false;
            }
        }
    }

    /// The request's id, which is its operation's.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.operation.id()
    }

    /// Marks the request as a step of something else, such as an import or a search: it is forgotten when it ends.
    pub fn is_a_step(&self) {
        self.lock().is_step = true;
    }

    /// Whether it is a step of something else.
    #[must_use]
    pub fn is_step(&self) -> bool {
        self.lock().is_step
    }

    /// Kind of request.
    #[must_use]
    pub fn kind(&self) -> OperationKind {
        self.operation.kind()
    }

    /// Marks the request as running, with its first event if it has one.
    pub fn start(&self, first: Option<Event>) {
        self.operation.start();
        let mut state = self.lock();
        state.small.extend(first.map(event));
        self.tell(state);
    }

    /// Replaces the picture by one after `passes` passes with `committed` positions committed.
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

    /// Replaces the picture by one of the load that the request waits for.
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

    /// Adds a step of inference.
    pub fn thought(&self, thought: v1::GenerationThought) {
        let mut state = self.lock();
        state.small.push(event(Event::Thought(thought)));
        self.tell(state);
    }

    /// Adds where texts without a position stand.
    pub fn placed(&self, placed: v1::GenerationPlaced) {
        let mut state = self.lock();
        state.small.push(event(Event::Placed(placed)));
        self.tell(state);
    }

    /// Adds a notice for readers. Only the first [`NOTICES_MAX`] are kept.
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

    /// Ends the events, with the last one if there is one. The operation has ended before, so that a reader of the last event
    /// finds it ended.
    pub(super) fn end(&self, last: Option<Event>, ending: &RequestEnd) {
        let mut state = self.lock();
        state.small.extend(last.map(event));
        state.ended = Some(ending.status());
        let in_use = state.in_use.take();
        self.tell(state);
        drop(in_use);
    }

    /// Whether the events have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// Stops the request: between layers of a pass, or at once while it waits. False if it had ended.
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

    /// Bytes of the events as encoded messages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let state = self.lock();
        let picture = state.picture.as_ref().map(|picture| &picture.item);
        let items = state.small.iter().chain(picture);
        items.map(|item| item.encoded_len()).sum()
    }

    fn tell(&self, state: MutexGuard<'_, RecordState>) {
        // Readers that wake take this lock.
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

    /// The request that is read.
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
