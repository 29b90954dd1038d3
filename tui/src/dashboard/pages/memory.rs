//! What memory holds, over time, and where each layer is.

use ratatui::layout::Rect;

use super::super::{keys::Action, panels, state::State, view::Screen};

pub(super) fn act(state: &mut State, action: Action) {
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

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let inner = screen.pane(area, "Memory", true);
    let size = (usize::from(inner.width), usize::from(inner.height));
    let lines = panels::memory(screen.state, size);
    screen.lines(inner, lines);
}
