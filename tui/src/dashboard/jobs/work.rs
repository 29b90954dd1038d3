//! An operation of the daemon as the list of work shows it.

use sluice_proto::v1::{
    Operation, OperationKind, OperationProgress, OperationStage, OperationState, ProgressUnit,
    operation::{Detail, Outcome},
};
use sluice_shared::units;

use super::{super::levels::LevelFidelity, WorkOutcome};

/// Work that runs, or that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// Its operation's id.
    pub operation_id: u64,
    /// Kind of work, in a word.
    pub kind: &'static str,
    /// What the work is done on.
    pub what: String,
    /// Progress, where it is known.
    pub progress: Option<WorkProgress>,
    /// Milliseconds for which it has waited, or run.
    pub elapsed_ms: f64,
    /// Number of threads that it uses, where that is known.
    pub threads: Option<u32>,
    /// The item that is worked on, such as a tensor or a file; empty where that is not known.
    pub at: String,
}

/// Progress of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkProgress {
    /// The stage that it is about: each counts anew.
    pub stage: OperationStage,
    /// Units done.
    pub done: u64,
    /// Units in all; 0 until it is known.
    pub total: u64,
    /// The unit that is counted.
    pub unit: ProgressUnit,
}

impl WorkProgress {
    fn of(step: &OperationProgress) -> Self {
        Self {
            stage: step.stage(),
            done: step.done,
            total: step.total.unwrap_or(0),
            unit: step.unit(),
        }
    }

    /// The progress in words: `1.00 GiB of 4.00 GiB`, `12 of 48 passes`.
    #[must_use]
    pub fn words(&self) -> String {
        let count = |count: u64| match self.unit {
            ProgressUnit::Bytes => units::bytes(count),
            _ => units::count(count),
        };
        let total = match self.total {
            0 => "unknown".to_owned(),
            total => count(total),
        };
        let unit = match self.unit {
            ProgressUnit::Bytes | ProgressUnit::Unspecified => String::new(),
            unit => format!(" {unit}"),
        };
        format!("{} of {total}{unit}", count(self.done))
    }

    /// A rate in units per second, in words: `256 MiB/s`, `1.5 passes/s`.
    #[must_use]
    pub fn rate_words(&self, rate: f64) -> String {
        match self.unit {
            ProgressUnit::Bytes => format!("{}/s", units::bytes(rate as u64)),
            ProgressUnit::Unspecified => format!("{rate:.1}/s"),
            unit => format!("{rate:.1} {unit}/s"),
        }
    }

    /// Share that is done, from 0 to 1; `None` until the total is known.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.total > 0).then(|| (self.done as f64 / self.total as f64).min(1.0))
    }
}

impl Work {
    /// The operation as work; `None` for a generation, which the lists of requests show.
    pub(in super::super) fn of(operation: &Operation) -> Option<Self> {
        let step = operation.progress.clone().unwrap_or_default();
        let kind = match operation.kind() {
            OperationKind::Generate => return None,
            OperationKind::Apply | OperationKind::Restore => match step.stage() {
                OperationStage::Converting => "convert",
                _ => "switch",
            },
            OperationKind::Score => "score",
            OperationKind::Embed => "embed",
            OperationKind::MeasureFidelity => "fidelity",
            OperationKind::Load => "load",
            OperationKind::Pull => "download",
            OperationKind::Compress => "compress",
            OperationKind::Decompress => "decompress",
            OperationKind::Verify => "verify",
            OperationKind::Prune => "prune",
            OperationKind::Calibrate => "calibrate",
            OperationKind::Optimize => "optimize",
            OperationKind::Remember => "remember",
            OperationKind::Unspecified => "other",
        };
        let waits = operation.state() == OperationState::Queued;
        let mut what = what(operation);
        if waits {
            what += ", waits";
        }
        Some(Self {
            operation_id: operation.operation_id,
            kind,
            what,
            progress: operation.progress.as_ref().map(WorkProgress::of),
            elapsed_ms: match waits {
                true => operation.queued_ms,
                false => operation.elapsed_ms,
            },
            threads: operation.threads,
            at: step.item,
        })
    }
}

fn what(operation: &Operation) -> String {
    let id = operation.operation_id;
    match (operation.kind(), &operation.detail) {
        (OperationKind::MeasureFidelity, Some(Detail::Request(request)))
            if request.level().checked().is_some() =>
        {
            format!("request {id}, level {}", request.level())
        }
        (kind, _) if kind.is_request() => format!("request {id}"),
        (kind, _) if kind.is_on_files() => {
            let output = match operation.output_path.as_str() {
                "" => String::new(),
                output => format!(" → {output}"),
            };
            format!("job {id}: {}{output}", operation.input_path)
        }
        (OperationKind::Apply | OperationKind::Restore, Some(Detail::PlannedChange(change))) => {
            let plan = change.plan.clone().unwrap_or_default();
            let budget = units::bytes(plan.budget_bytes);
            format!("to {} within {budget}", plan.level())
        }
        (OperationKind::Apply | OperationKind::Restore, _) => "to another level".to_owned(),
        _ => operation.model.clone(),
    }
}

impl WorkOutcome {
    /// The outcome of an operation; `None` while it waits or runs.
    pub(super) fn of(operation: &Operation) -> Option<Self> {
        match operation.state() {
            OperationState::Queued | OperationState::Running => None,
            OperationState::Done => Some(Self::Done(result(operation))),
            OperationState::Cancelled => Some(Self::Cancelled),
            OperationState::Failed => Some(Self::Failed(operation.error_message().to_owned())),
            OperationState::Unspecified => Some(Self::Unknown),
        }
    }
}

/// The result of an operation that was done, in words.
fn result(operation: &Operation) -> String {
    match (operation.kind(), &operation.outcome) {
        (OperationKind::Load, _) => "loaded".to_owned(),
        (OperationKind::Pull, _) => "is there".to_owned(),
        (OperationKind::Apply | OperationKind::Restore, _) => "in force".to_owned(),
        // A verification that found damage is done, too; only its details tell.
        (OperationKind::Verify, _) => format!(
            "verified; `sluice jobs watch {}` shows the details",
            operation.operation_id
        ),
        (_, Some(Outcome::Fidelity(result))) => LevelFidelity::figures(result),
        _ => "done".to_owned(),
    }
}
