//! Conversations, and writing words of an answer anew.

use ratatui::layout::Rect;
use sluice_proto::v1::GenerateRequest;

use super::{
    super::{
        event::Effect,
        keys::{Action, Mode},
        state::State,
        view::{Screen, Target},
    },
    canvas,
};

pub(super) fn act(state: &mut State, action: Action, _effects: &mut Vec<Effect>) {
    if action == Action::NextPane {
        state.modes.push(Mode::Prompt);
    }
}

/// What the keys do while words are chosen.
pub(in super::super) fn mask(state: &mut State, _action: Action, _effects: &mut Vec<Effect>) {
    state.modes.pop();
}

/// What a press of the mouse does.
pub(super) fn click(_state: &mut State, _target: Target) {}

/// Opens a new conversation.
pub(in super::super) fn begin(state: &mut State) {
    state.chat.begin();
    state.tell("a new conversation");
}

/// Forgets the open conversation.
pub(in super::super) fn forget(_state: &mut State) {}

/// What is sent for a prompt.
pub(in super::super) fn request(state: &mut State, prompt: &str) -> GenerateRequest {
    state.chat.request(prompt)
}

/// Our own request came to its end.
pub(in super::super) fn answered(_state: &mut State, _request_id: u64) {}

/// Our own request was refused or failed: the prompt comes back to be changed, unless another is being written.
pub(in super::super) fn refused(state: &mut State) {
    if state.prompt.value().is_empty()
        && let Some(prompt) = state.prompts.lines.last()
    {
        state.prompt = prompt.clone().into();
    }
}

/// What stands above the prompt.
pub(in super::super) fn prompt_title(_state: &State) -> String {
    "Prompt".to_owned()
}

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    canvas::draw_request(screen, area);
}
