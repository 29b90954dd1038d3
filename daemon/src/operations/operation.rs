//! One operation. Each state is a full picture, so a follower needs only the latest one. Writing never waits for readers.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sluice_proto::v1;
pub use sluice_proto::v1::operation::{Detail, Outcome};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::ChangeNotifier;
use crate::{
    caller::Caller,
    failure::{Failure, earlier_status},
};

/// Notices that an operation keeps; later ones are dropped.
pub const NOTICES_MAX: usize = 64;
/// Characters of a notice or an error that outlive the daemon.
const LASTING_CHARS_MAX: usize = 1000;
/// Least time between two pictures that differ in progress alone.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Callback that asks an operation's work to stop. It returns at once.
pub type CancelFn = Box<dyn Fn() + Send + Sync>;

/// What is known of an operation before it begins.
#[derive(Debug, Clone, Default)]
pub struct OperationDescription {
    /// Kind of work.
    pub kind: v1::OperationKind,
    /// Name of the model; empty for work on files alone.
    pub model: String,
    /// Path that work on files reads; else empty.
    pub input_path: String,
    /// Path that work on files writes; empty where nothing is written.
    pub output_path: String,
    /// Number of threads; `None` where it is not fixed.
    pub threads: Option<usize>,
    /// Who asked for it; `None`: the daemon itself.
    pub caller: Option<Caller>,
}

/// An operation: what it is, which never changes, and its watched state.
pub struct Operation {
    id: u64,
    description: OperationDescription,
    created: Moment,
    cancel: Option<CancelFn>,
    status: watch::Sender<OperationStatus>,
    /// Cancelled once what it leaves on disk is written; unset for those that leave nothing.
    saved: OnceLock<CancellationToken>,
    /// Unset for requests, which no list outlives.
    recorded: OnceLock<Recorded>,
    /// The last picture of an operation of an earlier daemon.
    earlier: Option<Box<v1::Operation>>,
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

/// What of an operation could not be saved, for those who follow it.
#[derive(Debug)]
pub enum Unsaved {
    /// Nobody asked for it to be kept.
    Notice(String),
    /// Somebody asked for it.
    Failure(Failure),
}

/// When begin and end of an operation are on disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorded {
    pub(super) begin: CancellationToken,
    pub(super) end: CancellationToken,
}

/// The part of an operation that changes.
#[derive(Debug, Clone, Default)]
pub struct OperationStatus {
    /// A request's model, which may be another than the one it waited for; else `None`.
    model: Option<String>,
    /// Requests ahead of a waiting request.
    ahead: Option<usize>,
    started: Option<Moment>,
    ended: Option<Ended>,
    progress: Option<v1::OperationProgress>,
    /// When followers last heard of progress.
    progress_told: Option<Instant>,
    /// Whether something changed since, of which followers were not woken.
    is_untold: bool,
    detail: Option<Arc<Detail>>,
    notices: Vec<String>,
    /// Why what it leaves is not on disk.
    unsaved: Option<Status>,
}

#[derive(Debug, Clone)]
struct Ended {
    at: Moment,
    result: Result<Option<Arc<Outcome>>, Status>,
}

impl OperationStatus {
    /// Whether the operation has ended, so that its status changes no more, but for notices of what could not be saved.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// The result; `None` before the end, after a failure, and for requests without one.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        let ended = self.ended.as_ref()?;
        ended.result.as_ref().ok()?.as_deref()
    }

    /// The status of a failure or cancellation; `None` before the end and after success.
    #[must_use]
    pub fn error(&self) -> Option<&Status> {
        self.ended.as_ref()?.result.as_ref().err()
    }

    /// The status that streams end with: that of a failure, or of what could not be saved.
    #[must_use]
    pub fn last_status(&self) -> Option<&Status> {
        self.error().or(self.unsaved.as_ref())
    }

    /// Progress within the current stage; `None` until the work reports any.
    #[must_use]
    pub fn progress(&self) -> Option<&v1::OperationProgress> {
        self.progress.as_ref()
    }

    /// What is known before the end, such as a load's plan.
    #[must_use]
    pub fn detail(&self) -> Option<&Detail> {
        self.detail.as_deref()
    }

    fn add_notice(&mut self, text: String) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(text);
        }
    }

    /// Whether followers that sleep have not been woken for the latest progress.
    #[must_use]
    pub fn is_untold(&self) -> bool {
        self.is_untold
    }

    /// Whether followers are woken for this progress: at once for a new stage or item, else at most every
    /// [`PROGRESS_INTERVAL`].
    fn is_due(&mut self, is_new: bool) -> bool {
        let told = self.progress_told;
        let is_due = is_new || told.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL);
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

/// A point in time by the monotonic clock, for durations, and by the wall clock, for people.
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
            saved: OnceLock::new(),
            recorded: OnceLock::new(),
            earlier: None,
            changes,
        }
    }

    /// An operation of an earlier daemon, by its last picture. One that was under way then has failed.
    pub(super) fn of_earlier_daemon(mut picture: v1::Operation, changes: ChangeNotifier) -> Self {
        let kind = picture.kind();
        if picture.is_active() {
            let status = Status::from(Failure::Interrupted { kind });
            picture.set_state(v1::OperationState::Failed);
            picture.error = Some(operation_error(&status));
        }
        let result = match &picture.error {
            Some(error) if picture.state() != v1::OperationState::Done => {
                Err(earlier_status(error))
            }
            _ => Ok(picture.outcome.clone().map(Arc::new)),
        };
        let description = OperationDescription {
            kind,
            model: picture.model.clone(),
            input_path: picture.input_path.clone(),
            output_path: picture.output_path.clone(),
            threads: picture.threads.map(|threads| threads as usize),
            caller: None,
        };
        // It has ended, so there is nothing to stop.
        let cancel: Option<CancelFn> = match picture.is_cancellable {
            true => Some(Box::new(|| {})),
            false => None,
        };
        let mut earlier = Self::new(picture.operation_id, description, cancel, changes);
        earlier.status.send_modify(|status| {
            status.ended = Some(Ended {
                at: Moment::now(),
                result,
            });
        });
        earlier.earlier = Some(Box::new(picture));
        earlier
    }

    /// The operation's id, counted from 1.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Kind of work.
    #[must_use]
    pub fn kind(&self) -> v1::OperationKind {
        self.description.kind
    }

    /// What was known before it began.
    #[must_use]
    pub fn description(&self) -> &OperationDescription {
        &self.description
    }

    /// Whether the operation waits or runs.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.status.borrow().has_ended()
    }

    /// A receiver of the status, now and after each change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<OperationStatus> {
        self.status.subscribe()
    }

    /// Returns once the operation has ended, with the status that it ended with.
    pub async fn ended(&self) -> OperationStatus {
        let mut statuses = self.subscribe();
        let ended = statuses.wait_for(OperationStatus::has_ended).await;
        ended.expect("the sender lives in the operation").clone()
    }

    /// Returns once it is on disk that the operation began, if that is kept.
    pub async fn begin_saved(&self) {
        if let Some(recorded) = self.recorded.get() {
            recorded.begin.cancelled().await;
        }
    }

    /// Returns once it is on disk that the operation ended, and what it leaves there, if it leaves anything.
    pub async fn saved(&self) {
        if let Some(saved) = self.saved.get() {
            saved.cancelled().await;
        }
        if let Some(recorded) = self.recorded.get() {
            recorded.end.cancelled().await;
        }
    }

    /// Whether the operation has ended, and that and what it leaves is on disk.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !self.is_active() && self.is_saved()
    }

    fn is_saved(&self) -> bool {
        let recorded = self.recorded.get();
        self.saved.get().is_none_or(CancellationToken::is_cancelled)
            && recorded.is_none_or(|recorded| recorded.end.is_cancelled())
    }

    /// Sets the signals that begin and end are on disk. Only the first ones count.
    pub(super) fn is_recorded_at(&self, recorded: Recorded) {
        let _ = self.recorded.set(recorded);
    }

    /// The signals that begin and end are on disk.
    pub(super) fn recorded(&self) -> Option<&Recorded> {
        self.recorded.get()
    }

    /// Sets the signal that what it leaves on disk is written. Only the first one counts.
    pub(super) fn is_saved_at(&self, saved: CancellationToken) {
        let _ = self.saved.set(saved);
    }

    /// Says what could not be saved. This is known only after the end, and before [`Operation::saved`] returns.
    pub(super) fn not_saved(&self, unsaved: Unsaved) {
        self.status.send_modify(|status| match unsaved {
            // Beyond the bound on notices, by one.
            Unsaved::Notice(notice) => status.notices.push(notice),
            Unsaved::Failure(failure) => status.unsaved = Some(failure.into()),
        });
        self.changes.tell();
    }

    /// How long the operation has run; 0 while it waits.
    pub(super) fn elapsed_ms(&self) -> f64 {
        let started = self.status.borrow().started;
        started.map_or(0.0, |started| ms(started.at, Instant::now()))
    }

    /// Time since the operation was asked for.
    pub(crate) fn age(&self) -> Duration {
        self.created.at.elapsed()
    }

    /// Tokens of a request's prompt; 0 for all else, and before they are counted.
    pub(crate) fn prompt_tokens(&self) -> usize {
        match self.status.borrow().detail.as_deref() {
            Some(Detail::Request(request)) => request.prompt_tokens as usize,
            _ => 0,
        }
    }

    /// Bytes of weights that a load has read, and the total where it is known; `(0, None)` until it reads.
    #[must_use]
    pub fn loaded_bytes(&self) -> (u64, Option<u64>) {
        let status = self.status.borrow();
        let step = status.progress.as_ref();
        let step = step.filter(|step| step.stage() == v1::OperationStage::Loading);
        step.map_or((0, None), |step| (step.done, step.total))
    }

    /// Asks the operation to stop. False when it had ended.
    ///
    /// # Errors
    /// When its kind cannot be stopped.
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

    /// Marks the operation as running.
    pub fn start(&self) {
        self.change_and_tell(|status| status.started = Some(Moment::now()));
    }

    /// Sets the progress. Followers are woken for it at most every 50 ms, and at once for a new stage or item.
    pub fn progress(&self, progress: v1::OperationProgress) {
        self.change(|status| {
            let before = status.progress.as_ref();
            let is_new = before.is_none_or(|before| {
                before.stage != progress.stage || before.item != progress.item
            });
            status.progress = Some(progress);
            status.is_due(is_new)
        });
    }

    /// Changes a request's detail. Followers are woken for it at most every 50 ms.
    pub fn request(&self, change: impl FnOnce(&mut v1::RequestDetail)) {
        self.change(|status| {
            let detail = status
                .detail
                .get_or_insert_with(|| Arc::new(Detail::Request(v1::RequestDetail::default())));
            if let Detail::Request(request) = Arc::make_mut(detail) {
                change(request);
            }
            status.is_due(false)
        });
    }

    /// Sets the number of requests ahead of a waiting request.
    pub fn queued(&self, ahead: usize) {
        self.change(|status| {
            status.ahead = Some(ahead);
            true
        });
    }

    /// The model that it is for; empty where nobody knows.
    #[must_use]
    pub fn model(&self) -> String {
        let of_request = self.status.borrow().model.clone();
        of_request.unwrap_or_else(|| self.description.model.clone())
    }

    /// Sets the model that a request is made for.
    pub fn made_for(&self, model: &str) {
        self.change(|status| {
            status.model = Some(model.to_owned());
            true
        });
    }

    /// Whether the operation has begun to run.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.status.borrow().started.is_some()
    }

    /// Sets what is known before the end. Followers hear of it at once.
    pub fn detail(&self, detail: Detail) {
        self.change_and_tell(|status| status.detail = Some(Arc::new(detail)));
    }

    /// Adds a notice for followers. Only the first [`NOTICES_MAX`] are kept.
    pub fn notice(&self, text: impl Into<String>) {
        self.change_and_tell(|status| status.add_notice(text.into()));
    }

    /// Ends the operation. False if it had ended before.
    pub(super) fn end(&self, result: Result<Option<Outcome>, Status>) -> bool {
        self.change(|status| {
            // Work reports its progress now and then, so the last report may be short of the total. A generation that ends
            // with an EOS token is really short of it.
            if let (Ok(_), Some(progress)) = (&result, &mut status.progress)
                && progress.unit() != v1::ProgressUnit::Positions
            {
                progress.done = progress.total.unwrap_or(progress.done);
            }
            status.ended = Some(Ended {
                at: Moment::now(),
                result: result.map(|outcome| outcome.map(Arc::new)),
            });
            true
        })
    }

    /// The wire message of the current status. Until an end is on disk, it runs.
    #[must_use]
    pub fn to_wire(&self) -> v1::Operation {
        // Saved first: what cannot be saved is said before.
        let is_saved = self.is_saved();
        let mut status = self.status.borrow().clone();
        status.ended.take_if(|_| !is_saved);
        self.picture(&status)
    }

    /// The picture that outlives the daemon: what it shows while it runs and the layers of plans are left out, and long words
    /// are cut.
    pub(super) fn lasting_picture(&self) -> v1::Operation {
        let mut picture = self.picture(&self.status.borrow());
        let is_lasting = matches!(picture.detail, Some(Detail::PullPlan(_)));
        picture.detail.take_if(|_| !is_lasting);
        picture
            .progress
            .take_if(|_| picture.ended_unix_ms.is_none());
        let plan = match &mut picture.outcome {
            Some(Outcome::Load(load)) => load.plan.as_mut(),
            Some(Outcome::Apply(applied)) => applied.plan.as_mut(),
            _ => None,
        };
        if let Some(plan) = plan {
            plan.layers.clear();
        }
        let words = picture.error.iter_mut().map(|error| &mut error.message);
        for text in words.chain(&mut picture.notices) {
            if let Some((end, _)) = text.char_indices().nth(LASTING_CHARS_MAX) {
                text.truncate(end);
            }
        }
        picture
    }

    /// The wire message of the given status. A follower passes the status that it saw: the current one may already contain
    /// an end whose writes are not on disk yet.
    #[must_use]
    pub fn picture(&self, status: &OperationStatus) -> v1::Operation {
        if let Some(earlier) = &self.earlier {
            return (**earlier).clone();
        }
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
            error: status.last_status().map(operation_error),
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

    /// Changes the status unless the operation has ended. `change` returns whether followers are woken. Returns whether they
    /// were.
    fn change(&self, change: impl FnOnce(&mut OperationStatus) -> bool) -> bool {
        self.status.send_if_modified(|status| {
            if status.has_ended() {
                return false;
            }
            let wakes = change(status);
            status.is_untold = !wakes;
            wakes
        })
    }

    /// As [`Operation::change`], for what followers and watchers of the whole daemon hear of at once.
    fn change_and_tell(&self, change: impl FnOnce(&mut OperationStatus)) {
        let has_changed = self.change(|status| {
            change(status);
            true
        });
        if has_changed {
            self.changes.tell();
        }
    }
}

/// Progress in a stage. A `total` of 0 means that it is not known yet.
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
        total: Some(total).filter(|total| *total > 0),
    }
}

fn ms(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1000.0
}

/// The final gRPC status of an operation's streams as a message, for lists and snapshots.
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
