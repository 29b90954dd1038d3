//! Work that runs, gathered from snapshots, the list of models, and our own streams.

use sluice_proto::v1::{
    Model, ModelState, Operation, OperationKind, OperationProgress, OperationState, Snapshot,
};
use sluice_shared::units;

use super::super::levels::RunningMeasurement;

/// Identifies work of one daemon.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkTask {
    /// The load of a model; there is at most one.
    Load,
    /// A change of the plan; there is at most one.
    Switch,
    /// A score or a measurement, by its operation's id.
    Request(u64),
    /// Work on files, by its operation's id.
    Job(u64),
    /// A download, by the model's name.
    Pull(String),
}

/// Work that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// What the work is.
    pub task: WorkTask,
    /// Kind of work, in a word.
    pub kind: String,
    /// What the work is done on.
    pub what: String,
    /// Progress, where it is known.
    pub progress: Option<WorkProgress>,
    /// Time since it began in milliseconds, where that is known.
    pub elapsed_ms: Option<f64>,
    /// Number of threads that it uses, where that is known.
    pub threads: Option<u32>,
    /// The item that is worked on, such as a tensor or a file; empty where that is not known.
    pub at: String,
}

/// Progress of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkProgress {
    /// Units done.
    pub done: u64,
    /// Units in all; 0 until it is known.
    pub total: u64,
    /// The unit that is counted.
    pub unit: ProgressUnit,
}

/// Unit of progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressUnit {
    /// Bytes of files or weights.
    Bytes,
    /// Passes of a measurement.
    Passes,
    /// Steps of a switch.
    Steps,
}

impl WorkProgress {
    /// The progress in words: `1.00 GiB of 4.00 GiB`.
    #[must_use]
    pub fn words(&self) -> String {
        let count = |count: u64| match self.unit {
            ProgressUnit::Bytes => units::bytes(count),
            ProgressUnit::Passes | ProgressUnit::Steps => units::count(count),
        };
        let total = match self.total {
            0 => "unknown".to_owned(),
            total => count(total),
        };
        let unit = match self.unit {
            ProgressUnit::Bytes => "",
            ProgressUnit::Passes => " passes",
            ProgressUnit::Steps => " steps",
        };
        format!("{} of {total}{unit}", count(self.done))
    }

    /// Share that is done, from 0 to 1; `None` until the total is known.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.total > 0).then(|| (self.done as f64 / self.total as f64).min(1.0))
    }
}

impl Work {
    pub(in super::super) fn of_job(job: &Operation) -> Self {
        let what = match job.output_path.as_str() {
            "" => job.input_path.clone(),
            output => format!("{} → {output}", job.input_path),
        };
        let progress = job.progress.clone().unwrap_or_default();
        Self {
            task: WorkTask::Job(job.operation_id),
            kind: job.kind().to_string(),
            what: format!("job {}: {what}", job.operation_id),
            progress: job.progress.as_ref().map(bytes),
            elapsed_ms: Some(job.elapsed_ms),
            threads: job.threads,
            at: progress.item,
        }
    }

    /// The work of a score or measurement that waits or runs. The progress of our own comes from its stream.
    pub(in super::super) fn of_request(
        row: &Operation,
        own: Option<&RunningMeasurement>,
    ) -> Option<Self> {
        let is_active = matches!(
            row.state(),
            OperationState::Queued | OperationState::Running
        );
        Self::of_any_request(row, own).filter(|_| is_active)
    }

    /// The same for one that may have ended.
    pub(super) fn of_any_request(
        row: &Operation,
        own: Option<&RunningMeasurement>,
    ) -> Option<Self> {
        let waits = row.state() == OperationState::Queued;
        let kind = match row.kind() {
            OperationKind::Generate => return None,
            OperationKind::MeasureFidelity => "fidelity",
            _ => "score",
        };
        let words = if waits { ", waits" } else { "" };
        let what = match own {
            Some(own) => format!("request {}, level {}{words}", row.operation_id, own.level),
            None => format!("request {}{words}", row.operation_id),
        };
        Some(Self {
            task: WorkTask::Request(row.operation_id),
            kind: kind.to_owned(),
            what,
            progress: own.filter(|own| own.total > 0).map(|own| WorkProgress {
                done: own.done.into(),
                total: own.total.into(),
                unit: ProgressUnit::Passes,
            }),
            elapsed_ms: Some(if waits { row.queued_ms } else { row.elapsed_ms }),
            threads: None,
            at: String::new(),
        })
    }

    /// The work of our own measurement, when it ends.
    pub(in super::super) fn of_measurement(measuring: &RunningMeasurement) -> Self {
        Self {
            task: WorkTask::Request(measuring.request_id.unwrap_or(0)),
            kind: "fidelity".to_owned(),
            what: format!("level {}", measuring.level),
            progress: None,
            elapsed_ms: None,
            threads: None,
            at: String::new(),
        }
    }

    /// The load that is under way, if any.
    pub(in super::super) fn of_load(snapshot: &Snapshot) -> Option<Self> {
        let model = snapshot.model.as_ref()?;
        (model.state() == ModelState::Loading).then(|| Self {
            task: WorkTask::Load,
            kind: "load".to_owned(),
            what: model.name.clone(),
            progress: model.progress_in(&snapshot.operations).map(bytes),
            elapsed_ms: None,
            threads: None,
            at: String::new(),
        })
    }

    /// The switch that is under way. Before its first step weights are converted, which is known only of a change that was asked
    /// for here.
    pub(in super::super) fn of_switch(
        snapshot: &Snapshot,
        converting: Option<(u64, u64)>,
    ) -> Option<Self> {
        let steps = snapshot.weight_switch.map(|switch| switch.total_steps);
        let (kind, far) = match (snapshot.weight_switch, converting) {
            (_, Some((done, total))) if steps.unwrap_or(0) == 0 => {
                let unit = ProgressUnit::Bytes;
                ("convert", Some(WorkProgress { done, total, unit }))
            }
            (Some(switch), _) => {
                let (done, total) = (switch.done_steps.into(), switch.total_steps.into());
                let unit = ProgressUnit::Steps;
                let far = WorkProgress { done, total, unit };
                ("switch", Some(far).filter(|far| far.total > 0))
            }
            (None, _) => return None,
        };
        let what = match &snapshot.switch_target {
            Some(target) => format!(
                "to {} within {}",
                target.level(),
                units::bytes(target.budget_bytes)
            ),
            None => "to another level".to_owned(),
        };
        Some(Self {
            task: WorkTask::Switch,
            kind: kind.to_owned(),
            what,
            progress: far,
            elapsed_ms: None,
            threads: None,
            at: String::new(),
        })
    }

    /// The download of a model, if it is being downloaded.
    pub(in super::super) fn of_pull(model: &Model, operations: &[Operation]) -> Option<Self> {
        (model.state() == ModelState::Pulling).then(|| {
            let step = model.progress_in(operations);
            Self {
                task: WorkTask::Pull(model.name.clone()),
                kind: "download".to_owned(),
                what: model.name.clone(),
                progress: step.map(bytes),
                elapsed_ms: None,
                threads: None,
                at: step.map_or_else(String::new, |step| step.item.clone()),
            }
        })
    }
}

fn bytes(step: &OperationProgress) -> WorkProgress {
    WorkProgress {
        done: step.done,
        total: step.total.unwrap_or(0),
        unit: ProgressUnit::Bytes,
    }
}
