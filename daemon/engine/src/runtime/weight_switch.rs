//! A switch from one plan to another in progress: where it leads, how far it is, and who asked for it.

mod steps;

use std::sync::Arc;

use sluice_plan::Plan;

pub(super) use self::steps::SwitchSteps;
use super::{
    ApplyEvent, ApplyReport, PlanSettings, state::SwitchProgress,
    weight_conversion::WeightConversion,
};

/// The settings that were asked for, and the report of whoever asked.
pub(super) type SwitchRequest = (PlanSettings, ApplyReport);

/// A switch in progress.
pub(super) struct WeightSwitch {
    pub(super) target: Arc<Plan>,
    pub(super) stage: SwitchStage,
    /// Who asked for it; `None` when memory ran short.
    pub(super) request: Option<SwitchRequest>,
    /// A requested switch that still converts, while this one makes room for a request under the old settings.
    pub(super) postponed: Option<Box<WeightSwitch>>,
}

/// How far a switch is.
pub(super) enum SwitchStage {
    /// What will be streamed is being written to disk; passes run under the old plan.
    Converting(WeightConversion),
    Stepping(SwitchSteps),
}

impl WeightSwitch {
    /// Steps done and in all, as a client shows them.
    pub(super) fn state(&self) -> SwitchProgress {
        match &self.stage {
            SwitchStage::Converting(_) => SwitchProgress {
                done_steps: 0,
                total_steps: 0,
            },
            SwitchStage::Stepping(steps) => steps.state(),
        }
    }

    /// The settings that it leads to, once it has begun to take effect.
    pub(super) fn stepping_towards(&self) -> Option<PlanSettings> {
        let (settings, _) = self.request.as_ref()?;
        // While it converts nothing has changed, and requests still keep to the old settings.
        (!self.is_converting()).then_some(*settings)
    }

    /// The plan that it leads to.
    pub(super) fn target(&self) -> &Plan {
        &self.target
    }

    /// Whether it still converts, so that nothing has changed yet.
    pub(super) fn is_converting(&self) -> bool {
        matches!(self.stage, SwitchStage::Converting(_))
    }

    /// Reports to whoever asked for it.
    pub(super) fn report(&mut self, event: ApplyEvent) {
        if let Some((_, report)) = &mut self.request {
            report(event);
        }
    }
}
