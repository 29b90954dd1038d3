//! Long work that runs, gathered from all that the daemon tells.

use sluice_proto::v1::{
    Model, ModelState, Operation, OperationKind, OperationProgress, OperationState, Snapshot,
};
use sluice_shared::units;

use super::super::{levels::RunningMeasurement, state::DashboardState};

/// What work is, to tell it from other work.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkTask {
    /// A model is being loaded.
    Load,
    /// Weights go from one plan to another.
    Switch,
    /// A request that is no generation.
    Request(u64),
    /// A job.
    Job(u64),
    /// A download, by the model's name.
    Pull(String),
}

/// Long work that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// Which.
    pub task: WorkTask,
    /// What kind of work, in a word.
    pub kind: String,
    /// On what.
    pub what: String,
    /// How far it is, where that is known.
    pub progress: Option<WorkProgress>,
    /// How long it has been at work, where that is known.
    pub elapsed_ms: Option<f64>,
    /// Threads that work for it, where that is known.
    pub threads: Option<u32>,
    /// What it is at.
    pub at: String,
}

/// How far something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkProgress {
    /// So much is done.
    pub done: u64,
    /// Of so much; 0 until it is known.
    pub total: u64,
    /// What is counted.
    pub unit: ProgressUnit,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressUnit {
    /// Bytes.
    Bytes,
    /// Passes.
    Passes,
    /// Steps of a switch.
    Steps,
}

impl WorkProgress {
    /// In words: `1.00 GiB of 4.00 GiB`.
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

    /// As a share of the whole, where that is known.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.total > 0).then(|| (self.done as f64 / self.total as f64).min(1.0))
    }
}

/// All that runs, what concerns the whole daemon first.
pub(super) fn running(state: &DashboardState) -> Vec<Work> {
    let mut works = Vec::new();
    let operations = (state.snapshot()).map_or(&[][..], |snapshot| &snapshot.operations);
    let pulls = state.jobs.models.iter().flatten();
    let pulls = pulls.filter_map(|model| Work::of_pull(model, operations));
    let Some(snapshot) = state.snapshot() else {
        return pulls.collect();
    };
    works.extend(Work::of_load(snapshot));
    works.extend(Work::of_switch(snapshot, state.levels.converting));
    let measuring = state.levels.measuring.as_ref();
    for row in snapshot.requests() {
        let own = measuring.filter(|own| own.request_id == Some(row.operation_id));
        works.extend(Work::of_request(row, own));
    }
    works.extend(snapshot.jobs().map(Work::of_job));
    works.extend(pulls);
    works
}

impl Work {
    /// A job.
    pub(super) fn of_job(job: &Operation) -> Self {
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

    /// A request that runs or waits and is no generation; of our own measurement more is known.
    pub(super) fn of_request(row: &Operation, own: Option<&RunningMeasurement>) -> Option<Self> {
        let is_active = matches!(
            row.state(),
            OperationState::Queued | OperationState::Running
        );
        Self::of_any_request(row, own).filter(|_| is_active)
    }

    /// The same of one that may have ended.
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

    /// A measurement of our own.
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

    /// The load that is under way.
    pub(super) fn of_load(snapshot: &Snapshot) -> Option<Self> {
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

    /// The switch that is under way; before its first step weights are converted, where we asked for it so far.
    pub(super) fn of_switch(snapshot: &Snapshot, converting: Option<(u64, u64)>) -> Option<Self> {
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

    /// The download of a model.
    pub(super) fn of_pull(model: &Model, operations: &[Operation]) -> Option<Self> {
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
