//! Work of the daemon that takes long, outcomes of work that ended, and the list of models.

mod work;

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use sluice_proto::v1::{Model, ModelState, Operation, OperationKind, OperationState, Snapshot};
use sluice_shared::bandwidth::Bandwidth;

pub use work::{ProgressUnit, Work, WorkProgress, WorkTask};

/// Most ended work that is listed.
pub const ENDED_MAX: usize = 32;

/// State of the jobs page.
#[derive(Debug)]
pub struct Jobs {
    /// Models as the daemon last listed them; `None` before the first answer.
    pub models: Option<Vec<Model>>,
    /// Time at which the models were last asked for, on the dashboard's clock.
    pub(super) asked_at_ms: u64,
    /// Which list has the keyboard.
    pub list: JobsPane,
    /// The selected row; `None` selects the first.
    pub selected: Option<WorkRow>,
    /// Name of the selected model; `None` selects the first.
    pub model: Option<String>,
    /// Work that ended, the latest first; at most [`ENDED_MAX`].
    pub ended: VecDeque<EndedWork>,
    bandwidths: BTreeMap<WorkTask, Bandwidth>,
    /// Origin of the dashboard's clock, for bandwidths.
    begun: Instant,
    serial: u64,
}

/// The lists of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JobsPane {
    /// Work that runs, then work that ended.
    #[default]
    Work,
    /// Models that the daemon knows.
    Models,
}

/// A row of the list of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkRow {
    /// Work that runs.
    Running(WorkTask),
    /// Work that ended, by [`EndedWork::serial`].
    Ended(u64),
}

/// Work that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedWork {
    /// Counts the work that ended, to identify rows.
    pub serial: u64,
    /// What the work was.
    pub task: WorkTask,
    /// Kind of work, in a word.
    pub kind: String,
    /// What the work was done on.
    pub what: String,
    /// Time that it took in milliseconds, where that is known.
    pub elapsed_ms: Option<f64>,
    /// Its outcome, as far as it is known.
    pub outcome: WorkOutcome,
    /// Whether an earlier daemon did it, so that its id now means other work.
    is_past: bool,
}

/// Outcome of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkOutcome {
    /// The daemon has been asked and has not answered.
    Pending,
    /// It succeeded; the result in words.
    Done(String),
    /// It was cancelled.
    Cancelled,
    /// It failed; the reason.
    Failed(String),
    /// The daemon does not remember it, or is gone.
    Unknown,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            models: None,
            asked_at_ms: 0,
            list: JobsPane::default(),
            selected: None,
            model: None,
            ended: VecDeque::new(),
            bandwidths: BTreeMap::new(),
            begun: Instant::now(),
            serial: 0,
        }
    }
}

impl Jobs {
    /// Records the progress of running work, for its rate.
    pub(super) fn see(&mut self, works: &[Work], now_ms: u64) {
        let now = self.begun + Duration::from_millis(now_ms);
        self.bandwidths
            .retain(|task, _| works.iter().any(|work| work.task == *task));
        for work in works {
            if let Some(far) = &work.progress {
                let rate = self.bandwidths.entry(work.task.clone()).or_default();
                rate.record(now, far.done);
            }
        }
    }

    /// Rate of work in its [`ProgressUnit`] per second; `None` until it can be told.
    #[must_use]
    pub fn rate(&self, task: &WorkTask) -> Option<f64> {
        self.bandwidths.get(task)?.bytes_per_second()
    }

    /// Estimate of the time left in milliseconds; `None` without a total or a rate.
    #[must_use]
    pub fn left_ms(&self, work: &Work) -> Option<f64> {
        let far = work.progress.as_ref().filter(|far| far.total > 0)?;
        let rate = self.rate(&work.task).filter(|rate| *rate > 0.0)?;
        Some(far.total.saturating_sub(far.done) as f64 * 1000.0 / rate)
    }

    /// Lists work that left the snapshot as ended. Returns whether the daemon must be asked for outcomes of jobs. `is_own` tells
    /// our own measurements, whose results come over their own stream.
    pub(super) fn compare(
        &mut self,
        before: &Snapshot,
        after: &Snapshot,
        is_own: impl Fn(&Operation) -> bool,
    ) -> bool {
        let is_new_daemon = is_started_anew(before, after);
        let mut asks = false;
        if is_new_daemon {
            // A restarted daemon numbers its jobs anew and knows nothing of these.
            for ended in &mut self.ended {
                ended.is_past = true;
                if ended.outcome == WorkOutcome::Pending {
                    ended.outcome = WorkOutcome::Unknown;
                }
            }
        }
        for job in before
            .operations
            .iter()
            .filter(|job| job.kind().is_on_files())
        {
            let mut others = after.operations.iter();
            let goes_on = others.any(|other| other.operation_id == job.operation_id);
            if is_new_daemon || !goes_on {
                asks |= !is_new_daemon;
                let outcome = match is_new_daemon {
                    true => WorkOutcome::Unknown,
                    false => WorkOutcome::Pending,
                };
                self.end(Work::of_job(job), outcome);
            }
        }
        for row in before.requests().filter(|row| !is_own(row)) {
            let now = after.requests();
            let mut now = now.filter(|now| !is_new_daemon && now.operation_id == row.operation_id);
            let outcome = match now.next() {
                Some(now) => request_outcome(now),
                None if is_new_daemon => Some(WorkOutcome::Unknown),
                // `Requests::compare` has the daemon asked for the end of this request; `learn_requests` takes the answer.
                None => Some(WorkOutcome::Pending),
            };
            if let Some(work) = Work::of_request(row, None)
                && let Some(outcome) = outcome
            {
                self.end(work, outcome);
            }
        }
        if let Some(outcome) = loaded(before, after)
            && let Some(work) = Work::of_load(before)
        {
            self.end(work, outcome);
        }
        if let (Some(_), None) = (before.weight_switch, after.weight_switch)
            && let Some(work) = Work::of_switch(before, None)
        {
            self.end(work, switched(before, after));
        }
        asks
    }

    /// Whether the outcome of any work is still pending.
    pub(super) fn is_asking(&self) -> bool {
        let mut ended = self.ended.iter();
        ended.any(|ended| ended.outcome == WorkOutcome::Pending)
    }

    /// Takes the daemon's list of jobs: outcomes of pending ones, and jobs that ended before the dashboard started.
    pub(super) fn learn(&mut self, jobs: &[Operation]) {
        for ended in &mut self.ended {
            let WorkTask::Job(id) = ended.task else {
                continue;
            };
            if ended.outcome != WorkOutcome::Pending {
                continue;
            }
            let job = jobs.iter().find(|job| job.operation_id == id);
            ended.elapsed_ms = job.map(|job| job.elapsed_ms).or(ended.elapsed_ms);
            ended.outcome = job.and_then(outcome).unwrap_or(WorkOutcome::Unknown);
        }
        for job in jobs {
            let work = Work::of_job(job);
            if let Some(outcome) = outcome(job).filter(|_| !self.lists(&work.task)) {
                self.end(work, outcome);
            }
        }
    }

    /// Takes outcomes of scores and measurements from the daemon's list of requests. `is_own` tells our own measurements, whose
    /// results come over their own stream. Returns whether there was anything new.
    pub(super) fn learn_requests(
        &mut self,
        rows: &[Operation],
        is_own: impl Fn(&Operation) -> bool,
    ) -> bool {
        let mut is_new = false;
        for ended in &mut self.ended {
            let WorkTask::Request(id) = ended.task else {
                continue;
            };
            if ended.outcome != WorkOutcome::Pending {
                continue;
            }
            let row = rows.iter().find(|row| row.operation_id == id);
            ended.elapsed_ms = row.map(|row| row.elapsed_ms).or(ended.elapsed_ms);
            ended.outcome = row
                .and_then(request_outcome)
                .unwrap_or(WorkOutcome::Unknown);
            is_new = true;
        }
        for row in rows {
            if let Some(work) = Work::of_any_request(row, None)
                && let Some(outcome) = request_outcome(row)
                && !self.lists(&work.task)
                && !is_own(row)
            {
                self.end(work, outcome);
                is_new = true;
            }
        }
        is_new
    }

    /// Whether work of the present daemon is listed as ended.
    fn lists(&self, task: &WorkTask) -> bool {
        let mut ended = self.ended.iter();
        ended.any(|ended| !ended.is_past && ended.task == *task)
    }

    /// Takes the daemon's list of models. Outcomes of downloads are read from how a model's state changed.
    pub(super) fn list(&mut self, models: Vec<Model>) {
        for before in self.models.take().into_iter().flatten() {
            let after = models.iter().find(|model| model.name == before.name);
            let after = after.map(Model::state);
            if before.state() == ModelState::Pulling
                && after != Some(ModelState::Pulling)
                && let Some(work) = Work::of_pull(&before, &[])
            {
                let outcome = match after {
                    Some(ModelState::Partial) => {
                        WorkOutcome::Failed("the download is incomplete; p resumes it".to_owned())
                    }
                    Some(_) => WorkOutcome::Done("is there".to_owned()),
                    None => WorkOutcome::Unknown,
                };
                self.end(work, outcome);
            }
        }
        self.models = Some(models);
    }

    /// Lists work as ended.
    pub(super) fn end(&mut self, work: Work, outcome: WorkOutcome) {
        self.serial += 1;
        self.ended.push_front(EndedWork {
            serial: self.serial,
            task: work.task,
            kind: work.kind,
            what: work.what,
            elapsed_ms: work.elapsed_ms,
            outcome,
            is_past: false,
        });
        self.ended.truncate(ENDED_MAX);
    }
}

/// Outcome of a request; `None` while it waits or runs.
fn request_outcome(row: &Operation) -> Option<WorkOutcome> {
    match row.state() {
        OperationState::Queued | OperationState::Running => None,
        OperationState::Done => Some(WorkOutcome::Done("done".to_owned())),
        OperationState::Cancelled => Some(WorkOutcome::Cancelled),
        OperationState::Failed => Some(WorkOutcome::Failed(row.error_message().to_owned())),
        OperationState::Unspecified => Some(WorkOutcome::Unknown),
    }
}

/// Outcome of a job; `None` while it waits or runs.
fn outcome(job: &Operation) -> Option<WorkOutcome> {
    match job.state() {
        OperationState::Done => Some(WorkOutcome::Done(done(job))),
        OperationState::Cancelled => Some(WorkOutcome::Cancelled),
        OperationState::Failed => Some(WorkOutcome::Failed(job.error_message().to_owned())),
        OperationState::Queued | OperationState::Running | OperationState::Unspecified => None,
    }
}

/// The result of a job that was done, in words.
fn done(job: &Operation) -> String {
    match job.kind() {
        // A verification that found damage is done, too; only its details tell.
        OperationKind::Verify => format!(
            "verified; `sluice jobs watch {}` shows the details",
            job.operation_id
        ),
        _ => "done".to_owned(),
    }
}

/// Outcome of the load that was under way before; `None` where none was, or it goes on.
fn loaded(before: &Snapshot, after: &Snapshot) -> Option<WorkOutcome> {
    let before = before.model.as_ref()?;
    if before.state() != ModelState::Loading {
        return None;
    }
    let after = after.model.as_ref();
    let is_it = after.is_some_and(|after| after.name == before.name);
    match after.map(|after| (after, after.state())) {
        Some((_, ModelState::Loading)) if is_it => None,
        Some((_, ModelState::Ready)) if is_it => Some(WorkOutcome::Done("loaded".to_owned())),
        Some((after, ModelState::Failed)) if is_it => {
            Some(WorkOutcome::Failed(after.error.clone()))
        }
        // Another model or none is loaded now: the load was cancelled or failed, and the snapshot does not tell which.
        _ => Some(WorkOutcome::Unknown),
    }
}

fn switched(before: &Snapshot, after: &Snapshot) -> WorkOutcome {
    let wanted = before.switch_target.as_ref();
    let plan = after.plan.as_ref();
    match wanted.zip(plan) {
        Some((wanted, plan))
            if wanted.level == plan.level && wanted.budget_bytes == plan.budget_bytes =>
        {
            WorkOutcome::Done("in force".to_owned())
        }
        _ => WorkOutcome::Unknown,
    }
}

/// Whether the daemon was restarted between two snapshots. The process id alone does not tell: in a container it is the same
/// each time.
pub(super) fn is_started_anew(before: &Snapshot, after: &Snapshot) -> bool {
    match (&before.daemon, &after.daemon) {
        (Some(before), Some(after)) => {
            before.process_id != after.process_id || after.uptime_ms < before.uptime_ms
        }
        _ => false,
    }
}
