//! What gives way when memory is short, one step after another, to allocations that were refused and to other programs.

use std::iter;

use sluice_cuda::CudaError;
use sluice_machine::MemoryKind;
use sluice_ops::{OpsError, ledger::Ledger};
use sluice_plan::{MLP_ROWS, Plan, PlanError};
use sluice_shared::{
    level::{CpuExperts, Level},
    options::ResolvedPlanSettings,
    units,
};

use super::{MLP_ROWS_MIN, PassRunner};
use crate::{
    error::EngineError, model::network::Interrupt, runtime::weight_cache::lacks_converted_weights,
};

/// Most frugal plans that are tried for a request.
const FRUGAL_PLANS_MAX: usize = 4;

/// Rows that go through an MLP together, from `rows` down to the least when memory is short: each step decompresses a
/// GPU's compressed weights several times as often as the one before.
pub(super) fn mlp_rows_from(rows: usize) -> impl Iterator<Item = usize> {
    let fewer = |&rows: &usize| {
        [MLP_ROWS, MLP_ROWS_MIN]
            .into_iter()
            .find(|&less| less < rows)
    };
    iter::successors(Some(rows), fewer)
}

impl PassRunner<'_> {
    /// Gives way until the requests' activations and the staging buffers fit.
    pub(in crate::runtime) fn free_memory(
        &mut self,
        refused: EngineError,
    ) -> Result<(), EngineError> {
        self.free_memory_for(refused)?;
        while let Err(error) = self.reserve() {
            self.free_memory_for(error)?;
        }
        Ok(())
    }

    /// A plan with room for the requests: with fewer rows at once where needed, and at `off` by streaming, which gives the
    /// same results.
    pub(super) fn plan_within(
        &mut self,
        choices: ResolvedPlanSettings,
        budget: u64,
    ) -> Result<Plan, EngineError> {
        let current = self.worker.current_mut()?;
        let workload = current.plan.workload.widest(&self.workload);
        let mut refused = None;
        for rows in mlp_rows_from(current.mlp_rows) {
            for choices in with_streaming(choices) {
                let planned = current.plan_with(choices, budget, workload, rows);
                match planned {
                    Ok(plan) => {
                        if rows < current.mlp_rows {
                            current.set_mlp_rows(rows);
                            self.notices.push(fewer_rows(rows));
                        }
                        return Ok(plan);
                    }
                    Err(error @ EngineError::Plan(PlanError::BudgetTooSmall { .. })) => {
                        // The first refusal has the figures of what was asked for.
                        refused.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Err(refused.expect("a plan was made or refused"))
    }

    /// Gives way by one step: first the prefix cache, then fewer rows at once, then more streamed weights. Fails with
    /// what was refused when nothing is left.
    fn free_memory_for(&mut self, refused: EngineError) -> Result<(), EngineError> {
        let needed_bytes = match refused {
            EngineError::Ops(OpsError::OutOfMemory { needed_bytes, .. }) => needed_bytes,
            EngineError::Ops(OpsError::OutOfHostMemory { .. }) => {
                return self.leave_experts_to_gpu(refused);
            }
            refused => return Err(refused),
        };
        // Activations of the failed pass are gone, and their arena is allocated anew after each step.
        self.worker.ops.release();
        if self.free_memory_under_this_plan()? {
            return Ok(());
        }
        if self.frugal_plans == FRUGAL_PLANS_MAX {
            return Err(refused);
        }
        self.frugal_plans += 1;
        let (_, budget) = self.worker.aim();
        // As the model stands, and not as planned: what was refused came on top of what is held now.
        let peak = self.worker.current_mut()?.as_it_stands().peak_bytes();
        match self.frugal_plan(budget.min(peak.saturating_sub(needed_bytes)))? {
            // If memory is refused on the way to that plan, the next step makes room for it.
            Some(plan) => match self.stream_more(plan) {
                Err(EngineError::Ops(OpsError::OutOfMemory { .. })) => Ok(()),
                done => done,
            },
            // The refused allocation's figures are more useful than those of a plan that nobody asked for.
            None => Err(refused),
        }
    }

    /// Has the GPU compute all experts, where the CPU computes some and was refused host memory for it.
    fn leave_experts_to_gpu(&mut self, refused: EngineError) -> Result<(), EngineError> {
        self.worker.ops.release();
        if !self.worker.current_mut()?.leave_experts_to_gpu() {
            return Err(refused);
        }
        self.notices
            .push("host memory is short: the GPU computes all experts".to_owned());
        Ok(())
    }

    /// Gives way without another plan; returns whether anything could.
    fn free_memory_under_this_plan(&mut self) -> Result<bool, EngineError> {
        let current = self.worker.current_mut()?;
        if !current.prefix_cache.is_empty() {
            current.prefix_cache.remove(0);
            return Ok(true);
        }
        // Chunks of more rows than a pass has take no more memory than one chunk of all of them.
        let all = self.workload.rows() + self.workload.checks();
        let mut fewer = mlp_rows_from(current.mlp_rows).skip(1);
        if let Some(rows) = fewer.find(|&rows| rows < all || rows == MLP_ROWS_MIN) {
            current.set_mlp_rows(rows);
            self.notices.push(fewer_rows(rows));
            return Ok(true);
        }
        Ok(false)
    }

    /// A plan within this budget; `None` where there is none.
    fn frugal_plan(&mut self, budget: u64) -> Result<Option<Plan>, EngineError> {
        let (choices, _) = self.worker.aim();
        match self.plan_within(choices, budget) {
            Ok(plan) => Ok(Some(plan)),
            Err(EngineError::Plan(PlanError::BudgetTooSmall { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn stream_more(&mut self, plan: Plan) -> Result<(), EngineError> {
        let streamed = units::bytes(plan.streamed_bytes());
        self.worker.switch_now(plan, self.cancel)?;
        self.notices.push(format!(
            "GPU memory is short: each pass streams {streamed} of weights"
        ));
        Ok(())
    }

    /// Checks between two passes whether other programs leave the GPU too little memory, and gives way before an
    /// allocation of ours is refused. What cannot give way stays: no request fails for it, and the steps for real
    /// refusals are not used up.
    pub(super) fn yield_to_others(&mut self) {
        let mut found = self.worker.look_at_memory();
        loop {
            self.notices.append(&mut found.notices);
            // Weights that came back when others had gone can give way again.
            self.has_yielded &= !found.is_relieved;
            if found.missing_bytes == 0 || self.has_yielded {
                return;
            }
            match self.yield_once(found.missing_bytes) {
                Ok(true) => found = self.worker.look_at_memory_now(),
                Ok(false) => return,
                // The weights are as before, or whole between two plans. If passes cannot go on with them, the next one
                // reports it.
                Err(_) => {
                    self.has_yielded = true;
                    return;
                }
            }
        }
    }

    /// Gives way to others by one step; returns whether to look at once if that was enough.
    fn yield_once(&mut self, missing_bytes: u64) -> Result<bool, EngineError> {
        let rows = self.worker.current_mut()?.mlp_rows;
        if self.free_memory_under_this_plan()? {
            if self.worker.current_mut()?.mlp_rows < rows
                && let Err(refused) = self.reserve()
            {
                // Others were faster: now an allocation really was refused.
                self.free_memory(refused)?;
            }
            return Ok(true);
        }
        let allowed = self.worker.allowed_bytes();
        let current = self.worker.current_mut()?;
        // What the driver takes besides is held, too, and a plan's budget allows for it: no more gives way than is missing.
        let held = current.as_it_stands().held_bytes(&current.planner.machine);
        let plan = self.frugal_plan(allowed.min(held.saturating_sub(missing_bytes)))?;
        let reader = &self.worker.current_mut()?.reader;
        // Nobody waits for a conversion where nothing was refused.
        match plan.filter(|plan| !lacks_converted_weights(reader, plan)) {
            // One plan for each look: others may take memory step by step while a request runs.
            Some(plan) => self.stream_more(plan)?,
            None => self.has_yielded = true,
        }
        Ok(false)
    }
}

/// What gives way where the driver needs memory of its own: kernels are some hundred KiB, and it allocates in large
/// pieces.
const DRIVERS_OWN_BYTES: u64 = 8 << 20;

/// A refusal by a GPU in the middle of a pass, in the ledger's terms, so that something gives way to it: decompression
/// memory, or what the driver needs for a kernel.
pub(super) fn as_refusal(failed: Interrupt, ledger: &Ledger) -> Interrupt {
    match failed {
        Interrupt::Failed(EngineError::Ops(OpsError::Gpu(CudaError::OutOfMemory {
            needed_bytes,
            ..
        }))) => ledger
            .refusal(MemoryKind::StagingBuffers, needed_bytes)
            .into(),
        // The driver does not say how many bytes it needed.
        Interrupt::Failed(EngineError::Ops(OpsError::Gpu(error))) if error.is_out_of_memory() => {
            ledger
                .refusal(MemoryKind::Scratch, DRIVERS_OWN_BYTES)
                .into()
        }
        failed => failed,
    }
}

/// What was asked for, and for `off`, which does not stream, what streams and computes the same bits.
fn with_streaming(asked: ResolvedPlanSettings) -> impl Iterator<Item = ResolvedPlanSettings> {
    let mut streaming = ResolvedPlanSettings {
        level: Level::Standard,
        ..asked
    };
    // The CPU's sums are not the GPU's.
    streaming.settings.cpu_experts = CpuExperts::Off;
    iter::once(asked).chain((asked.level == Level::Off).then_some(streaming))
}

fn fewer_rows(rows: usize) -> String {
    format!("GPU memory is short: the MLP processes {rows} rows at a time")
}

#[cfg(test)]
mod tests {
    use sluice_shared::options::{PlanOptions, PlanSettings};

    use super::*;

    #[test]
    fn what_a_gpu_refuses_is_short_memory_and_what_it_fails_at_is_not() {
        let ledger = Ledger::default();
        let told = |failed| {
            as_refusal(
                Interrupt::Failed(EngineError::Ops(OpsError::Gpu(failed))),
                &ledger,
            )
        };
        let refused = told(CudaError::OutOfMemory {
            needed_bytes: 5,
            free_bytes: None,
        });
        assert!(
            matches!(
                refused,
                Interrupt::Failed(EngineError::Ops(OpsError::OutOfMemory {
                    needed_bytes: 5,
                    ..
                }))
            ),
            "{refused:?}"
        );
        let failed = told(CudaError::OutOfPinnedMemory { needed_bytes: 5 });
        assert!(matches!(
            failed,
            Interrupt::Failed(EngineError::Ops(OpsError::Gpu(_)))
        ));
        let cancelled = as_refusal(Interrupt::Cancelled, &ledger);
        assert!(matches!(cancelled, Interrupt::Cancelled));
    }

    #[test]
    fn only_off_is_streamed_otherwise_and_with_the_same_sums() {
        let tried = |level| {
            let asked: PlanSettings = PlanOptions {
                level: Some(level),
                cpu_experts: Some(CpuExperts::Auto),
                ..PlanOptions::default()
            }
            .into();
            let tried = with_streaming(asked.resolved());
            let tried = tried.map(|choices| (choices.level, choices.settings.cpu_experts));
            tried.collect::<Vec<_>>()
        };
        let (off, standard) = (Level::Off, Level::Standard);
        let (auto, never) = (CpuExperts::Auto, CpuExperts::Off);
        assert_eq!(tried(off), [(off, auto), (standard, never)]);
        assert_eq!(tried(standard), [(standard, auto)]);
    }

    #[test]
    fn fewer_rows_give_way_step_by_step() {
        let from = |rows| mlp_rows_from(rows).collect::<Vec<_>>();
        assert_eq!(from(2048), [2048, 512, 64]);
        assert_eq!(from(512), [512, 64]);
        assert_eq!(from(64), [64]);
    }
}
