//! One operation: a full picture of how far it is, so that the latest is enough for whoever follows it. Writing never waits
//! for readers.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sluice_proto::v1;
pub use sluice_proto::v1::operation::{Detail, Outcome};
use tokio::sync::watch;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::ChangeNotifier;
use crate::failure::Failure;

/// Notices that an operation keeps; later ones are dropped.
pub const NOTICES_MAX: usize = 64;
/// How often those who follow hear of progress alone.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Stops an operation.
pub type CancelFn = Box<dyn Fn() + Send + Sync>;

/// What is known of an operation before it begins.
#[derive(Debug, Clone, Default)]
pub struct OperationDescription {
    /// What it does.
    pub kind: v1::OperationKind,
    /// The model that it is about; empty: it is about files alone.
    pub model: String,
    /// What is read, of an operation on files.
    pub input_path: String,
    /// What is written, of an operation on files; may be empty.
    pub output_path: String,
    /// Threads that work for it, where that is fixed.
    pub threads: Option<usize>,
}

/// An operation.
pub struct Operation {
    id: u64,
    description: OperationDescription,
    created: Moment,
    cancel: Option<CancelFn>,
    status: watch::Sender<OperationStatus>,
    changes: ChangeNotifier,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("id", &self.id)
            .field("description", &self.description)
            .finish_non_exhaustive()
    }
}

/// All of an operation that changes.
#[derive(Debug, Clone, Default)]
pub struct OperationStatus {
    /// Of a request, which may be made for another model than it came for.
    model: Option<String>,
    /// Of a request that waits.
    ahead: Option<usize>,
    started: Option<Moment>,
    ended: Option<Ended>,
    progress: Option<v1::OperationProgress>,
    /// When those who follow heard of progress.
    progress_told: Option<Instant>,
    detail: Option<Arc<Detail>>,
    notices: Vec<String>,
}

#[derive(Debug, Clone)]
struct Ended {
    at: Moment,
    result: Result<Option<Arc<Outcome>>, Status>,
}

impl OperationStatus {
    /// Whether nothing follows.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// What came of it; `None` while it goes on and where nothing did.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        let ended = self.ended.as_ref()?;
        ended.result.as_ref().ok()?.as_deref()
    }

    /// Why it ended without a result.
    #[must_use]
    pub fn error(&self) -> Option<&Status> {
        self.ended.as_ref()?.result.as_ref().err()
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Option<&v1::OperationProgress> {
        self.progress.as_ref()
    }

    /// What is known of it before its end.
    #[must_use]
    pub fn detail(&self) -> Option<&Detail> {
        self.detail.as_deref()
    }

    /// Whether those who follow hear of progress now.
    fn is_due(&mut self, is_new_stage: bool) -> bool {
        let told = self.progress_told;
        let is_due = is_new_stage || told.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL);
        if is_due {
            self.progress_told = Some(Instant::now());
        }
        is_due
    }

    fn state(&self) -> v1::OperationState {
        match &self.ended {
            Some(Ended { result: Ok(_), .. }) => v1::OperationState::Done,
            Some(Ended {
                result: Err(status),
                ..
            }) => match status.code() {
                Code::Cancelled => v1::OperationState::Cancelled,
                _ => v1::OperationState::Failed,
            },
            None if self.started.is_some() => v1::OperationState::Running,
            None => v1::OperationState::Queued,
        }
    }
}

/// A point in time, by a clock that never jumps and by the one that people read.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    unix_ms: u64,
}

impl Moment {
    fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            at: Instant::now(),
            unix_ms: since.map_or(0, |since| since.as_millis() as u64),
        }
    }
}

impl Operation {
    pub(super) fn new(
        id: u64,
        description: OperationDescription,
        cancel: Option<CancelFn>,
        changes: ChangeNotifier,
    ) -> Self {
        Self {
            id,
            description,
            created: Moment::now(),
            cancel,
            status: watch::Sender::default(),
            changes,
        }
    }

    /// Its number, from 1.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> v1::OperationKind {
        self.description.kind
    }

    /// What was known of it before it began.
    #[must_use]
    pub fn description(&self) -> &OperationDescription {
        &self.description
    }

    /// Whether it waits or runs.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.status.borrow().has_ended()
    }

    /// How far it is, now and later.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<OperationStatus> {
        self.status.subscribe()
    }

    /// Bytes of weights that were read, and of how many, of a load; 0 until it reads.
    #[must_use]
    pub fn loaded_bytes(&self) -> (u64, Option<u64>) {
        let status = self.status.borrow();
        let step = status.progress.as_ref();
        let step = step.filter(|step| step.stage() == v1::OperationStage::Loading);
        step.map_or((0, None), |step| (step.done, step.total))
    }

    /// Stops it; false when it had ended.
    ///
    /// # Errors
    /// When it can't be stopped.
    pub fn cancel(&self) -> Result<bool, Failure> {
        let Some(cancel) = &self.cancel else {
            let (id, kind) = (self.id, self.kind());
            return Err(Failure::NotCancellable { id, kind });
        };
        let is_active = self.is_active();
        if is_active {
            cancel();
        }
        Ok(is_active)
    }

    /// It runs from here on.
    pub fn start(&self) {
        self.change(|status| status.started = Some(Moment::now()));
    }

    /// How far it is. Those who follow hear of it now and then, and of a new stage at once.
    pub fn progress(&self, progress: v1::OperationProgress) {
        self.status.send_if_modified(|status| {
            let before = status.progress.as_ref();
            let is_new_stage = before.is_none_or(|before| before.stage != progress.stage);
            status.progress = Some(progress);
            status.is_due(is_new_stage)
        });
    }

    /// How far a request is, which those who follow hear of now and then, too.
    pub fn request(&self, change: impl FnOnce(&mut v1::RequestDetail)) {
        self.status.send_if_modified(|status| {
            let detail = status
                .detail
                .get_or_insert_with(|| Arc::new(Detail::Request(v1::RequestDetail::default())));
            if let Detail::Request(request) = Arc::make_mut(detail) {
                change(request);
            }
            status.is_due(false)
        });
    }

    /// It waits, and so many are ahead of it.
    pub fn queued(&self, ahead: usize) {
        self.status.send_modify(|status| status.ahead = Some(ahead));
    }

    /// Which model it is made for.
    pub fn made_for(&self, model: &str) {
        self.status
            .send_modify(|status| status.model = Some(model.to_owned()));
    }

    /// Whether it has run.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.status.borrow().started.is_some()
    }

    /// What is known of it by now.
    pub fn detail(&self, detail: Detail) {
        self.change(|status| status.detail = Some(Arc::new(detail)));
    }

    /// Tells those who follow something; of a talkative daemon they hear the first notices only.
    pub fn notice(&self, text: impl Into<String>) {
        self.change(|status| {
            if status.notices.len() < NOTICES_MAX {
                status.notices.push(text.into());
            }
        });
    }

    /// Ends it; false where it had ended before.
    pub(super) fn end(&self, result: Result<Option<Outcome>, Status>) -> bool {
        self.status.send_if_modified(|status| {
            if status.has_ended() {
                return false;
            }
            if let (Ok(_), Some(progress)) = (&result, &mut status.progress) {
                // Work tells of its progress now and then; its last word may not have been told.
                progress.done = progress.total.unwrap_or(progress.done);
            }
            status.ended = Some(Ended {
                at: Moment::now(),
                result: result.map(|outcome| outcome.map(Arc::new)),
            });
            true
        })
    }

    /// As the wire has it now.
    #[must_use]
    pub fn to_wire(&self) -> v1::Operation {
        self.picture(&self.status.borrow())
    }

    /// As the wire had it when its status was this.
    #[must_use]
    pub fn picture(&self, status: &OperationStatus) -> v1::Operation {
        let now = Instant::now();
        let ended = status.ended.as_ref().map(|ended| ended.at);
        let until = ended.map_or(now, |ended| ended.at);
        let OperationDescription {
            model,
            input_path,
            output_path,
            threads,
            ..
        } = &self.description;
        v1::Operation {
            operation_id: self.id,
            kind: self.kind().into(),
            state: status.state().into(),
            model: status.model.as_ref().unwrap_or(model).clone(),
            input_path: input_path.clone(),
            output_path: output_path.clone(),
            is_cancellable: self.cancel.is_some(),
            threads: threads.map(|threads| threads as u32),
            ahead: (status.state() == v1::OperationState::Queued)
                .then(|| status.ahead.map(|ahead| ahead as u32))
                .flatten(),
            progress: status.progress.clone(),
            notices: status.notices.clone(),
            error: status.error().map(operation_error),
            created_unix_ms: self.created.unix_ms,
            started_unix_ms: status.started.map(|started| started.unix_ms),
            ended_unix_ms: ended.map(|ended| ended.unix_ms),
            queued_ms: ms(
                self.created.at,
                status.started.map_or(until, |started| started.at),
            ),
            elapsed_ms: status.started.map_or(0.0, |started| ms(started.at, until)),
            detail: status.detail().cloned(),
            outcome: status.outcome().cloned(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut OperationStatus)) {
        self.status.send_modify(change);
        self.changes.tell();
    }
}

/// How far an operation is in its present stage.
#[must_use]
pub fn progress(
    stage: v1::OperationStage,
    unit: v1::ProgressUnit,
    done: u64,
    total: u64,
) -> v1::OperationProgress {
    v1::OperationProgress {
        stage: stage.into(),
        item: String::new(),
        unit: unit.into(),
        done,
        // Whoever counts does not know it yet.
        total: Some(total).filter(|total| *total > 0),
    }
}

fn ms(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1000.0
}

/// What the streams of an operation end with, as a message.
fn operation_error(status: &Status) -> v1::OperationError {
    let error = v1::OperationError {
        grpc_code: status.code() as u32,
        message: status.message().to_owned(),
        ..Default::default()
    };
    let Some(mut info) = status.get_details_error_info() else {
        return error;
    };
    v1::OperationError {
        reason: info.reason,
        hint: info.metadata.remove("hint").unwrap_or_default(),
        figures: info.metadata.into_iter().collect(),
        ..error
    }
}
