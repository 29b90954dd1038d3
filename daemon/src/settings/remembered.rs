//! Levels and budgets that were asked for while the daemon ran, by model, so that a model comes back as it was left; and what passes
//! told of its experts.

use sluice_shared::options::PlanOptions;

use crate::{
    model_name::ModelName,
    state::{SavedExperts, SavedModel, State},
};

/// What was asked for of a model.
pub(super) fn of(state: &State, model: &ModelName) -> PlanOptions {
    let Some(saved) = state.model(&key(model)) else {
        return PlanOptions::default();
    };
    PlanOptions {
        // A later version may write words unknown here; they count as unset.
        level: saved.level.as_ref().and_then(|text| text.parse().ok()),
        budget: saved.budget.as_ref().and_then(|text| text.parse().ok()),
        ..PlanOptions::default()
    }
}

/// Adds the level and the budget that were asked for; what the change leaves out stays.
pub(crate) fn remember(state: &mut State, model: &ModelName, change: &PlanOptions) {
    if change.level.is_none() && change.budget.is_none() {
        return;
    }
    let before = state.take_model(&key(model)).unwrap_or_default();
    state.put_model(SavedModel {
        model: key(model),
        level: (change.level.map(|level| level.name().to_owned())).or(before.level),
        budget: (change.budget.map(|budget| budget.to_string())).or(before.budget),
        experts: before.experts,
    });
}

/// Forgets all that was asked for.
pub(crate) fn forget(state: &mut State, model: &ModelName) {
    let before = state.take_model(&key(model));
    if let Some(experts) = before.and_then(|before| before.experts) {
        remember_experts(state, model, experts);
    }
}

/// What passes have told of a model's experts.
pub(crate) fn saved_experts(state: &State, model: &ModelName) -> Option<SavedExperts> {
    state.model(&key(model))?.experts
}

/// Sets what passes have told of a model's experts.
pub(crate) fn remember_experts(state: &mut State, model: &ModelName, experts: SavedExperts) {
    state.put_experts(&key(model), experts);
}

/// Keyed by path, since another model may get the same name.
fn key(model: &ModelName) -> String {
    match &model.path {
        Some(path) => path.to_string_lossy().into_owned(),
        None => model.name.clone(),
    }
}
