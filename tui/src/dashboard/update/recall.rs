//! Looking at what the daemon remembers, and having it remember more.

use super::{
    super::{
        event::Effect,
        keys::{Action, Mode},
        pages::recall::text_lines,
        recall::Recall,
        state::DashboardState,
    },
    navigation::SCROLL_LINES,
};
use crate::memory::DEFAULT_TOKENS;

/// Carries out a key while pieces are looked at.
pub(super) fn act(state: &mut DashboardState, action: Action) {
    let last = text_lines(state).len().saturating_sub(1);
    let by = SCROLL_LINES.unsigned_abs();
    let recall = &mut state.recall;
    match action {
        Action::Up => recall.step(-1),
        Action::Down => recall.step(1),
        Action::PageUp => recall.scroll = recall.scroll.saturating_sub(by),
        Action::PageDown => recall.scroll = (recall.scroll + by).min(last),
        Action::Escape => {
            state.modes.pop();
        }
        _ => {}
    }
}

/// Shows pieces.
pub(super) fn open(state: &mut DashboardState, recall: Recall) {
    state.recall = recall;
    state.modes.retain(|mode| *mode != Mode::Recall);
    state.modes.push(Mode::Recall);
}

/// Shows what stood in the prompt of the selected answer, or of the last.
pub(super) fn sources(state: &mut DashboardState) -> Result<(), String> {
    let turns = &state.chat.conversation().turns;
    let answer = state.chat.answer().and_then(|index| turns.get(index));
    let origin = answer.and_then(|turn| turn.origin.as_ref());
    let origin = origin.ok_or("there is no answer yet")?;
    let canvas = state.requests.canvas(origin.request_id);
    let started = canvas.and_then(|canvas| canvas.started.as_ref());
    // Another daemon may have given the number to another request.
    let started = started.filter(|started| started.seed == origin.seed);
    let memory = started.and_then(|started| started.memory.as_ref());
    let recall = memory.map(Recall::used);
    let recall = recall.ok_or(match origin.memory {
        Some(_) => "what this answer had of the daemon's memory is no longer known",
        None => "this answer had nothing of the daemon's memory; `:memory` switches it on",
    })?;
    open(state, recall);
    Ok(())
}

/// Asks for what the daemon remembers about some words.
pub(super) fn search(
    state: &DashboardState,
    text: &str,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    state.check_connected()?;
    effects.push(Effect::Recall(text.to_owned()));
    Ok(())
}

/// Has the daemon remember a note.
pub(super) fn remember(
    state: &DashboardState,
    text: &str,
    effects: &mut Vec<Effect>,
) -> Result<(), String> {
    state.check_connected()?;
    effects.push(Effect::Remember {
        collection: state.options.remembers_in(),
        text: text.to_owned(),
    });
    Ok(())
}

/// Switches what of the daemon's memory goes into prompts.
pub(super) fn switch(state: &mut DashboardState, text: &str) -> Result<(), String> {
    let tokens = match text {
        "on" => DEFAULT_TOKENS,
        "off" => "",
        tokens => tokens,
    };
    state.options.set("memory", tokens)?;
    state.tell(match state.options.value("memory") {
        Some(tokens) => format!("prompts take what is remembered, in at most {tokens} tokens"),
        None => "prompts take nothing that is remembered".to_owned(),
    });
    Ok(())
}
