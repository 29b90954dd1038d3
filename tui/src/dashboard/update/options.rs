//! Keys of the form with the options of requests.

use crossterm::event::KeyEvent;

use super::super::{
    event::Effect,
    keys::{Action, Mode},
    line,
    options::{FIELDS, OptionField},
    state::DashboardState,
};

/// Opens the form.
pub(super) fn open(state: &mut DashboardState, _effects: &mut Vec<Effect>) {
    state.modes.push(Mode::Options);
}

/// Carries out an action in the form.
pub(super) fn act(state: &mut DashboardState, action: Action, _effects: &mut Vec<Effect>) {
    let options = &mut state.options;
    let last = FIELDS.len() - 1;
    let field = &FIELDS[options.field.min(last)];
    let is_writing = state.modes.last() == Some(&Mode::Field);
    match (is_writing, action) {
        (false, Action::Up) => options.field = options.field.saturating_sub(1),
        (false, Action::Down) => options.field = (options.field + 1).min(last),
        (false, Action::Clear) => {
            // Unsetting a field cannot fail: the daemon's default is always valid.
            let _ = options.set(field.name, "");
        }
        (false, Action::Enter) => begin(state),
        (false, Action::Escape) => {
            state.modes.pop();
        }
        (true, Action::Enter) => {
            let value = options.line.value().to_owned();
            match options.set(field.name, &value) {
                Ok(()) => leave_field(state),
                Err(problem) => options.problem = Some(problem),
            }
        }
        (true, Action::Complete) => complete(state, field),
        (true, Action::Escape) => leave_field(state),
        _ => {}
    }
}

fn begin(state: &mut DashboardState) {
    let options = &mut state.options;
    let value = options.value(FIELDS[options.field].name);
    options.line = value.unwrap_or_default().into();
    options.problem = None;
    state.modes.push(Mode::Field);
}

fn leave_field(state: &mut DashboardState) {
    state.options.problem = None;
    state.options.line.reset();
    state.modes.pop();
}

/// Completes the value: writes the choice after the present one, or the first that begins like it.
fn complete(state: &mut DashboardState, field: &OptionField) {
    let written = state.options.line.value();
    let choices = &field.choices;
    let at = choices.iter().position(|(choice, _)| choice == written);
    let next = match at {
        Some(at) => choices.get((at + 1) % choices.len()),
        None => (choices
            .iter()
            .find(|(choice, _)| choice.starts_with(written)))
        .or_else(|| choices.first()),
    };
    if let Some((choice, _)) = next {
        state.options.line = choice.as_str().into();
        state.options.problem = None;
    }
}

/// Writes a key into the open field.
pub(super) fn write(state: &mut DashboardState, key: &KeyEvent) {
    if line::write(&mut state.options.line, key) {
        state.options.problem = None;
    }
}

/// Inserts pasted text into the open field.
pub(super) fn paste(state: &mut DashboardState, text: &str) {
    line::paste(&mut state.options.line, text);
    state.options.problem = None;
}

/// Selects a field; the selected one is opened.
pub(super) fn click(state: &mut DashboardState, row: usize, _effects: &mut Vec<Effect>) {
    if row >= FIELDS.len() {
        return;
    }
    match state.options.field == row {
        true => begin(state),
        false => state.options.field = row,
    }
}
