//! The level that a load takes: the requested one, or where that is not possible the nearest that is no less faithful.

use std::sync::{Arc, atomic::AtomicBool};

use sluice_checkpoint::Checkpoint;
use sluice_plan::{Plan, PlanError};
use sluice_shared::level::Level;

use super::Loader;
use crate::{
    command::{LoadEvent, LoadReport, PlanSettings},
    error::EngineError,
    residency::WeightReader,
    runtime::{
        planner::{Planner, is_of_level},
        state::LevelSubstitution,
    },
};

/// A plan that can be put in force, and the reader for it.
pub(super) struct PreparedPlan {
    pub(super) plan: Arc<Plan>,
    pub(super) reader: Arc<WeightReader>,
    /// The requested settings, with the level that was possible.
    pub(super) settings: PlanSettings,
    pub(super) substitution: Option<LevelSubstitution>,
}

impl Loader {
    /// Makes a plan, and writes the copies that it needs.
    pub(super) fn prepare(
        &self,
        model: (&Arc<Checkpoint>, &Arc<Planner>),
        settings: PlanSettings,
        budget_bytes: u64,
        cancel: &AtomicBool,
        report: &mut LoadReport,
    ) -> Result<PreparedPlan, EngineError> {
        let asked = settings.level;
        let refused = match self.prepare_at(model, settings, budget_bytes, cancel, report) {
            Ok((plan, reader)) => {
                return Ok(PreparedPlan {
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
            let settings = PlanSettings {
                level,
                ..settings.with_unresolved_mix()
            };
            match self.prepare_at(model, settings, budget_bytes, cancel, report) {
                Ok((plan, reader)) => {
                    let substitution = LevelSubstitution {
                        requested: asked,
                        taken: level,
                        // The first refusal is the reason: it is about the level that was asked for.
                        reason: refused.to_string(),
                    };
                    report(LoadEvent::Notice(substitution.to_string()));
                    return Ok(PreparedPlan {
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
        Err(with_fitting(refused, model.1, settings, budget_bytes))
    }

    fn prepare_at(
        &self,
        (checkpoint, planner): (&Arc<Checkpoint>, &Arc<Planner>),
        settings: PlanSettings,
        budget_bytes: u64,
        cancel: &AtomicBool,
        report: &mut LoadReport,
    ) -> Result<(Arc<Plan>, Arc<WeightReader>), EngineError> {
        let device = self.ops.device();
        let mut plan = planner.usual_plan(settings, budget_bytes)?;
        // Reported before the copy is written, which takes long; the exact plan follows.
        if plan.is_estimate() {
            report(planned(Arc::new(plan)));
            (self.weight_cache).compress(checkpoint, planner, device, cancel, report)?;
            plan = planner.usual_plan(settings, budget_bytes)?;
            if plan.is_estimate() {
                return Err(PlanError::NotCompressed { level: plan.level }.into());
            }
        }
        let plan = Arc::new(plan);
        report(planned(Arc::clone(&plan)));
        let reader =
            (self.weight_cache).reader(checkpoint, planner, &plan, device, cancel, report)?;
        Ok((plan, reader))
    }
}

/// Adds to a refusal what would fit: nobody gets a less faithful level unasked.
fn with_fitting(
    refused: EngineError,
    planner: &Planner,
    settings: PlanSettings,
    budget_bytes: u64,
) -> EngineError {
    let EngineError::Plan(PlanError::BudgetTooSmall {
        budget_bytes: refused_bytes,
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
        let settings = PlanSettings {
            level: other,
            ..settings
        };
        let plan = planner.usual_plan(settings, budget_bytes);
        Some((other, plan.ok().filter(|_| is_lossier)?.peak_bytes()))
    });
    PlanError::BudgetTooSmall {
        budget_bytes: refused_bytes,
        least_bytes,
        level,
        canvas,
        fitting,
    }
    .into()
}

/// A load has no steps between passes.
fn planned(plan: Arc<Plan>) -> LoadEvent {
    LoadEvent::Planned {
        plan,
        steps: 0,
        estimate: None,
    }
}
