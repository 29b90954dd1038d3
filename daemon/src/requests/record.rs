//! One request: its small events, its latest picture, and readers that each go at their own
//! pace. Writing never waits for them.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use prost::Message;
use sluice_engine::{Engine, runtime::RequestTicket};
use sluice_proto::v1::{self, generation_event::Event};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Notices that a request keeps; later ones are dropped.
pub const NOTICES_MAX: usize = 16;

/// Something that readers get.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all items are of generations"
)]
pub enum RecordEvent {
    /// Of a generation.
    Generation(v1::GenerationEvent),
    /// Of an estimate.
    Score(v1::ScoreResponse),
    /// Of a measurement of a level.
    Fidelity(v1::MeasureFidelityResponse),
}

impl RecordEvent {
    fn bytes(&self) -> usize {
        match self {
            Self::Generation(event) => event.encoded_len(),
            Self::Score(response) => response.encoded_len(),
            Self::Fidelity(response) => response.encoded_len(),
        }
    }
}

impl From<Event> for RecordEvent {
    fn from(kind: Event) -> Self {
        Self::Generation(v1::GenerationEvent { event: Some(kind) })
    }
}

impl From<v1::score_response::Kind> for RecordEvent {
    fn from(kind: v1::score_response::Kind) -> Self {
        Self::Score(v1::ScoreResponse { kind: Some(kind) })
    }
}

impl From<v1::measure_fidelity_response::Kind> for RecordEvent {
    fn from(kind: v1::measure_fidelity_response::Kind) -> Self {
        Self::Fidelity(v1::MeasureFidelityResponse { kind: Some(kind) })
    }
}

/// What a request asks for; it never changes once it was made for a model.
#[derive(Debug, Clone, Copy)]
pub struct RequestDescription {
    /// What it is.
    pub kind: v1::RequestKind,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Positions to fill, or tokens of the answer or of all samples.
    pub length: usize,
    /// Blocks of the canvas; 0 for all but generations.
    pub blocks: usize,
}

impl RequestDescription {
    /// Of a request that waits for its model, whose tokenizer alone tells more.
    #[must_use]
    pub fn unknown(kind: v1::RequestKind) -> Self {
        Self {
            kind,
            prompt_tokens: 0,
            length: 0,
            blocks: 0,
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone)]
pub struct RequestEnd {
    /// Done, cancelled or failed.
    pub state: v1::RequestState,
    /// What its streams end with, when that is not well.
    pub status: Option<Status>,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RequestProgress {
    pub(super) blocks_done: usize,
    pub(super) passes: usize,
    pub(super) committed: usize,
}

/// A request.
#[derive(Debug)]
pub struct RequestRecord {
    id: u64,
    kind: v1::RequestKind,
    created: Instant,
    /// Set when nobody wants it any more and the engine has not heard of it.
    unwanted: CancellationToken,
    state: Mutex<RecordState>,
    version: watch::Sender<()>,
}

#[derive(Debug)]
struct RecordState {
    description: RequestDescription,
    /// Its place with the engine, once it has one.
    ticket: Option<RequestTicket>,
    /// The engine gave it back, since its model went before its turn.
    is_given_back: bool,
    /// Blocks + notices + 3 at most.
    small: Vec<Arc<RecordEvent>>,
    notices: usize,
    picture: Option<LatestEvent>,
    pictures: u64,
    progress: RequestProgress,
    started: Option<Instant>,
    ended: Option<(Instant, RequestEnd)>,
}

/// What the latest wins of.
#[derive(Debug)]
struct LatestEvent {
    /// From 1.
    number: u64,
    /// Small events that came before it.
    after: usize,
    item: Arc<RecordEvent>,
}

impl RequestRecord {
    pub(super) fn new(id: u64, facts: RequestDescription) -> Self {
        let queued = v1::GenerationQueued {
            request_id: id,
            ahead: 0,
        };
        let state = RecordState {
            // Holds the first place until the engine has said how many are ahead; a quick
            // engine starts before that.
            small: vec![Arc::new(Event::Queued(queued).into())],
            description: facts,
            ticket: None,
            is_given_back: false,
            notices: 0,
            picture: None,
            pictures: 0,
            progress: RequestProgress::default(),
            started: None,
            ended: None,
        };
        Self {
            id,
            kind: facts.kind,
            created: Instant::now(),
            unwanted: CancellationToken::new(),
            state: Mutex::new(state),
            version: watch::Sender::new(()),
        }
    }

    pub(super) fn admitted(&self, ticket: RequestTicket) {
        self.queued(ticket.ahead);
        self.lock().ticket = Some(ticket);
        self.version.send_replace(());
    }

    /// It waits behind so many.
    pub(super) fn queued(&self, ahead: usize) {
        let queued = v1::GenerationQueued {
            request_id: self.id,
            ahead: ahead as u32,
        };
        self.lock().small[0] = Arc::new(Event::Queued(queued).into());
    }

    /// What it asks for, once it was made for a model.
    pub fn describe(&self, facts: RequestDescription) {
        let mut state = self.lock();
        state.description = facts;
        // Its model is there: who joins late needs not hear how that came.
        state.picture = None;
    }

    /// The engine took it.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.lock().ticket.is_some()
    }

    /// The engine has begun with it.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.lock().started.is_some()
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
                    state.ticket = None;
                    return true;
                }
                if state.started.is_some() || state.ended.is_some() {
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
        self.id
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> v1::RequestKind {
        self.kind
    }

    /// The engine begins with it.
    pub fn start(&self, item: Option<RecordEvent>) {
        let mut state = self.lock();
        state.started = Some(Instant::now());
        state.small.extend(item.map(Arc::new));
        self.tell(state);
    }

    /// Adds a picture that replaces the one before.
    pub fn picture(&self, item: RecordEvent, passes: usize, committed: usize) {
        let mut state = self.lock();
        state.progress.passes = passes;
        state.progress.committed = committed;
        self.show(state, item);
    }

    /// How far the model is that it waits for.
    pub fn waits_for(&self, loading: v1::GenerationLoading) {
        self.show(self.lock(), Event::Loading(loading).into());
    }

    fn show(&self, mut state: MutexGuard<'_, RecordState>, item: RecordEvent) {
        state.pictures += 1;
        state.picture = Some(LatestEvent {
            number: state.pictures,
            after: state.small.len(),
            item: Arc::new(item),
        });
        self.tell(state);
    }

    /// Adds the end of a block.
    pub fn block_done(&self, item: RecordEvent) {
        let mut state = self.lock();
        state.progress.blocks_done += 1;
        state.small.push(Arc::new(item));
        self.tell(state);
    }

    /// Tells its readers something; of a talkative daemon they hear the first notices only.
    pub fn notice(&self, text: &str) {
        let mut state = self.lock();
        let generates = self.kind == v1::RequestKind::Generate;
        if !generates || state.ended.is_some() || state.notices == NOTICES_MAX {
            return;
        }
        state.notices += 1;
        let notice = v1::GenerationNotice {
            request_id: self.id,
            text: text.to_owned(),
        };
        state.small.push(Arc::new(Event::Notice(notice).into()));
        self.tell(state);
    }

    /// Ends it, with its result if it has one: who reads the result finds it ended.
    pub(super) fn end(&self, result: Option<RecordEvent>, ending: RequestEnd) {
        let mut state = self.lock();
        state.small.extend(result.map(Arc::new));
        state.ended = Some((Instant::now(), ending));
        self.tell(state);
    }

    /// Nothing follows any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// Stops it within a pass, or at once while it waits for a model; false when it had ended.
    pub fn cancel(&self, engine: &Engine) -> bool {
        let active = !self.has_ended();
        if active {
            self.unwanted.cancel();
            // Not under the lock: one that waits with the engine ends on this thread.
            let ticket = self.lock().ticket;
            if let Some(ticket) = ticket {
                engine.cancel(ticket);
            }
        }
        active
    }

    /// Whether somebody has cancelled it.
    #[must_use]
    pub fn is_unwanted(&self) -> bool {
        self.unwanted.is_cancelled()
    }

    /// Returns once somebody has cancelled it.
    pub async fn unwanted(&self) {
        self.unwanted.cancelled().await;
    }

    /// Bytes that its events hold, as the wire counts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let state = self.lock();
        let picture = state.picture.as_ref().map(|picture| &picture.item);
        let items = state.small.iter().chain(picture);
        items.map(|item| item.bytes()).sum()
    }

    /// One line of the list.
    #[must_use]
    pub fn summary(&self) -> v1::RequestSummary {
        let state = self.lock();
        let ended = state.ended.as_ref();
        let end = ended.map_or_else(Instant::now, |(at, _)| *at);
        let wire_state = match ended {
            Some((_, ending)) => ending.state,
            None if state.started.is_some() => v1::RequestState::Running,
            None => v1::RequestState::Queued,
        };
        let ms = |from: Instant, to: Instant| {
            to.saturating_duration_since(from)
                .max(Duration::ZERO)
                .as_secs_f64()
                * 1000.0
        };
        let error = ended
            .and_then(|(_, ending)| ending.status.as_ref())
            .filter(|_| wire_state == v1::RequestState::Failed);
        v1::RequestSummary {
            request_id: self.id,
            kind: self.kind.into(),
            state: wire_state.into(),
            prompt_tokens: state.description.prompt_tokens as u32,
            length: state.description.length as u32,
            blocks: state.description.blocks as u32,
            blocks_done: state.progress.blocks_done as u32,
            passes: state.progress.passes as u32,
            committed: state.progress.committed as u32,
            elapsed_ms: state.started.map_or(0.0, |started| ms(started, end)),
            queued_ms: ms(self.created, state.started.unwrap_or(end)),
            error: error.map_or_else(String::new, |status| status.message().to_owned()),
        }
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
    Item(Arc<RecordEvent>),
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
    pub fn record(&self) -> &RequestRecord {
        &self.record
    }

    /// The next event, or the failure that the request ended with, once; then `None`. May be
    /// dropped while it waits.
    pub async fn next(&mut self) -> Option<Result<Arc<RecordEvent>, Status>> {
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
            Some((_, ending)) => Look::Ended(ending.status.clone()),
            None => Look::Wait,
        }
    }
}
