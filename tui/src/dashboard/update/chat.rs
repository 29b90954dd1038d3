//! Keys of the chat page, and answers that end.

use sluice_proto::v1::{CanvasToken, FinishReason, GenerationDone, ModelKind, TokenState};

use super::{
    super::{
        chat::{AnswerOutcome, WordChoice},
        event::Effect,
        hit_areas::HitTarget,
        keys::{Action, Mode},
        pages::chat::messages,
        state::{AfterYes, DashboardState},
    },
    navigation::SCROLL_LINES,
    sending::{can_replace, submit},
};
use crate::canvas::Canvas;

/// Part of the daemon's message about a prompt that is too long.
const CONTEXT_WORDS: &str = "exceed the model's context";

pub(super) fn act(state: &mut DashboardState, action: Action, effects: &mut Vec<Effect>) {
    let lines = messages::lines(state);
    let chat = &mut state.chat;
    match action {
        Action::NextPane => state.modes.push(Mode::Prompt),
        Action::Up => chat.select(-1),
        Action::Down => chat.select(1),
        Action::PageUp => chat.scroll = (chat.scroll - SCROLL_LINES).max(-lines),
        Action::PageDown => {
            // Below the end there is nothing.
            let most = if chat.selected.is_some() { lines } else { 0 };
            chat.scroll = (chat.scroll + SCROLL_LINES).min(most);
        }
        Action::PreviousConversation => chat.step(-1),
        Action::NextConversation => chat.step(1),
        Action::ForgetConversation => ask_to_forget(state),
        Action::Mask => choose_words(state),
        Action::Again => again(state, effects),
        Action::Undo => match chat.undo() {
            true => state.tell("the answer before; u brings this one back"),
            false => state.warn("there is no answer before this one"),
        },
        _ => {}
    }
}

fn ask_to_forget(state: &mut DashboardState) {
    let conversation = state.chat.conversation();
    match conversation.title() {
        Some(title) => {
            let words = format!("Forget the conversation \"{title}\"?");
            state.ask(words, Vec::new(), AfterYes::ForgetConversation);
        }
        None => state.warn("this conversation is still empty"),
    }
}

fn again(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    if !can_replace(state) {
        return;
    }
    let (serial, system) = (state.requests.send(), state.options.system());
    let Some(mut request) = state.chat.again(serial, system.as_deref()) else {
        // The serial was listed as one of our requests before it was known that there is nothing to send.
        state.requests.end_own(serial);
        return state.warn("there is no answer yet");
    };
    state.options.apply(state.model_kind(), &mut request);
    // With the same seed the answer would be the same.
    if let Some(sampling) = &mut request.sampling {
        sampling.seed = None;
    }
    submit(state, serial, request, effects);
}

fn choose_words(state: &mut DashboardState) {
    if state.model_kind() == ModelKind::Autoregressive {
        state.warn("the loaded model is autoregressive: it cannot fill in words");
        return;
    }
    let answer = state.chat.answer();
    let text = answer.map(|index| state.chat.conversation().turns[index].text.as_str());
    let choice = answer.zip(text);
    match choice.and_then(|(index, text)| WordChoice::of(index, text)) {
        Some(choice) => {
            state.chat.scroll = 0;
            state.chat.choice = Some(choice);
            state.modes.push(Mode::Mask);
        }
        None => state.warn("the selected answer has no words"),
    }
}

/// Carries out a key while words are chosen.
pub(super) fn mask(state: &mut DashboardState, action: Action, effects: &mut Vec<Effect>) {
    let columns = messages::columns(state.size);
    let chat = &mut state.chat;
    let Some(choice) = &mut chat.choice else {
        state.modes.pop();
        return;
    };
    let text = chat.conversations[chat.open].turns.get(choice.turn);
    let text = text.map_or("", |turn| turn.text.as_str());
    match action {
        Action::Left => choice.step(-1),
        Action::Right => choice.step(1),
        Action::Up => choice.at = messages::word_below(text, choice, columns, -1),
        Action::Down => choice.at = messages::word_below(text, choice, columns, 1),
        Action::Mark => {
            choice.from = match choice.from {
                Some(_) => None,
                None => Some(choice.at),
            }
        }
        Action::Enter if can_replace(state) => {
            state.modes.pop();
            rewrite(state, effects);
        }
        Action::Escape => {
            state.chat.choice = None;
            state.modes.pop();
        }
        _ => {}
    }
}

fn rewrite(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    let (serial, system) = (state.requests.send(), state.options.system());
    let Some(mut request) = state.chat.rewrite(serial, system.as_deref()) else {
        state.requests.end_own(serial);
        return;
    };
    state.options.apply(state.model_kind(), &mut request);
    // Lengths and steps are set for whole answers; of an edit, the span says how many positions there are to fill.
    request.length = None;
    request.block_length = None;
    if request.diffusion().is_some() {
        request.diffusion_mut().steps = None;
    }
    submit(state, serial, request, effects);
}

/// Opens or selects what was clicked.
pub(super) fn click(state: &mut DashboardState, target: HitTarget) {
    match target {
        HitTarget::Conversation(index) => state.chat.show(index),
        HitTarget::Row(message) => {
            state.chat.selected = Some(message);
            state.chat.scroll = 0;
        }
        _ => {}
    }
}

/// Opens a new conversation.
pub(super) fn begin(state: &mut DashboardState) {
    state.chat.begin();
    state.tell("a new conversation");
}

/// Forgets the open conversation.
pub(super) fn forget(state: &mut DashboardState) {
    state.chat.forget();
    state.tell("the conversation is forgotten");
}

/// Takes the answer of a request of ours that ended.
pub(super) fn answered(state: &mut DashboardState, serial: u64, request_id: u64) {
    let canvas = state.requests.canvas(request_id);
    if let Some(done) = canvas.and_then(|canvas| canvas.done.clone())
        && let Some(words) = conclude(state, serial, &done)
    {
        state.tell(words);
    }
}

/// Takes a request of ours whose stream broke off: it counts as cancelled after the last pass that was seen. Returns a message,
/// if any.
pub(super) fn broke_off(
    state: &mut DashboardState,
    serial: u64,
    request_id: u64,
) -> Option<String> {
    let canvas = state.requests.canvas(request_id);
    let done = canvas.map(|canvas| remains(request_id, canvas));
    let done = done.unwrap_or_else(|| remains(request_id, &Canvas::default()));
    conclude(state, serial, &done)
}

fn remains(request_id: u64, canvas: &Canvas) -> GenerationDone {
    let pass = canvas.pass.clone().unwrap_or_default();
    let is_fixed =
        |token: &CanvasToken| matches!(token.state(), TokenState::Committed | TokenState::Pinned);
    let tokens: Vec<_> = canvas.seen().cloned().collect();
    let fixed = tokens.iter().take_while(|token| is_fixed(token));
    let is_generated = |token: &&CanvasToken| token.state() == TokenState::Committed;
    let generated = fixed.filter(is_generated).count();
    GenerationDone {
        request_id,
        finish_reason: FinishReason::Cancelled.into(),
        text: Some(String::from_utf8_lossy(&pass.stable_text).into_owned()),
        generated_tokens: u32::try_from(generated).unwrap_or(u32::MAX),
        seed: canvas.started.as_ref().map_or(0, |started| started.seed),
        is_exact: pass.is_exact,
        passes: pass.passes,
        elapsed_ms: pass.elapsed_ms,
        ..Default::default()
    }
}

/// Takes a request's result into its conversation. Returns a message, if any.
fn conclude(state: &mut DashboardState, serial: u64, done: &GenerationDone) -> Option<String> {
    let canvas = state.requests.canvas(done.request_id);
    let started = canvas.and_then(|canvas| canvas.started.clone());
    match state.chat.take(serial, done, started.as_ref()) {
        AnswerOutcome::Taken => None,
        AnswerOutcome::Nothing(prompts) if prompts.is_empty() => {
            Some("stopped; the answer stays as it was".to_owned())
        }
        AnswerOutcome::Nothing(prompts) => write_again(state, &prompts),
        AnswerOutcome::Shortened => Some(
            "the conversation exceeded the context; its earliest turns were dropped".to_owned(),
        ),
    }
}

/// Takes a request of ours that was refused or taken back: its prompt and those that waited for its answer return to the
/// prompt line. Returns a message, if any.
pub(super) fn refused(state: &mut DashboardState, serial: u64) -> Option<String> {
    let prompts = state.chat.give_up(serial);
    write_again(state, &prompts)
}

/// Puts prompts back on the prompt line, joined. If another prompt is being written there, returns a message instead: the
/// prompts are still in the history.
fn write_again(state: &mut DashboardState, prompts: &[String]) -> Option<String> {
    if prompts.is_empty() {
        return None;
    }
    if !state.prompt.value().is_empty() {
        return Some(not_sent(prompts.len()));
    }
    state.prompt = prompts.join("\n\n").into();
    state.prompts.leave();
    None
}

/// The message that tells where unanswered prompts are.
pub(super) fn not_sent(prompts: usize) -> String {
    match prompts {
        1 => "your prompt has no answer; Up on an empty line has it".to_owned(),
        _ => format!("{prompts} of your prompts have no answer; Up on an empty line has them"),
    }
}

/// The daemon's message about our request, with a hint where one is known.
pub(super) fn with_hint(message: String) -> String {
    match message.contains(CONTEXT_WORDS) {
        true => format!("{message}; n begins a new conversation"),
        false => message,
    }
}
