//! Sending requests of our own: at once, or after the answer that they follow.

use sluice_proto::v1::GenerateRequest;

use super::super::{chat::WaitingPrompt, event::Effect, requests::OWN_MAX, state::DashboardState};

/// Sends the prompt, or has it wait for the answer before it.
pub(super) fn send_prompt(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    let prompt = state.prompt.value().trim().to_owned();
    if prompt.is_empty() {
        return;
    }
    if !state.is_connected() {
        state.warn("not connected; the prompt is kept");
    } else if state.requests.own.len() + state.chat.waiting.len() >= OWN_MAX {
        state.warn(format!(
            "{OWN_MAX} of your requests are waiting or running; Esc twice cancels them; the prompt is kept"
        ));
    } else {
        state.prompt.reset();
        state.prompts.push(&prompt);
        state.message = None;
        if state.chat.pending_here().is_some() {
            state.tell("will be sent after the previous answer");
        }
        state.chat.wait(prompt);
        send_waiting(state, effects);
    }
}

/// Sends waiting prompts whose conversation has no pending answer.
pub(super) fn send_waiting(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    // Also when the answer before failed: its conversation goes on with the next prompt.
    while state.is_connected()
        && let Some(waiting) = state.chat.next_waiting()
    {
        let serial = state.requests.send();
        let mut request = request(state, serial, &waiting);
        state.options.apply(state.model_kind(), &mut request);
        submit(state, serial, request, effects);
    }
}

/// The request for a prompt.
fn request(state: &mut DashboardState, serial: u64, waiting: &WaitingPrompt) -> GenerateRequest {
    let system = state.options.system();
    state.chat.ask(serial, system.as_deref(), waiting)
}

/// Whether a request of ours can be sent now; if not, it is told why.
pub(super) fn can_send(state: &mut DashboardState, otherwise: &str) -> bool {
    if !state.is_connected() {
        state.warn(format!("not connected; {otherwise}"));
        return false;
    }
    if state.requests.own.len() >= OWN_MAX {
        state.warn(format!(
            "{OWN_MAX} of your requests are waiting or running; {otherwise}"
        ));
        return false;
    }
    true
}

/// The same for another text in the place of an answer of the open conversation.
pub(super) fn can_replace(state: &mut DashboardState) -> bool {
    if state.chat.pending_here().is_some() {
        state.warn("an answer of this conversation is on its way; Esc twice cancels it");
        return false;
    }
    can_send(state, "the answer stays")
}

/// Sends a request of our own that was listed under this serial number.
pub(super) fn submit(
    state: &mut DashboardState,
    serial: u64,
    request: GenerateRequest,
    effects: &mut Vec<Effect>,
) {
    state.show_latest();
    let request = Box::new(request);
    effects.push(Effect::Generate { serial, request });
}
