//! Plans that models are checked under: all weights in the device's memory, or as few of them as possible.

use sluice_machine::Profile;
use sluice_plan::{BLOCK_DEFAULT, Machine, Plan, PlanError, PlanInput, WorkingMemory, Workload};
use sluice_shared::{level::Level, options::ResolvedPlanSettings};
use sluice_weights::{Shape, SourceTensor};

/// Positions that the plan is for; a check's passes may have others.
const CANVAS: usize = 16;

/// A plan that keeps everything in the device's memory.
///
/// # Errors
/// When there is no plan for the level.
pub fn resident(
    profile: Profile,
    shape: &Shape,
    sources: &[SourceTensor],
    level: Level,
) -> Result<Plan, PlanError> {
    plan(profile, shape, sources, level, u64::MAX, 0)
}

/// A plan that streams all that can be streamed, with at most so many bytes of it in pinned memory, the rest read from
/// files in every pass.
///
/// # Errors
/// When there is no plan for the level.
pub fn streamed(
    profile: Profile,
    shape: &Shape,
    sources: &[SourceTensor],
    level: Level,
    pinned_memory_limit_bytes: u64,
) -> Result<Plan, PlanError> {
    let within = |budget| {
        plan(
            profile,
            shape,
            sources,
            level,
            budget,
            pinned_memory_limit_bytes,
        )
    };
    // Refused with a budget of 0, the error says the least that works: streaming everything.
    match within(0) {
        Err(PlanError::BudgetTooSmall { least_bytes, .. }) => within(least_bytes),
        other => other,
    }
}

fn plan(
    profile: Profile,
    shape: &Shape,
    sources: &[SourceTensor],
    level: Level,
    budget_bytes: u64,
    pinned_memory_limit_bytes: u64,
) -> Result<Plan, PlanError> {
    Plan::new(&PlanInput {
        shape,
        sources,
        choices: ResolvedPlanSettings::from(level),
        budget_bytes,
        workload: Workload::new(shape.context_length.min(CANVAS), BLOCK_DEFAULT, 1),
        working: WorkingMemory::default(),
        machine: &Machine {
            pinned_memory_limit_bytes,
            ..Machine::unmeasured(profile, u64::MAX)
        },
    })
}
