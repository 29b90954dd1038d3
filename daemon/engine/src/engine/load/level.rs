//! The level that a load takes: the one that was asked for, or where that can't be had the nearest that is no less faithful.

use std::sync::{Arc, atomic::AtomicBool};

use sluice_checkpoint::{Checkpoint, CheckpointError};
use sluice_plan::{Plan, PlanError};
use sluice_shared::level::Level;

use super::Beside;
use crate::{
    command::{LoadEvent, LoadReport, Settings},
    engine::{
        Substitution,
        current::{Planner, usual_workload},
    },
    error::EngineError,
    residency::Reader,
};

/// A plan that can be put in force, and what does it.
pub(super) struct Prepared {
    pub(super) plan: Arc<Plan>,
    pub(super) reader: Arc<Reader>,
    /// Those that were asked for, at the level that could be had.
    pub(super) settings: Settings,
    pub(super) substitution: Option<Substitution>,
}

impl Beside {
    /// Plans, and writes the copies that the plan needs.
    pub(super) fn prepare(
        &self,
        checkpoint: &Arc<Checkpoint>,
        planner: &Arc<Planner>,
        settings: Settings,
        cancel: &AtomicBool,
        report: &mut LoadReport,
    ) -> Result<Prepared, EngineError> {
        let asked = settings.level;
        let refused = match self.prepare_at(checkpoint, planner, settings, cancel, report) {
            Ok((plan, reader)) => {
                return Ok(Prepared {
                    plan,
                    reader,
                    settings,
                    substitution: None,
                });
            }
            Err(error) if is_of_level(&error) => error,
            Err(error) => return Err(error),
        };
        for &level in asked.substitutes() {
            let settings = Settings { level, ..settings };
            match self.prepare_at(checkpoint, planner, settings, cancel, report) {
                Ok((plan, reader)) => {
                    let substitution = Substitution {
                        asked,
                        taken: level,
                        reason: refused.to_string(),
                    };
                    report(LoadEvent::Notice(substitution.to_string()));
                    return Ok(Prepared {
                        plan,
                        reader,
                        settings,
                        substitution: Some(substitution),
                    });
                }
                Err(error) if is_of_level(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(self.with_fitting(refused, planner, settings))
    }

    fn prepare_at(
        &self,
        checkpoint: &Arc<Checkpoint>,
        planner: &Arc<Planner>,
        settings: Settings,
        cancel: &AtomicBool,
        report: &mut LoadReport,
    ) -> Result<(Arc<Plan>, Arc<Reader>), EngineError> {
        let device = self.ops.device();
        let mut plan = self.plan(planner, settings)?;
        if plan.is_estimate() {
            report(LoadEvent::Planned(Arc::new(plan)));
            (self.keeping).code(checkpoint, planner, device, cancel, report)?;
            plan = self.plan(planner, settings)?;
            if plan.is_estimate() {
                return Err(PlanError::NotCoded { level: plan.level }.into());
            }
        }
        let plan = Arc::new(plan);
        report(LoadEvent::Planned(Arc::clone(&plan)));
        let reader = (self.keeping).reader(checkpoint, planner, &plan, device, cancel, report)?;
        Ok((plan, reader))
    }

    fn plan(&self, planner: &Planner, settings: Settings) -> Result<Plan, EngineError> {
        let budget = self.shared.state.budget_bytes(&settings);
        let workload = usual_workload(&planner.config.shape);
        planner.plan(settings.choices(), budget, workload)
    }

    /// The same refusal, with what would fit: nobody gets a less faithful level unasked.
    fn with_fitting(
        &self,
        refused: EngineError,
        planner: &Planner,
        settings: Settings,
    ) -> EngineError {
        let EngineError::Plan(PlanError::BudgetTooSmall {
            budget_bytes,
            least_bytes,
            level,
            canvas,
            ..
        }) = refused
        else {
            return refused;
        };
        let mut lossier = Level::ALL.into_iter();
        let fitting = lossier.find_map(|other| {
            let is_lossier = other > level && other != Level::Auto;
            let settings = Settings {
                level: other,
                ..settings
            };
            let plan = self.plan(planner, settings).ok().filter(|_| is_lossier)?;
            Some((other, plan.peak_bytes()))
        });
        PlanError::BudgetTooSmall {
            budget_bytes,
            least_bytes,
            level,
            canvas,
            fitting,
        }
        .into()
    }
}

/// Whether another level may be had where this one was refused.
fn is_of_level(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Plan(PlanError::BudgetTooSmall { .. } | PlanError::NotCoded { .. })
            | EngineError::NoDerivatives { .. }
            | EngineError::Checkpoint(CheckpointError::Derivative { .. })
    )
}
