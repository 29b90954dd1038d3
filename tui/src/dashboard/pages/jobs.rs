//! Jobs that run, and the models that there are.

use ratatui::layout::Rect;
use sluice_proto::v1::Snapshot;

use super::super::{event::Effect, keys::Action, state::State, view::Screen};

/// Asks for the models.
pub(super) fn enter(state: &State, effects: &mut Vec<Effect>) {
    if state.is_connected() {
        effects.push(Effect::ListModels);
    }
}

pub(super) fn act(_state: &mut State, _action: Action, _effects: &mut Vec<Effect>) {}

/// Asks whether to stop the selected job.
pub(in super::super) fn cancel(_state: &mut State) {}

/// Looks at what changed since the snapshot before.
pub(in super::super) fn note(_state: &State, _snapshot: &Snapshot, _effects: &mut Vec<Effect>) {}

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    screen.pane(area, "Jobs and models", true);
}
