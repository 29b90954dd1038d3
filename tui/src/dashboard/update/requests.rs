//! Following requests, their ends, and the selection.

use sluice_proto::v1::{OperationState, generation_event::Event};

use super::{
    super::{event::Effect, state::DashboardState},
    chat,
};
use crate::placing;

/// Takes an event of a request. `serial` is set if it came over the stream of a request of ours.
pub(super) fn follow(
    state: &mut DashboardState,
    request_id: u64,
    kind: Event,
    serial: Option<u64>,
) {
    let own = serial.map(|serial| state.requests.own(serial));
    match own {
        // It was dropped here while this event was in the queue.
        Some(None) => return,
        // It was watched before its id was known to be ours; taken twice, its passes would count twice.
        None if state.requests.is_own(request_id) => return,
        _ => {}
    }
    let own = own.flatten();
    if let Event::Loading(loading) = &kind {
        state.tell(format!("waiting for {} to load", loading.model));
        return;
    }
    state.levels.presets.see(&kind);
    let ends = matches!(kind, Event::Done(_));
    if let Some(own) = own
        && own.request_id.is_none()
        && matches!(kind, Event::Queued(_))
    {
        let mut all = state.requests.own.iter_mut();
        if let Some(own) = all.find(|other| other.serial == own.serial) {
            own.request_id = Some(request_id);
        }
        state.requests.selected = Some(request_id);
        state.requests.chosen = false;
        state.show_latest();
    }
    match &kind {
        Event::Notice(notice) => state.tell(notice.text.clone()),
        Event::Placed(placed) => state.tell(placing::lines(placed).join("; ")),
        Event::Started(started) if !started.warnings.is_empty() => {
            state.tell(started.warnings.join("; "));
        }
        _ => {}
    }
    let recordings = &mut state.requests.recordings;
    recordings.entry(request_id).or_default().take(kind);
    if let Some(own) = own.filter(|_| ends) {
        state.requests.end_own(own.serial);
        chat::answered(state, own.serial, request_id);
    }
    state.requests.evict();
}

/// Takes the failure of a request of ours: the daemon refused it, or its stream broke off.
pub(super) fn own_failed(state: &mut DashboardState, serial: u64, message: String) {
    let Some(own) = state.requests.end_own(serial) else {
        return;
    };
    let told = match own.request_id {
        None => chat::refused(state, serial),
        Some(id) => {
            if let Some(recording) = state.requests.recordings.get_mut(&id) {
                recording.fail(message.clone());
            }
            chat::broke_off(state, serial, id)
        }
    };
    let message = chat::with_hint(message);
    state.warn(with(message, told));
}

/// Cancels a request of ours; one that has no id yet is taken back by dropping its stream.
pub(super) fn cancel_own(state: &mut DashboardState, serial: u64, effects: &mut Vec<Effect>) {
    match state.requests.own(serial).map(|own| own.request_id) {
        None => state.tell("your request has ended already"),
        Some(None) => {
            effects.push(Effect::DropOwn(serial));
            state.requests.end_own(serial);
            let told = chat::refused(state, serial);
            state.tell(with("your request was taken back".to_owned(), told));
        }
        Some(Some(id)) => {
            effects.push(Effect::Cancel(id));
            state.tell("cancelling");
        }
    }
}

/// Joins two messages.
fn with(words: String, more: Option<String>) -> String {
    match more {
        Some(more) => format!("{words}; {more}"),
        None => words,
    }
}

/// Cancels all requests of ours, and the prompts that wait to be sent.
pub(super) fn cancel_all_own(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    // First the waiting prompts, or the end of an answer would send the next one.
    let waiting = std::mem::take(&mut state.chat.waiting).len();
    let all: Vec<u64> = state.requests.own.iter().map(|own| own.serial).collect();
    for serial in all {
        cancel_own(state, serial, effects);
    }
    if waiting > 0 {
        let words = "cancelling".to_owned();
        state.tell(with(words, Some(chat::not_sent(waiting))));
    }
}

/// Takes a restart of the daemon: nothing that is shown or asked belongs to the new one.
pub(super) fn begin_anew(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    let own = state.requests.own.iter();
    // Requests without an id may have been sent to the new daemon already, so they go on.
    let numbered = own.filter(|own| own.request_id.is_some());
    let serials: Vec<u64> = numbered.map(|own| own.serial).collect();
    for serial in serials {
        effects.push(Effect::DropOwn(serial));
        own_failed(state, serial, "the daemon was restarted".to_owned());
    }
    state.requests.part();
    state.frozen = None;
    if state.opened.is_none() {
        state.reel.rewind();
    }
    state.withdraw_question();
}

/// Updates the selection and the watch that follows it. Returns whether the selection changed.
pub(super) fn select(state: &mut DashboardState, effects: &mut Vec<Effect>) -> bool {
    let rows = state.all_rows();
    let before = state.requests.selected;
    let requests = &state.requests;
    let listed = |id: &u64| rows.iter().any(|row| row.operation_id == *id);
    let present = requests
        .selected
        .filter(|id| listed(id) || requests.recordings.contains_key(id));
    let lasting = present.filter(|id| requests.chosen || !state.has_ended(*id));
    let own = requests.own.iter().rev().find_map(|own| own.request_id);
    let own = own.filter(|_| !requests.chosen);
    let running = rows
        .iter()
        .find(|row| row.state() == OperationState::Running)
        .map(|row| row.operation_id);
    let first = rows.first().map(|row| row.operation_id);
    // In order of preference. A user who looks at an earlier pass keeps the request; our own comes before what was
    // chosen by itself, and what runs before what ended.
    let held = present.filter(|_| state.reel.at.is_some());
    let selected = held.or(own).or(lasting).or(running).or(present).or(first);
    if selected != state.requests.selected {
        match state.opened {
            // An opened run stays on the screen; `choose` would close it.
            Some(_) => state.requests.selected = selected,
            None => choose(state, selected),
        }
        state.requests.chosen = false;
    }
    // Our own requests have their own streams, ended ones have no further events, and only generations can be watched.
    let wanted = state.requests.selected.filter(|id| {
        !state.requests.is_own(*id) && !state.has_ended(*id) && !state.fills_no_canvas(*id)
    });
    if state.is_connected() && wanted != state.requests.watched {
        state.requests.watched = wanted;
        effects.push(Effect::Watch(wanted));
    }
    selected != before
}

/// Selects a request on the user's behalf and shows its latest pass.
pub(super) fn choose(state: &mut DashboardState, request_id: Option<u64>) {
    state.requests.selected = request_id;
    state.requests.chosen = true;
    state.show_latest();
}

/// Selects the request `by` rows below the selected one.
pub(super) fn step_request(state: &mut DashboardState, by: isize) {
    let rows = state.rows();
    let at = rows
        .iter()
        .position(|row| Some(row.operation_id) == state.requests.selected)
        .map_or(0, |at| at.saturating_add_signed(by));
    if let Some(row) = rows.get(at.min(rows.len().saturating_sub(1))) {
        choose(state, Some(row.operation_id));
    }
}
