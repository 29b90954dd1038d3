//! Whether the GPU that was found can run the model to be loaded. If nobody named the GPU, the CPU runs it otherwise.

use sluice_engine::{
    Engine, EngineError, PlanSettings,
    runtime::{ModelOutline, default_canvas},
};
use sluice_ops::device::GpuUnavailable;
use sluice_plan::{BLOCK_DEFAULT, PlanError, Workload};

use crate::model_name::ModelName;

/// Why the engine's GPU cannot run the model with the given settings, nor at a level that may be substituted. `None` if it can,
/// if there is no GPU, and on any other error, which the load will report.
pub(crate) fn reason(
    engine: &Engine,
    name: &ModelName,
    settings: PlanSettings,
) -> Option<GpuUnavailable> {
    let gpu = engine.device().gpu()?.name().to_owned();
    let machine = engine.machine().ok()?;
    let unfit = |error: &EngineError| GpuUnavailable::Unfit {
        name: gpu.clone(),
        model: name.name.clone(),
        reason: error.to_string(),
    };
    let outline = match ModelOutline::of_checkpoint(&name.source(), machine) {
        Ok(outline) => outline,
        Err(error @ EngineError::HeadDim { .. }) => return Some(unfit(&error)),
        Err(_) => return None,
    };
    let budget_bytes = engine.allowed_bytes(&settings);
    let canvas = default_canvas(outline.context_length());
    let workload = Workload::new(canvas, BLOCK_DEFAULT, 1);
    let levels = [settings.level]
        .into_iter()
        .chain(settings.level.substitutes().iter().copied());
    let mut refused = None;
    for level in levels {
        let choices = PlanSettings { level, ..settings }.resolved();
        match outline.plan(choices, budget_bytes, workload) {
            Err(error @ EngineError::Plan(PlanError::BudgetTooSmall { .. })) => {
                refused.get_or_insert(error);
            }
            _ => return None,
        }
    }
    refused.as_ref().map(unfit)
}
