//! Opening pages, and asking for what they show.

use sluice_shared::{
    level::Level,
    options::{Budget, PlanOptions},
};

use super::super::{
    event::Effect,
    keys::{Mode, Page},
    state::DashboardState,
};

/// Lines that a page key scrolls.
pub(super) const SCROLL_LINES: isize = 5;

/// Shows another page.
pub(in super::super) fn go(state: &mut DashboardState, page: Page, effects: &mut Vec<Effect>) {
    state.page = page;
    state.filter.reset();
    state.modes = vec![Mode::Page];
    enter(state, effects);
}

/// Asks for what a page shows, when it is opened or a daemon answers anew.
pub(super) fn enter(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    match state.page {
        Page::Levels => ask_plans(state, effects),
        Page::Jobs => list_models(state, effects),
        Page::Overview | Page::Memory | Page::Canvas | Page::Chat => {}
    }
}

/// Asks for the plan of each level.
pub(super) fn ask_plans(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    if state.is_connected() {
        state.levels.answers.clear();
        effects.push(Effect::AskPlans(Level::ALL.to_vec(), tried(state)));
    }
}

/// Asks for the plan of one level anew. The plan so far stays until the answer comes.
pub(super) fn ask_plan_of(state: &DashboardState, level: Level, effects: &mut Vec<Effect>) {
    if state.is_connected() {
        effects.push(Effect::AskPlans(vec![level], tried(state)));
    }
}

fn tried(state: &DashboardState) -> PlanOptions {
    PlanOptions {
        budget: state.levels.tried.map(Budget::Bytes),
        mix: state.optimization().map(|known| known.mix),
        ..PlanOptions::default()
    }
}

/// Asks for the list of models.
pub(super) fn list_models(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    if state.is_connected() {
        effects.push(Effect::ListModels);
        // The answer to an earlier list may have been lost with the connection.
        if state.jobs.is_asking() {
            effects.push(Effect::ListOperations);
        }
    }
}
