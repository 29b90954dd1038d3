//! Keys and clicks that mean something else on each page.

use super::{
    super::{
        event::Effect,
        hit_areas::HitTarget,
        keys::{Action, Mode, Page},
        state::DashboardState,
    },
    canvas, chat, jobs, levels,
    navigation::{SCROLL_LINES, go},
    options,
    requests::step_request,
};
use crate::canvas::ids_text;

/// Carries out an action on the page that is shown.
pub(super) fn act(state: &mut DashboardState, action: Action, effects: &mut Vec<Effect>) {
    match state.page {
        Page::Overview => act_on_overview(state, action),
        Page::Memory => act_on_memory(state, action),
        Page::Canvas => canvas::act(state, action, effects),
        Page::Chat => chat::act(state, action, effects),
        Page::Levels => levels::act(state, action, effects),
        Page::Jobs => jobs::act(state, action, effects),
    }
}

fn act_on_overview(state: &mut DashboardState, action: Action) {
    match action {
        Action::Up => step_request(state, -1),
        Action::Down => step_request(state, 1),
        Action::PageUp => state.reel.scroll(SCROLL_LINES),
        Action::PageDown => state.reel.scroll(-SCROLL_LINES),
        Action::NextPane => state.modes.push(Mode::Prompt),
        _ => {}
    }
}

fn act_on_memory(state: &mut DashboardState, action: Action) {
    let layers = state.snapshot().map_or(0, |snapshot| snapshot.layers.len());
    let last = layers.saturating_sub(1);
    state.layer = match action {
        Action::Left => state.layer.saturating_sub(1),
        Action::Right => (state.layer + 1).min(last),
        Action::First => 0,
        Action::Last => last,
        _ => state.layer.min(last),
    };
}

/// The answer that the page shows, as far as it can no longer change; `None` without one.
pub(super) fn answer(state: &DashboardState) -> Option<String> {
    let canvas = match state.page {
        Page::Chat => {
            let turns = &state.chat.conversation().turns;
            return Some(turns.get(state.chat.answer()?)?.text.clone());
        }
        Page::Canvas => state.recording()?.canvas(),
        Page::Overview | Page::Memory | Page::Levels | Page::Jobs => state.canvas()?,
    };
    let so_far = || Some(String::from_utf8_lossy(&canvas.pass.as_ref()?.stable_text).into_owned());
    match &canvas.done {
        Some(done) => Some(
            done.text
                .clone()
                .unwrap_or_else(|| ids_text(&done.token_ids)),
        ),
        None => so_far(),
    }
}

/// Carries out a click on the page that is shown.
pub(super) fn click(state: &mut DashboardState, target: HitTarget, effects: &mut Vec<Effect>) {
    match (state.page, target) {
        (Page::Memory, HitTarget::Layer(layer)) => state.layer = layer,
        (Page::Overview, HitTarget::Layer(layer)) => {
            state.layer = layer;
            go(state, Page::Memory, effects);
        }
        (Page::Overview, HitTarget::Canvas) => go(state, Page::Canvas, effects),
        (Page::Canvas, HitTarget::Pass(index)) => canvas::show(state, index),
        (Page::Chat, target) => chat::click(state, target),
        (Page::Levels, target) => levels::click(state, target),
        (Page::Jobs, target) => jobs::click(state, target),
        _ => {}
    }
}

/// The same over an overlay; only the form reacts to clicks.
pub(super) fn click_overlay(
    state: &mut DashboardState,
    target: HitTarget,
    effects: &mut Vec<Effect>,
) {
    if let (Mode::Options, HitTarget::Row(row)) = (state.mode(), target) {
        options::click(state, row, effects);
    }
}
