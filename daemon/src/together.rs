//! Plans of several models in one budget: how they would be loaded one after another, and which would be evicted.

use sluice_engine::{EngineError, PlanSettings, runtime::ModelOutline};
use sluice_plan::{
    Plan,
    sharing::{LoadedShare, LoadedShares, MadeRoom},
};
use sluice_proto::v1;

use crate::{failure::Failure, translate};

/// A model that is to be planned beside others.
pub struct OutlinedModel {
    /// Name for people.
    pub name: String,
    /// What plans need to know of it.
    pub outline: ModelOutline,
    /// Settings that it would be loaded with.
    pub settings: PlanSettings,
    /// Whether it would stay whatever comes after it.
    pub is_pinned: bool,
}

/// What models have together.
#[derive(Debug, Clone, Copy)]
pub struct CommonBudget {
    /// The budget of all.
    pub budget_bytes: u64,
    /// The budget of a model where none is set.
    pub budget_default: u64,
    /// Bytes of the device's memory that each plan counts, and that are taken once.
    pub common_bytes: u64,
    /// Models that may be loaded at once.
    pub models_max: usize,
}

/// A model that was planned, and is there until it is evicted for another.
struct Loaded {
    place: usize,
    share: LoadedShare,
}

impl CommonBudget {
    /// Plans each of the models for what those before it leave.
    ///
    /// # Errors
    /// When a model could not be loaded whatever there was.
    pub fn plan(&self, models: &[OutlinedModel]) -> Result<Vec<v1::PlannedModel>, Failure> {
        let mut loaded: Vec<Loaded> = Vec::new();
        let mut planned = Vec::new();
        for (place, model) in models.iter().enumerate() {
            let (evicted, plan) = self.plan_beside(&loaded, model)?;
            let mut wire = v1::PlannedModel {
                model: model.name.clone(),
                is_pinned: model.is_pinned,
                ..Default::default()
            };
            match plan {
                Ok(plan) => {
                    wire.evicted = (evicted.iter())
                        .map(|&index| loaded[index].place as u32)
                        .collect();
                    loaded.retain(|loaded| !wire.evicted.contains(&(loaded.place as u32)));
                    let share = self.share_of(model, &plan);
                    wire.claimed_bytes = share.taken_bytes;
                    wire.plan = Some(translate::plan::plan(&plan, &model.name));
                    loaded.push(Loaded { place, share });
                }
                Err(error) => wire.problem = error.to_string(),
            }
            planned.push(wire);
        }
        Ok(planned)
    }

    /// Which of the loaded ones are evicted for another, and the plan that this is loaded with then, or why it is not.
    fn plan_beside(
        &self,
        loaded: &[Loaded],
        model: &OutlinedModel,
    ) -> Result<(Vec<usize>, Result<Plan, EngineError>), Failure> {
        let loaded: Vec<_> = loaded.iter().map(|loaded| loaded.share).collect();
        let shares = LoadedShares {
            budget_bytes: self.budget_bytes,
            models_max: self.models_max,
            loaded: &loaded,
        };
        let asked_bytes = self.asked_bytes(model);
        let fit = |bytes| model.outline.fit(model.settings, bytes);
        let room = |gone: &[usize]| shares.room_bytes(asked_bytes, gone);
        let made = shares.make_room(&room, &mut |bytes| fit(bytes).map(|(fit, _)| fit))?;
        let Some(MadeRoom { evicted, bytes }) = made else {
            let max = self.models_max;
            return Ok((Vec::new(), Err(EngineError::NoPlace { max })));
        };
        let (_, plan) = fit(bytes)?;
        Ok((evicted, plan))
    }

    fn share_of(&self, model: &OutlinedModel, plan: &Plan) -> LoadedShare {
        LoadedShare {
            taken_bytes: plan.peak_bytes().saturating_sub(self.common_bytes),
            budget_bytes: self.asked_bytes(model),
            may_go: !model.is_pinned,
        }
    }

    fn asked_bytes(&self, model: &OutlinedModel) -> u64 {
        let budget = model.settings.budget.bytes();
        budget.unwrap_or(self.budget_default)
    }
}

#[cfg(test)]
mod tests {
    use sluice_checkpoint::family::PublishedShape;
    use sluice_engine::Budget;
    use sluice_machine::Profile;
    use sluice_plan::Machine;
    use sluice_shared::level::Level;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn model(shape: &str, level: Level) -> OutlinedModel {
        let machine = Machine::unmeasured(Profile::cpu(2), 64 * GIB);
        let shape = PublishedShape::find(shape).unwrap();
        OutlinedModel {
            name: shape.name.to_owned(),
            outline: ModelOutline::of_published_shape(shape, machine),
            settings: PlanSettings {
                level,
                budget: Budget::Default,
                ..PlanSettings::default()
            },
            is_pinned: false,
        }
    }

    fn planned(budget_bytes: u64, models: &[OutlinedModel]) -> Vec<v1::PlannedModel> {
        let common = CommonBudget {
            budget_bytes,
            budget_default: budget_bytes,
            common_bytes: 8 << 20,
            models_max: 3,
        };
        common.plan(models).unwrap()
    }

    fn streamed(planned: &v1::PlannedModel) -> u64 {
        planned.plan.as_ref().unwrap().streamed_bytes_per_pass
    }

    #[test]
    fn two_that_fit_share_the_budget() {
        let models = [
            model("llada-8b", Level::Aggressive),
            model("tinyllama-1.1b", Level::Standard),
        ];
        let planned = planned(12 * GIB, &models);
        assert!(planned.iter().all(|one| one.evicted.is_empty()));
        assert!(planned.iter().all(|one| streamed(one) == 0));
        let claimed: u64 = planned.iter().map(|one| one.claimed_bytes).sum();
        assert!(claimed + (8 << 20) <= 12 * GIB);
        let second = planned[1].plan.as_ref().unwrap();
        assert_eq!(second.budget_bytes, 12 * GIB - planned[0].claimed_bytes);
    }

    #[test]
    fn the_first_is_evicted_for_a_second_that_fits_alone() {
        let mut models = [
            model("llada-8b", Level::Standard),
            model("llada-8b", Level::Standard),
        ];
        let both = planned(20 * GIB, &models);
        assert_eq!(both[1].evicted, [0]);
        assert_eq!((streamed(&both[0]), streamed(&both[1])), (0, 0));
        // Pinned, it stays, and the second streams.
        models[0].is_pinned = true;
        let both = planned(20 * GIB, &models);
        assert!(both[1].evicted.is_empty(), "{:?}", both[1].evicted);
        assert!(streamed(&both[1]) > 5 * GIB, "{}", streamed(&both[1]));
    }

    #[test]
    fn what_fits_nowhere_says_why_and_evicts_nobody() {
        let mut hopeless = model("llada-8b", Level::Standard);
        hopeless.settings.budget = Budget::Bytes(1 << 20);
        let models = [model("tinyllama-1.1b", Level::Standard), hopeless];
        let planned = planned(6 * GIB, &models);
        assert!(planned[1].plan.is_none());
        assert!(
            planned[1].problem.contains("too small"),
            "{}",
            planned[1].problem
        );
        assert!(planned[1].evicted.is_empty());
    }

    #[test]
    fn no_more_are_loaded_than_may_be() {
        let small = || model("tinyllama-1.1b", Level::Aggressive);
        let models = [small(), small(), small(), small(), small()];
        let planned = planned(64 * GIB, &models);
        let evicted: Vec<_> = planned.iter().map(|one| one.evicted.clone()).collect();
        assert_eq!(evicted, [vec![], vec![], vec![], vec![0], vec![1]]);
    }
}
