//! What the engine reports of its commands, loads and changes alike, as the state of an operation.

use sluice_engine::{CommandEvent, CommandStage, EngineError};
use sluice_proto::v1::{self, OperationStage, ProgressUnit};

use super::{Detail, Operation, progress};
use crate::translate;

/// Writes an event into its operation, and returns the result with which the command ended. `before` is the plan that the
/// command replaces, without its layers.
pub(crate) fn record<T>(
    operation: &Operation,
    before: Option<&v1::Plan>,
    event: CommandEvent<T>,
) -> Option<Result<T, EngineError>> {
    match event {
        CommandEvent::Planned {
            plan,
            steps,
            estimate,
        } => {
            let model = &operation.description().model;
            let plan = v1::Plan {
                switch_estimate: estimate.map(translate::plan::switch_estimate),
                ..translate::plan::summary(&plan, model)
            };
            operation.detail(Detail::PlannedChange(v1::PlannedChange {
                plan: Some(plan),
                plan_before: before.cloned(),
                total_steps: steps as u32,
            }));
        }
        CommandEvent::Notice(text) => {
            let (id, kind) = (operation.id(), operation.kind());
            tracing::warn!(operation = id, %kind, notice = text, "a notice of the engine");
            operation.notice(text);
        }
        CommandEvent::Progress { stage, done, total } => {
            let (stage, unit) = match stage {
                CommandStage::Converting => (OperationStage::Converting, ProgressUnit::Bytes),
                CommandStage::Verifying => (OperationStage::Verifying, ProgressUnit::Bytes),
                CommandStage::Loading => (OperationStage::Loading, ProgressUnit::Bytes),
                CommandStage::Switching => (OperationStage::Switching, ProgressUnit::Steps),
            };
            operation.progress(progress(stage, unit, done, total));
        }
        CommandEvent::Finished(result) => return Some(result),
    }
    None
}
