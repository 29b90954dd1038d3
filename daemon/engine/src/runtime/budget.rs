//! The budget that the engine's thread plans with: memory that is promised or that other programs have taken, and
//! weights that become resident again when there is room.

use std::sync::Arc;

use super::{
    PlanSettings, current_model::CurrentModel, memory_watch::MemoryFindings, shared::Shared,
    weight_cache::lacks_converted_weights, worker::Worker,
};
use sluice_shared::options::ResolvedPlanSettings;

impl Worker {
    /// The settings and the budget that requests must keep to: those that a switch leads to, once it has begun to take
    /// effect, else those in force.
    pub(super) fn aim(&self) -> (ResolvedPlanSettings, u64) {
        let settings = self.aimed_settings();
        (
            settings.resolved(),
            self.shared.state.budget_bytes(&settings),
        )
    }

    /// The budget as set, without regard to other programs.
    pub(super) fn allowed_bytes(&self) -> u64 {
        self.shared.state.allowed_bytes(&self.aimed_settings())
    }

    fn aimed_settings(&self) -> PlanSettings {
        let asked = self
            .current
            .as_ref()
            .and_then(|current| current.switch.as_ref()?.stepping_towards());
        asked.unwrap_or_else(|| self.shared.state.settings())
    }

    /// Whether another model was promised memory: it counts as taken, though it has not all been allocated yet.
    pub(super) fn has_promised_budget(&self) -> bool {
        let loading = self.loading.as_ref();
        loading.is_some_and(|loading| loading.limit_bytes().is_some())
    }

    /// Makes weights resident again that gave way to requests which have left, or to other programs: step by step,
    /// between passes.
    ///
    /// False where that was not possible, and may be later.
    pub(super) fn regain(&mut self, choices: ResolvedPlanSettings, budget: u64) -> bool {
        let Some(current) = &self.current else {
            return true;
        };
        let (choices, workload) = (current.same_level(choices), current.workload());
        let Ok(plan) = current.plan_with(choices, budget, workload, current.mlp_rows) else {
            return false;
        };
        // Nothing to gain: what is resident now is as much as a new plan would keep.
        if plan.resident_bytes() <= current.plan.resident_bytes() {
            return true;
        }
        // If the switch cannot start, everything stays as it is.
        !lacks_converted_weights(&current.reader, &plan)
            && self.start_switch(Arc::new(plan), None).is_ok()
    }

    /// Whether the plan in force allows more than the usual request takes, and none runs.
    pub(super) fn may_narrow(&self) -> bool {
        let is_wide = |current: &CurrentModel| {
            !current.stays_wide
                && (current.holds_others || current.plan.workload != current.workload())
        };
        self.loading.is_none() && self.current.as_ref().is_some_and(is_wide)
    }

    /// Returns to a plan for the usual canvas when a larger request has ended, if more becomes resident by it. If
    /// memory was short, the smaller budget stays.
    pub(super) fn narrow(&mut self) {
        let settings = self.shared.state.settings();
        let budget = self.shared.state.budget_bytes(&settings);
        let Some(current) = &mut self.current else {
            return;
        };
        // Set before planning, so that a plan which gains nothing is not tried again for every idle moment.
        current.stays_wide = true;
        current.holds_others = false;
        let budget = budget.min(current.plan.budget_bytes);
        let planned = current
            .planner
            .plan(settings.resolved(), budget, current.workload());
        let Ok(plan) = planned else { return };
        if plan.resident_bytes() > current.plan.resident_bytes() {
            // If the switch cannot start, everything stays as it is.
            drop(self.start_switch(Arc::new(plan), None));
        } else if plan.groups == current.plan.groups && plan.staging == current.plan.staging {
            current.weights.set_cpu_experts(plan.cpu_experts);
            current.plan = Arc::new(plan);
            self.update_limit();
            self.tell_state();
        }
    }

    /// Checks how much of the GPU's memory other programs hold, if the last look is long ago. What gave way to them
    /// becomes resident again when they have gone.
    pub(super) fn look_at_memory(&mut self) -> MemoryFindings {
        let Shared { group, state, .. } = &*self.shared;
        let memory = (&group.device, &group.budget);
        let found = self.memory_watch.look(memory, state);
        self.settle_budget(found)
    }

    /// The check, however recent the last one is.
    pub(super) fn look_at_memory_now(&mut self) -> MemoryFindings {
        let Shared { group, state, .. } = &*self.shared;
        let memory = (&group.device, &group.budget);
        let found = self.memory_watch.look_now(memory, state);
        self.settle_budget(found)
    }

    fn settle_budget(&mut self, found: MemoryFindings) -> MemoryFindings {
        let is_switching = |current: &CurrentModel| current.switch.is_some();
        if found.is_relieved
            // Not while a load was promised the memory or a switch is moving weights. The watch stays limited, so a
            // later look tries again.
            && !self.has_promised_budget()
            && !self.current.as_ref().is_some_and(is_switching)
        {
            let (choices, budget) = self.aim();
            if self.regain(choices, budget) {
                self.memory_watch.settle();
            }
        }
        found
    }
}
