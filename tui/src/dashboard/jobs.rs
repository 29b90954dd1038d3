//! Work of the daemon that takes long, outcomes of work that ended, and the list of models.

mod work;

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use sluice_proto::v1::{Model, Operation, OperationKind, OperationStage, Snapshot};
use sluice_shared::bandwidth::Bandwidth;

pub use work::{Work, WorkProgress};

/// Most ended work that is listed.
pub const ENDED_MAX: usize = 32;

/// State of the jobs page.
#[derive(Debug)]
pub struct Jobs {
    /// Models as the daemon last listed them; `None` before the first answer.
    pub models: Option<Vec<Model>>,
    /// Which list has the keyboard.
    pub list: JobsPane,
    /// The selected row; `None` selects the first.
    pub selected: Option<WorkRow>,
    /// Name of the selected model; `None` selects the first.
    pub model: Option<String>,
    /// Work that ended, the latest first; at most [`ENDED_MAX`].
    pub ended: VecDeque<EndedWork>,
    /// By operation and stage: a stage counts its own units.
    bandwidths: BTreeMap<(u64, OperationStage), Bandwidth>,
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
    /// Work that runs, by its operation's id.
    Running(u64),
    /// Work that ended, by [`EndedWork::serial`].
    Ended(u64),
}

/// Work that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedWork {
    /// Counts the work that ended, to identify rows.
    pub serial: u64,
    /// Its operation's id.
    pub operation_id: u64,
    /// Kind of work, in a word.
    pub kind: &'static str,
    /// What the work was done on.
    pub what: String,
    /// Milliseconds that it took.
    pub elapsed_ms: f64,
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
        let key = |work: &Work| Some((work.operation_id, work.progress?.stage));
        self.bandwidths
            .retain(|known, _| works.iter().any(|work| key(work) == Some(*known)));
        for work in works {
            if let Some(far) = &work.progress {
                let known = (work.operation_id, far.stage);
                self.bandwidths
                    .entry(known)
                    .or_default()
                    .record(now, far.done);
            }
        }
    }

    /// Rate of work in units of its progress per second; `None` until it can be told.
    #[must_use]
    pub fn rate(&self, work: &Work) -> Option<f64> {
        let known = (work.operation_id, work.progress?.stage);
        self.bandwidths.get(&known)?.bytes_per_second()
    }

    /// Estimate of the time left in milliseconds; `None` without a total or a rate.
    #[must_use]
    pub fn left_ms(&self, work: &Work) -> Option<f64> {
        let far = work.progress.as_ref().filter(|far| far.total > 0)?;
        let rate = self.rate(work).filter(|rate| *rate > 0.0)?;
        Some(far.total.saturating_sub(far.done) as f64 * 1000.0 / rate)
    }

    /// Lists work that left the snapshot as ended. Returns whether the daemon must be asked for its outcome.
    pub(super) fn compare(&mut self, before: &Snapshot, after: &Snapshot) -> bool {
        let is_new_daemon = is_started_anew(before, after);
        if is_new_daemon {
            // A restarted daemon numbers its operations anew and knows nothing of these.
            for ended in &mut self.ended {
                ended.is_past = true;
                if ended.outcome == WorkOutcome::Pending {
                    ended.outcome = WorkOutcome::Unknown;
                }
            }
        }
        let mut asks = false;
        for operation in &before.operations {
            let mut others = after.operations.iter();
            let goes_on = others.any(|other| other.operation_id == operation.operation_id);
            if let Some(work) = Work::of(operation)
                // The daemon's list may have told of the end before this snapshot did.
                && (is_new_daemon || !goes_on && !self.lists(work.operation_id))
            {
                asks |= !is_new_daemon;
                let outcome = match is_new_daemon {
                    true => WorkOutcome::Unknown,
                    false => WorkOutcome::Pending,
                };
                self.end(work, outcome);
            }
        }
        asks
    }

    /// Whether the outcome of any work is still pending.
    pub(super) fn is_asking(&self) -> bool {
        let mut ended = self.ended.iter();
        ended.any(|ended| ended.outcome == WorkOutcome::Pending)
    }

    /// Takes the daemon's list of operations: outcomes of pending ones, and those that ended before the dashboard started. Returns
    /// whether a measurement of fidelity is among them.
    pub(super) fn learn(&mut self, operations: &[Operation]) -> bool {
        let mut is_measured = false;
        for ended in &mut self.ended {
            // An earlier list may have been lost with the connection, so outcomes that are not known are looked for, too.
            let is_open = matches!(ended.outcome, WorkOutcome::Pending | WorkOutcome::Unknown);
            if ended.is_past || !is_open {
                continue;
            }
            let mut all = operations.iter();
            let operation = all.find(|operation| operation.operation_id == ended.operation_id);
            if let Some(operation) = operation {
                is_measured |= operation.kind() == OperationKind::MeasureFidelity;
                ended.elapsed_ms = operation.elapsed_ms;
            }
            let outcome = operation.and_then(WorkOutcome::of);
            ended.outcome = outcome.unwrap_or(WorkOutcome::Unknown);
        }
        let mut ended: Vec<_> = operations
            .iter()
            .filter_map(|operation| {
                let (outcome, work) = (WorkOutcome::of(operation)?, Work::of(operation)?);
                Some((operation.kind(), work, outcome))
            })
            .collect();
        // The daemon remembers more than are listed here; older ones would push out the newest.
        ended.drain(..ended.len().saturating_sub(ENDED_MAX));
        for (kind, work, outcome) in ended {
            if !self.lists(work.operation_id) {
                is_measured |= kind == OperationKind::MeasureFidelity;
                self.end(work, outcome);
            }
        }
        is_measured
    }

    /// Whether work of the present daemon is listed as ended.
    pub(super) fn lists(&self, operation_id: u64) -> bool {
        let mut ended = self.ended.iter();
        ended.any(|ended| !ended.is_past && ended.operation_id == operation_id)
    }

    /// Lists work as ended.
    fn end(&mut self, work: Work, outcome: WorkOutcome) {
        self.serial += 1;
        self.ended.push_front(EndedWork {
            serial: self.serial,
            operation_id: work.operation_id,
            kind: work.kind,
            what: work.what,
            elapsed_ms: work.elapsed_ms,
            outcome,
            is_past: false,
        });
        self.ended.truncate(ENDED_MAX);
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
