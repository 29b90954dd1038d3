//! The form of what requests ask for.

use crossterm::event::KeyEvent;

use super::super::{
    event::Effect,
    keys::{Action, Mode},
    state::State,
    view::Screen,
};

/// Opens the form.
pub(in super::super) fn open(state: &mut State, _effects: &mut Vec<Effect>) {
    state.modes.push(Mode::Options);
}

/// What keys do in the form.
pub(in super::super) fn act(state: &mut State, action: Action, _effects: &mut Vec<Effect>) {
    if action == Action::Escape {
        state.modes.pop();
    }
}

/// Writes in the open field.
pub(in super::super) fn write(_state: &mut State, _key: &KeyEvent) {}

/// Writes pasted text in the open field.
pub(in super::super) fn paste(_state: &mut State, _text: &str) {}

/// Selects a field.
pub(super) fn click(_state: &mut State, _row: usize, _effects: &mut Vec<Effect>) {}

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>) {
    screen.popup(60, 20, "Options of requests");
}
