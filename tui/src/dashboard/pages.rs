//! The pages, each a module that draws it and carries out its keys.

pub(super) mod canvas;
pub(super) mod chat;
pub(super) mod jobs;
pub(super) mod levels;
pub(super) mod memory;
pub(super) mod options;
pub(super) mod overview;
mod table;

use super::{
    event::Effect,
    keys::{Action, Mode, Page},
    state::DashboardState,
    view::HitTarget,
};
use crate::canvas::ids_text;

/// Asks for what a page shows, when it is opened or a daemon answers anew.
pub(super) fn enter(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    match state.page {
        Page::Levels => levels::enter(state, effects),
        Page::Jobs => jobs::enter(state, effects),
        Page::Overview | Page::Memory | Page::Canvas | Page::Chat => {}
    }
}

/// Carries out an action on the page that is shown.
pub(super) fn act(state: &mut DashboardState, action: Action, effects: &mut Vec<Effect>) {
    match state.page {
        Page::Overview => overview::act(state, action),
        Page::Memory => memory::act(state, action),
        Page::Canvas => canvas::act(state, action, effects),
        Page::Chat => chat::act(state, action, effects),
        Page::Levels => levels::act(state, action, effects),
        Page::Jobs => jobs::act(state, action, effects),
    }
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
            super::update::go(state, Page::Memory, effects);
        }
        (Page::Overview, HitTarget::Canvas) => super::update::go(state, Page::Canvas, effects),
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
