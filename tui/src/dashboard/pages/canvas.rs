//! One request's text as it takes shape, pass by pass.

use ratatui::layout::Rect;

use super::super::{
    event::Effect,
    keys::Action,
    panels,
    state::State,
    update::{SCROLL_LINES, step_request},
    view::{Screen, Target},
};

pub(super) fn act(state: &mut State, action: Action, _effects: &mut Vec<Effect>) {
    match action {
        Action::Up => scroll(state, 1),
        Action::Down => scroll(state, -1),
        Action::PageUp => scroll(state, SCROLL_LINES),
        Action::PageDown => scroll(state, -SCROLL_LINES),
        Action::PreviousRequest => step_request(state, -1),
        Action::NextRequest => step_request(state, 1),
        _ => {}
    }
}

/// Scrolls so many lines back.
pub(super) fn scroll(state: &mut State, by: isize) {
    state.reel.scroll = state.reel.scroll.saturating_add_signed(by);
}

/// Shows a pass of the selected request.
pub(super) fn show(state: &mut State, index: usize) {
    state.reel.at = Some(index);
}

/// Shows the next pass when its time has come; whether that changed something.
pub(in super::super) fn play(_state: &mut State) -> bool {
    false
}

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    draw_request(screen, area);
}

/// The selected request: its progress, its canvas and what the canvas's looks mean.
pub(super) fn draw_request(screen: &mut Screen<'_, '_>, area: Rect) {
    screen.target(area, Target::Canvas);
    panels::request(screen, area);
}
