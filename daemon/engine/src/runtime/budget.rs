//! What the engine's thread plans with: the budget, room that is promised or that others have taken, and weights that come
//! back when there is room again.

use std::sync::Arc;

use super::{
    PlanSettings, Shared, converted_weights::lacks_converted_weights, current_model::CurrentModel,
    memory_watch::MemoryFindings, worker::Worker,
};
use sluice_shared::options::ResolvedPlanSettings;

impl Worker {
    /// The choices and the budget that requests are to keep to: those a change under way leads to, once it has begun to take
    /// effect, else those in force.
    pub(super) fn aim(&self) -> (ResolvedPlanSettings, u64) {
        let settings = self.aimed_settings();
        (
            settings.resolved(),
            self.shared.state.budget_bytes(&settings),
        )
    }

    /// The same budget, whatever other programs have taken.
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

    /// Whether room was found for another model: it is that model's, though it has not all been taken yet.
    pub(super) fn has_promised_budget(&self) -> bool {
        let loading = self.loading.as_ref();
        loading.is_some_and(|loading| loading.limit_bytes().is_some())
    }

    /// Lets weights stay that gave way to requests which have left, or to others, where more can: step by step, between
    /// passes.
    ///
    /// False where they could not, and may later.
    pub(super) fn regain(&mut self, choices: ResolvedPlanSettings, budget: u64) -> bool {
        let Some(current) = &self.current else {
            return true;
        };
        let (choices, workload) = (current.same_level(choices), current.workload());
        let Ok(plan) = current.plan_with(choices, budget, workload, current.mlp_rows) else {
            return false;
        };
        if plan.resident_bytes() <= current.plan.resident_bytes() {
            return true;
        }
        // When it can't be had, all stays as it is.
        !lacks_converted_weights(&current.reader, &plan)
            && self.start_switch(Arc::new(plan), None).is_ok()
    }

    /// Whether the plan in force makes room for more than the usual request takes, and none runs.
    pub(super) fn may_narrow(&self) -> bool {
        let is_wide = |current: &CurrentModel| {
            !current.stays_wide
                && (current.holds_others || current.plan.workload != current.workload())
        };
        self.loading.is_none() && self.current.as_ref().is_some_and(is_wide)
    }

    /// Goes back to a plan for the usual canvas when a wider request has ended, if that lets more be resident. Short
    /// memory stays as it was found.
    pub(super) fn narrow(&mut self) {
        let settings = self.shared.state.settings();
        let budget = self.shared.state.budget_bytes(&settings);
        let Some(current) = &mut self.current else {
            return;
        };
        current.stays_wide = true;
        current.holds_others = false;
        let budget = budget.min(current.plan.budget_bytes);
        let planned = current
            .planner
            .plan(settings.resolved(), budget, current.workload());
        let Ok(plan) = planned else { return };
        if plan.resident_bytes() > current.plan.resident_bytes() {
            // When it can't be had, all stays as it is.
            drop(self.start_switch(Arc::new(plan), None));
        } else if plan.groups == current.plan.groups && plan.staging == current.plan.staging {
            current.plan = Arc::new(plan);
            self.tell_state();
        }
    }

    /// Looks at what others have of the card's memory, if that is long ago. What gave way to them comes back when they have
    /// gone.
    pub(super) fn look_at_memory(&mut self) -> MemoryFindings {
        let Shared { ledger, state, .. } = &*self.shared;
        let found = self.memory_watch.look(self.ops.device(), ledger, state);
        self.settle_budget(found)
    }

    /// The same, however long ago that is.
    pub(super) fn look_at_memory_now(&mut self) -> MemoryFindings {
        let Shared { ledger, state, .. } = &*self.shared;
        let found = self.memory_watch.look_now(self.ops.device(), ledger, state);
        self.settle_budget(found)
    }

    fn settle_budget(&mut self, found: MemoryFindings) -> MemoryFindings {
        let is_switching = |current: &CurrentModel| current.switch.is_some();
        if found.is_relieved
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
