//! The one function that changes the state.
//!
//! Nothing here does I/O: [`update`] takes an event and the time, and answers with effects
//! for the runtime. Each module below takes in what concerns one page or one kind of event.

pub(super) mod canvas;
mod chat;
mod command;
mod jobs;
mod levels;
pub(super) mod navigation;
mod options;
mod pages;
mod recall;
mod requests;
mod sending;

use crossterm::event::KeyEvent;
use sluice_proto::v1::generation_event;
use sluice_shared::units;
use tui_input::Input;

use self::navigation::{SCROLL_LINES, enter, go};
use super::{
    event::{Effect, Event},
    hit_areas::HitTarget,
    jobs::is_started_anew,
    keys::{Action, Mode, Page},
    line, persister, prompt,
    recall::Recall,
    requests::{OwnRequest, is_active},
    state::{AfterYes, DaemonLink, DashboardState},
    view::{help_lines, prompt_columns},
};

/// How long a message stays that is no error, and how long a first Esc waits for the second.
const MESSAGE_MS: u64 = 6_000;
const SECOND_ESCAPE_MS: u64 = 2_000;
/// What the first Esc says.
const FIRST_ESCAPE: &str = "Esc again cancels what you asked for";
/// Longest answer that is copied: terminals and multiplexers between them drop longer OSC 52 sequences.
const COPY_BYTES_MAX: usize = 64 << 10;

/// What an event led to.
#[derive(Debug, Default, PartialEq)]
pub struct UpdateOutcome {
    /// Whether the screen has to be redrawn.
    pub changed: bool,
    /// What the runtime is to do.
    pub effects: Vec<Effect>,
}

/// Takes in one event at the given time.
pub fn update(state: &mut DashboardState, event: Event, now_ms: u64) -> UpdateOutcome {
    let mut effects = Vec::new();
    let shown_seconds = state.now_ms / 1000;
    state.now_ms = now_ms;
    let mut changed = true;
    let may_select = may_select(&event);
    match event {
        Event::Key(key) => press(state, key, &mut effects),
        Event::Paste(text) => paste(state, &text),
        Event::Click(target) => click(state, target, &mut effects),
        Event::Wheel(target, by) => wheel(state, target, by, &mut effects),
        Event::Resized(columns, rows) => state.size = (columns, rows),
        Event::Tick => {
            changed = tick(state, shown_seconds);
            effects.extend(persister::due(state).map(Effect::Persist));
        }
        Event::Connected => {
            state.link = DaemonLink::Connected;
            state.asks_past = true;
            // A watch broke with the connection; what is selected is followed anew.
            state.requests.watched = None;
            enter(state, &mut effects);
            // Prompts that waited while the connection was lost.
            sending::send_waiting(state, &mut effects);
        }
        Event::Lost { cause, retry_ms } => {
            state.link = DaemonLink::Lost {
                cause,
                retry_at_ms: now_ms + retry_ms,
            };
        }
        Event::Snapshot(snapshot) => {
            state.link = DaemonLink::Connected;
            let before = state.latest.as_ref().map(|(before, _)| &**before);
            // A restarted daemon numbers its operations anew, so its snapshot must not be compared with the one before.
            let is_new = before.is_some_and(|before| is_started_anew(before, &snapshot));
            let before = before.filter(|_| !is_new);
            let mut asks = before.is_some_and(|before| state.requests.compare(before, &snapshot));
            state.history.take(&snapshot, now_ms);
            asks |= jobs::note(state, &snapshot, &mut effects);
            levels::note(state, &snapshot, &mut effects);
            state.latest = Some((snapshot, now_ms));
            jobs::see(state);
            if is_new {
                // After `latest` is replaced: what is selected or asked again refers to the new daemon.
                requests::begin_anew(state, &mut effects);
                state.levels.latest_mix = None;
            }
            if std::mem::take(&mut state.asks_past) {
                effects.push(Effect::ListFidelity);
                effects.push(Effect::ListMixes);
                asks = true;
            }
            if asks && !effects.contains(&Effect::ListOperations) {
                effects.push(Effect::ListOperations);
            }
            changed = state.frozen.is_none();
        }
        Event::Request { request_id, kind } => requests::follow(state, request_id, *kind, None),
        Event::Own {
            serial,
            request_id,
            kind,
        } => {
            requests::follow(state, request_id, *kind, Some(serial));
            sending::send_waiting(state, &mut effects);
        }
        Event::OwnFailed { serial, message } => {
            requests::own_failed(state, serial, message);
            sending::send_waiting(state, &mut effects);
        }
        Event::WatchFailed {
            request_id,
            message,
        } => {
            // A request of ours has its own stream, so a failed watch says nothing about it. Without a connection every watch
            // fails; that is shown as the lost connection.
            if state.link == DaemonLink::Connected
                && !state.requests.is_own(request_id)
                && let Some(recording) = state.requests.recordings.get_mut(&request_id)
            {
                recording.fail(message);
            }
        }
        Event::Opened(opened) => canvas::open(state, opened),
        Event::Recalled { query, answer } => {
            for notice in &answer.notices {
                state.tell(notice.clone());
            }
            recall::open(state, Recall::found(&query, &answer));
        }
        Event::Succeeded(message) => state.tell(message),
        Event::Failed(message) => state.warn(message),
        Event::Planned { .. }
        | Event::Predicted { .. }
        | Event::Changing { .. }
        | Event::Converting(_)
        | Event::Applied { .. }
        | Event::ApplyFailed { .. }
        | Event::Measuring { .. }
        | Event::Measured(_)
        | Event::MeasuringStopped => levels::take(state, event, &mut effects),
        Event::Models(models) => state.jobs.models = Some(models),
        Event::Operations(operations) => {
            if state.jobs.learn(&operations) {
                effects.push(Effect::ListFidelity);
            }
            levels::learn_optimizations(state, &operations, &mut effects);
            let requests = operations.into_iter();
            let requests = requests.filter(|operation| operation.kind().is_request());
            state.requests.learn(requests.collect());
        }
        Event::Fidelity(measurements) => levels::learn(state, &measurements),
        Event::Mixes(kept) => levels::learn_mixes(state, &kept, &mut effects),
        Event::Terminate => effects.push(Effect::Quit),
    }
    if may_select && requests::select(state, &mut effects) {
        changed = true;
    }
    UpdateOutcome { changed, effects }
}

/// Whether an event may change the selection. Selecting walks all rows, and most events are passes, which never change it.
fn may_select(event: &Event) -> bool {
    match event {
        Event::Request { kind, .. } | Event::Own { kind, .. } => {
            matches!(
                **kind,
                generation_event::Event::Queued(_) | generation_event::Event::Done(_)
            )
        }
        Event::Key(_)
        | Event::Click(_)
        | Event::Wheel(..)
        | Event::Connected
        | Event::Snapshot(_)
        | Event::Operations(_)
        | Event::OwnFailed { .. }
        | Event::WatchFailed { .. } => true,
        _ => false,
    }
}

/// Expires messages and plays passes; returns whether that changed the screen. A clock that shows nothing redraws nothing.
fn tick(state: &mut DashboardState, shown_seconds: u64) -> bool {
    let now_ms = state.now_ms;
    let expired = |at: u64, span: u64| now_ms.saturating_sub(at) >= span;
    let message_ends = state
        .message
        .as_ref()
        .is_some_and(|message| !message.is_error && expired(message.at_ms, MESSAGE_MS));
    let escape_ends = matches!(state.escape_at_ms, Some(at) if expired(at, SECOND_ESCAPE_MS));
    if message_ends {
        state.message = None;
    }
    if escape_ends {
        state.escape_at_ms = None;
    }
    let counts = matches!(state.link, DaemonLink::Lost { .. }) || state.stale_ms().is_some();
    let next_second = state.now_ms / 1000 != shown_seconds;
    let played = canvas::play(state);
    // Ages and waits are shown in whole seconds, so they redraw once a second and not at each tick.
    message_ends || escape_ends || played || (counts && next_second)
}

fn press(state: &mut DashboardState, key: KeyEvent, effects: &mut Vec<Effect>) {
    let mode = state.mode();
    let action = mode.action(state.page, &key);
    attend(state, action == Some(Action::Escape));
    match action {
        Some(action) => act(state, action, &key, effects),
        None if mode.writes() => write(state, &key),
        None => {}
    }
}

/// Notes that the user is present. An error stays on the screen until now, and any other key disarms the first Esc.
fn attend(state: &mut DashboardState, is_escape: bool) {
    if state.has_error() {
        state.message = None;
    }
    if !is_escape && state.escape_at_ms.take().is_some() {
        state
            .message
            .take_if(|message| message.text == FIRST_ESCAPE);
    }
}

/// Writes a key that no table of the mode names into the line that is being edited.
fn write(state: &mut DashboardState, key: &KeyEvent) {
    match state.mode() {
        Mode::Prompt if prompt::write(&mut state.prompt, key) => state.prompts.leave(),
        Mode::Command if line::write(&mut state.command, key) => state.commands.leave(),
        Mode::Filter => {
            line::write(state.search_mut(), key);
            state.help_line = 0;
        }
        Mode::Field => options::write(state, key),
        _ => {}
    }
}

fn paste(state: &mut DashboardState, text: &str) {
    attend(state, false);
    match state.mode() {
        Mode::Prompt => {
            state.prompts.leave();
            if !prompt::paste(&mut state.prompt, text) {
                let most = units::bytes(prompt::BYTES_MAX as u64);
                state.warn(format!(
                    "a prompt can have {most}; the rest of the pasted text was dropped"
                ));
            }
        }
        Mode::Command => line::paste(&mut state.command, text),
        Mode::Filter => line::paste(state.search_mut(), text),
        Mode::Field => options::paste(state, text),
        // Nothing is being written.
        _ => {}
    }
}

fn act(state: &mut DashboardState, action: Action, key: &KeyEvent, effects: &mut Vec<Effect>) {
    let mode = state.mode();
    match (mode, action) {
        (_, Action::Quit) => effects.push(Effect::Quit),
        (_, Action::Suspend) => effects.push(Effect::Suspend),
        (Mode::Help, _) => help(state, action),
        (Mode::Confirm, _) => answer(state, action == Action::Yes, effects),
        (Mode::Command, _) => command::act(state, action, effects),
        (Mode::Filter, _) => filter(state, action),
        (Mode::Options | Mode::Field, _) if action != Action::Help => {
            options::act(state, action, effects);
        }
        (Mode::Recall, _) if action != Action::Help => recall::act(state, action),
        (Mode::Mask, _) if action != Action::Help => chat::mask(state, action, effects),
        (Mode::Prompt, Action::HelpIfEmpty) if !state.prompt.value().is_empty() => {
            write(state, key);
        }
        (_, Action::Help | Action::HelpIfEmpty) => {
            state.help_line = 0;
            state.help_filter.reset();
            state.modes.push(Mode::Help);
        }
        (_, Action::Go(page)) => go(state, page, effects),
        (Mode::Prompt, Action::NextPane) => leave_prompt(state),
        (_, Action::Command) => {
            state.command.reset();
            state.modes.push(Mode::Command);
        }
        (_, Action::Filter) => {
            state.filter.reset();
            state.modes.push(Mode::Filter);
        }
        (_, Action::Options) => options::open(state, effects),
        (_, Action::Freeze) => freeze(state),
        (_, Action::Theme) => {
            state.paint.theme = state.paint.theme.next();
            state.chosen_looks.theme = Some(state.paint.theme);
            state.tell(format!("theme {}", state.paint.theme));
        }
        (_, Action::Write) => {
            if !state.page.has_prompt() {
                go(state, Page::Chat, effects);
            }
            state.modes = vec![Mode::Page, Mode::Prompt];
        }
        (_, Action::NewConversation) => chat::begin(state),
        (_, Action::Escape) => escape(state, effects),
        (Mode::Prompt, Action::Enter) => sending::send_prompt(state, effects),
        (Mode::Prompt, Action::Up) => up_or_down(state, -1),
        (Mode::Prompt, Action::Down) => up_or_down(state, 1),
        (Mode::Prompt, Action::NewLine) => {
            prompt::break_line(&mut state.prompt);
            state.prompts.leave();
        }
        (_, Action::Copy) => copy(state, effects),
        (_, Action::Cancel) => cancel(state),
        _ => pages::act(state, action, effects),
    }
}

fn leave_prompt(state: &mut DashboardState) {
    state.modes = vec![Mode::Page];
}

fn help(state: &mut DashboardState, action: Action) {
    let by = match action {
        Action::Up => -1,
        Action::Down => 1,
        Action::PageUp => -SCROLL_LINES,
        Action::PageDown => SCROLL_LINES,
        Action::Filter => {
            state.help_filter.reset();
            state.modes.push(Mode::Filter);
            return;
        }
        _ => {
            state.help_filter.reset();
            state.modes.pop();
            return;
        }
    };
    let last = help_lines(state).len().saturating_sub(1);
    state.help_line = state.help_line.saturating_add_signed(by).min(last);
}

fn filter(state: &mut DashboardState, action: Action) {
    if action == Action::Escape {
        state.search_mut().reset();
    }
    state.modes.pop();
}

fn answer(state: &mut DashboardState, is_yes: bool, effects: &mut Vec<Effect>) {
    state.modes.pop();
    let Some(question) = state.question.take().filter(|_| is_yes) else {
        return;
    };
    effects.extend(question.effects);
    match question.after_yes {
        AfterYes::Nothing => {}
        AfterYes::CancelOwn(serial) => requests::cancel_own(state, serial, effects),
        AfterYes::ForgetConversation => chat::forget(state),
        AfterYes::Preset(preset) => levels::set_preset(state, preset),
    }
}

fn freeze(state: &mut DashboardState) {
    match state.frozen.take() {
        Some(_) => state.tell("going on"),
        None if state.latest.is_some() => {
            // Only what is drawn freezes: the latest snapshot still updates, since actions depend on it.
            state.frozen.clone_from(&state.latest);
            state.tell("the screen is frozen; f resumes");
        }
        None => state.warn("there is nothing to freeze yet"),
    }
}

fn escape(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    if state.own_is_active() {
        // Esc also leaves prompts and filters out of habit, so cancelling takes two in a row.
        if state.escape_at_ms.take().is_some() {
            requests::cancel_all_own(state, effects);
            return;
        }
        state.escape_at_ms = Some(state.now_ms);
        state.tell(FIRST_ESCAPE);
    }
    state.filter.reset();
    leave_prompt(state);
    if state.page == Page::Canvas {
        state.show_latest();
    }
}

/// A line up or down in the prompt; from its first and its last on, other prompts.
fn up_or_down(state: &mut DashboardState, by: isize) {
    let columns = prompt_columns(state.size);
    if !prompt::step(&mut state.prompt, columns, by) {
        recall(state, by);
    }
}

/// Gives the answer that the page shows to the terminal's clipboard.
fn copy(state: &mut DashboardState, effects: &mut Vec<Effect>) {
    match pages::answer(state).filter(|text| !text.is_empty()) {
        None => state.warn("there is no answer to copy yet"),
        Some(text) if text.len() > COPY_BYTES_MAX => {
            let (has, most) = (text.len() as u64, COPY_BYTES_MAX as u64);
            state.warn(format!(
                "the answer has {}; terminals accept at most {}; s on page 3 saves the run",
                units::bytes(has),
                units::bytes(most)
            ));
        }
        Some(text) => {
            let count = units::count(text.chars().count() as u64);
            state.tell(format!(
                "{count} characters went to the terminal's clipboard, if it allows that (OSC 52)"
            ));
            effects.push(Effect::Copy(text));
        }
    }
}

fn recall(state: &mut DashboardState, by: isize) {
    let present = state.prompt.value().to_owned();
    if let Some(text) = state.prompts.step(&present, by) {
        state.prompt = Input::new(text);
    }
}

/// Asks whether to stop what is selected.
fn cancel(state: &mut DashboardState) {
    match state.page {
        Page::Jobs => return jobs::cancel(state),
        Page::Levels => return levels::cancel(state),
        Page::Overview | Page::Memory | Page::Canvas | Page::Chat => {}
    }
    let selected = state.requests.selected;
    let own = match state.page {
        Page::Chat => {
            // On the chat page the answer of the open conversation is meant, whatever request is selected elsewhere.
            let asked = state.chat.pending_here();
            asked.and_then(|asked| state.requests.own(asked.serial))
        }
        _ => {
            let mut own = state.requests.own.iter().rev();
            let is_meant = |own: &&OwnRequest| match own.request_id {
                None => !state.requests.chosen,
                known => known == selected,
            };
            own.find(is_meant).copied()
        }
    };
    if let Some(own) = own {
        let words = match own.request_id {
            Some(id) => format!("Cancel request {id}?"),
            None => "Cancel your request?".to_owned(),
        };
        return state.ask(words, Vec::new(), AfterYes::CancelOwn(own.serial));
    }
    if state.page == Page::Chat {
        return state.warn("no answer of this conversation is on its way");
    }
    let rows = state.all_rows();
    let active = rows
        .iter()
        .find(|row| Some(row.operation_id) == selected && is_active(row));
    match active.map(|row| row.operation_id) {
        Some(id) => state.ask(
            format!("Cancel request {id}?"),
            vec![Effect::Cancel(id)],
            AfterYes::Nothing,
        ),
        None => state.warn("no waiting or running request is selected"),
    }
}

fn click(state: &mut DashboardState, target: HitTarget, effects: &mut Vec<Effect>) {
    attend(state, false);
    // Hit areas below an overlay are still noted; a click on them must not act through it.
    let mode = state.mode();
    if !matches!(mode, Mode::Page | Mode::Prompt) {
        return pages::click_overlay(state, target, effects);
    }
    match target {
        HitTarget::Page(page) => go(state, page, effects),
        HitTarget::Prompt => state.modes = vec![Mode::Page, Mode::Prompt],
        HitTarget::Request(id) => requests::choose(state, Some(id)),
        other => {
            state.modes = vec![Mode::Page];
            pages::click(state, other, effects);
        }
    }
}

fn wheel(
    state: &mut DashboardState,
    target: Option<HitTarget>,
    by: isize,
    effects: &mut Vec<Effect>,
) {
    let action = |less, more| if by < 0 { less } else { more };
    match (state.mode(), target) {
        (Mode::Help, _) => help(state, action(Action::Up, Action::Down)),
        (Mode::Page | Mode::Prompt, Some(HitTarget::Request(_))) => {
            requests::step_request(state, by);
        }
        (Mode::Page | Mode::Prompt, Some(target))
            if target == HitTarget::Canvas || state.page == Page::Chat =>
        {
            pages::act(state, action(Action::PageUp, Action::PageDown), effects);
        }
        (Mode::Page | Mode::Prompt, _) if !matches!(state.page, Page::Overview) => {
            pages::act(state, action(Action::Up, Action::Down), effects);
        }
        _ => {}
    }
}
