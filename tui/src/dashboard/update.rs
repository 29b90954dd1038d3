//! The one function that changes the state.
//!
//! Nothing here does I/O: [`update`] takes an event and the time, and answers with effects
//! for the runtime.

use crossterm::event::{KeyCode, KeyEvent};
use sluice_proto::v1::{RequestState, generation_event::Kind};
use tui_input::{Input, InputRequest};

use super::{
    event::{Effect, Event},
    keys::{self, Action, Mode},
    levels::Levels,
    state::{Link, Own, State},
};

/// Requests whose canvas is kept after they ended.
const CANVASES_MAX: usize = 16;
/// Prompts kept for recall.
const HISTORY_MAX: usize = 100;
/// How long a message stays, and how long a first Esc waits for the second.
const MESSAGE_MS: u64 = 6_000;
const SECOND_ESCAPE_MS: u64 = 2_000;
/// Lines that one press scrolls.
const SCROLL_LINES: usize = 5;

/// What an event led to.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// Whether the screen shows something else now.
    pub changed: bool,
    /// What the runtime is to do.
    pub effects: Vec<Effect>,
}

/// Takes in one event at the given time.
pub fn update(state: &mut State, event: Event, now_ms: u64) -> Outcome {
    let mut effects = Vec::new();
    let shown_seconds = state.now_ms / 1000;
    state.now_ms = now_ms;
    let mut changed = true;
    match event {
        Event::Key(key) => effects.extend(press(state, key)),
        Event::Paste(text) => paste(state, &text),
        Event::Redraw => {}
        Event::Tick => changed = tick(state, shown_seconds),
        Event::Connected => {
            state.link = Link::Connected;
            // A watch broke with the connection; what is selected is followed anew.
            state.watched = None;
        }
        Event::Lost { cause, retry_ms } => {
            state.link = Link::Lost {
                cause,
                retry_at_ms: now_ms + retry_ms,
            };
        }
        Event::Snapshot(snapshot) => {
            state.link = Link::Connected;
            let known_pid = state.daemon_pid();
            state.snapshot = Some((snapshot, now_ms));
            // A daemon that was started anew numbers its requests anew.
            if known_pid.is_some() && state.daemon_pid() != known_pid {
                state.canvases.clear();
                state.selected = None;
                state.watched = None;
            }
        }
        Event::Request { request_id, kind } => follow(state, request_id, *kind),
        Event::OwnFailed(message) => {
            match state.own {
                Own::Active(id) => {
                    if let Some(canvas) = state.canvases.get_mut(&id) {
                        canvas.failure = Some(message.clone());
                    }
                }
                // Refused: the prompt comes back to be changed, unless another is being written.
                _ if state.input.value().is_empty() => recall(state, -1),
                _ => {}
            }
            state.own = Own::Idle;
            state.tell(message);
        }
        Event::WatchFailed {
            request_id,
            message,
        } => {
            if let Some(canvas) = state.canvases.get_mut(&request_id)
                && matches!(state.link, Link::Connected)
            {
                canvas.failure = Some(message);
            }
        }
        Event::Told(message) => state.tell(message),
        Event::Planned { level, answer } => {
            state.levels.answers.insert(level, answer);
        }
        Event::Converting(words) => state.converting = words,
        Event::Terminate => effects.push(Effect::Quit),
    }
    select(state, &mut effects);
    Outcome { changed, effects }
}

/// Whether the passing of time shows.
fn tick(state: &mut State, shown_seconds: u64) -> bool {
    let expired = |at: u64, span: u64| state.now_ms.saturating_sub(at) >= span;
    let message_ends = matches!(&state.message, Some((_, at)) if expired(*at, MESSAGE_MS));
    let escape_ends = matches!(state.escape_at_ms, Some(at) if expired(at, SECOND_ESCAPE_MS));
    if message_ends {
        state.message = None;
    }
    if escape_ends {
        state.escape_at_ms = None;
    }
    let counts = matches!(state.link, Link::Lost { .. }) || state.stale_ms().is_some();
    let next_second = state.now_ms / 1000 != shown_seconds;
    message_ends || escape_ends || (counts && next_second)
}

fn follow(state: &mut State, request_id: u64, kind: Kind) {
    if let Kind::Loading(loading) = &kind {
        state.tell(format!("{} is loaded again", loading.model));
        return;
    }
    let ends = matches!(kind, Kind::Done(_));
    if state.own == Own::Sent && matches!(kind, Kind::Queued(_)) {
        state.own = Own::Active(request_id);
        state.selected = Some(request_id);
        state.chosen = false;
        state.scroll_lines = 0;
    }
    match &kind {
        Kind::Notice(notice) => state.tell(notice.text.clone()),
        Kind::Started(started) if !started.warnings.is_empty() => {
            state.tell(started.warnings.join("; "));
        }
        _ => {}
    }
    state.canvases.entry(request_id).or_default().apply(kind);
    if ends && state.own == Own::Active(request_id) {
        state.own = Own::Idle;
    }
    while state.canvases.len() > CANVASES_MAX {
        let keep = state.selected;
        let oldest = state.canvases.keys().copied().find(|id| Some(*id) != keep);
        let Some(oldest) = oldest else { break };
        state.canvases.remove(&oldest);
    }
}

/// Keeps a selection where there is something to select, and follows what is selected.
fn select(state: &mut State, effects: &mut Vec<Effect>) {
    let rows = state.rows();
    let listed = |id: &u64| rows.iter().any(|row| row.request_id == *id);
    let present = state
        .selected
        .filter(|id| listed(id) || state.canvases.contains_key(id));
    let lasting = present.filter(|id| state.chosen || !state.has_ended(*id));
    let own = match state.own {
        Own::Active(own) if !state.chosen => Some(own),
        _ => None,
    };
    let running = rows
        .iter()
        .find(|row| row.state() == RequestState::Running)
        .map(|row| row.request_id);
    let first = rows.first().map(|row| row.request_id);
    let selected = own.or(lasting).or(running).or(present).or(first);
    if selected != state.selected {
        state.selected = selected;
        state.scroll_lines = 0;
        state.chosen = false;
    }
    // Our own request comes over its own stream, and one that ended has nothing to add.
    let wanted = state.selected.filter(|id| {
        state.own != Own::Active(*id) && !state.has_ended(*id) && !state.fills_no_canvas(*id)
    });
    if matches!(state.link, Link::Connected) && wanted != state.watched {
        state.watched = wanted;
        effects.push(Effect::Watch(wanted));
    }
}

fn press(state: &mut State, key: KeyEvent) -> Option<Effect> {
    let Some(action) = state.mode.action(&key) else {
        if state.mode == Mode::Prompt {
            write(state, &key);
        }
        return None;
    };
    if action != Action::Escape {
        state.escape_at_ms = None;
    }
    match action {
        Action::Quit => return Some(Effect::Quit),
        Action::Suspend => return Some(Effect::Suspend),
        Action::Send => return send(state),
        Action::SwitchFocus => {
            state.mode = match state.mode {
                Mode::Prompt => Mode::Requests,
                _ => Mode::Prompt,
            };
        }
        Action::Escape => return escape(state),
        Action::Help => open_help(state),
        Action::HelpIfEmpty if state.input.value().is_empty() => open_help(state),
        Action::HelpIfEmpty => write(state, &key),
        Action::CloseHelp => state.mode = state.below_help,
        Action::SelectPrevious if state.mode == Mode::Help => {
            state.help_line = state.help_line.saturating_sub(1);
        }
        Action::SelectNext if state.mode == Mode::Help => {
            let lines: usize = keys::TABLES.iter().map(|(_, table)| table.len() + 1).sum();
            state.help_line = (state.help_line + 1).min(lines - 1);
        }
        Action::SelectPrevious if state.mode == Mode::Levels => state.levels.step(-1),
        Action::SelectNext if state.mode == Mode::Levels => state.levels.step(1),
        Action::SelectPrevious => step(state, -1),
        Action::SelectNext => step(state, 1),
        Action::RecallPrevious => recall(state, -1),
        Action::RecallNext => recall(state, 1),
        Action::AskCancel => ask_cancel(state),
        Action::Yes => {
            state.mode = Mode::Requests;
            return state.asked.take().map(Effect::Cancel);
        }
        Action::No => {
            state.mode = Mode::Requests;
            state.asked = None;
        }
        Action::OpenLevels => return open_levels(state),
        Action::CloseLevels => state.mode = state.below_levels,
        Action::ApplyLevel => return apply_level(state),
        Action::ScrollUp => state.scroll_lines = state.scroll_lines.saturating_add(SCROLL_LINES),
        Action::ScrollDown => state.scroll_lines = state.scroll_lines.saturating_sub(SCROLL_LINES),
    }
    None
}

fn open_help(state: &mut State) {
    state.below_help = state.mode;
    state.help_line = 0;
    state.mode = Mode::Help;
}

fn open_levels(state: &mut State) -> Option<Effect> {
    if !matches!(state.link, Link::Connected) {
        state.tell("not connected; what levels would lead to is not known");
        return None;
    }
    let snapshot = state.snapshot.as_ref().map(|(snapshot, _)| &**snapshot);
    state.levels = Levels::open(snapshot);
    state.below_levels = state.mode;
    state.mode = Mode::Levels;
    Some(Effect::AskPlans)
}

fn apply_level(state: &mut State) -> Option<Effect> {
    if !matches!(state.link, Link::Connected) {
        state.tell("not connected; the level stays");
        return None;
    }
    state.mode = state.below_levels;
    let level = state.levels.level();
    state.converting = None;
    state.tell(format!("level {level} was asked for"));
    Some(Effect::Apply(level))
}

fn escape(state: &mut State) -> Option<Effect> {
    if state.own_is_active() {
        let second = state.escape_at_ms.take().is_some();
        match state.own {
            Own::Active(id) if second => {
                state.tell("cancelling");
                return Some(Effect::Cancel(id));
            }
            _ => {
                state.escape_at_ms = Some(state.now_ms);
                state.tell("Esc again cancels your request");
            }
        }
    }
    state.mode = Mode::Requests;
    None
}

fn send(state: &mut State) -> Option<Effect> {
    let prompt = state.input.value().trim().to_owned();
    if prompt.is_empty() {
        return None;
    }
    if !matches!(state.link, Link::Connected) {
        state.tell("not connected; the prompt is kept");
        return None;
    }
    if state.own_is_active() {
        state.tell("your request still runs; Esc twice cancels it");
        return None;
    }
    state.input.reset();
    state.recalled = None;
    if state.history.last() != Some(&prompt) {
        state.history.push(prompt.clone());
    }
    if state.history.len() > HISTORY_MAX {
        state.history.remove(0);
    }
    state.own = Own::Sent;
    state.message = None;
    Some(Effect::Generate(prompt))
}

fn recall(state: &mut State, step: isize) {
    let end = state.history.len();
    let at = state
        .recalled
        .unwrap_or(end)
        .saturating_add_signed(step)
        .min(end);
    let text = state.history.get(at).cloned().unwrap_or_default();
    // Past the newest lies the draft, which must not be lost to a stray key.
    if state.recalled.is_some() || state.input.value().is_empty() {
        state.recalled = (at < end).then_some(at);
        state.input = Input::new(text);
    }
}

fn step(state: &mut State, by: isize) {
    let rows = state.rows();
    let at = rows
        .iter()
        .position(|row| Some(row.request_id) == state.selected)
        .map_or(0, |at| at.saturating_add_signed(by));
    if let Some(row) = rows.get(at.min(rows.len().saturating_sub(1))) {
        state.selected = Some(row.request_id);
        state.chosen = true;
        state.scroll_lines = 0;
    }
}

fn ask_cancel(state: &mut State) {
    let rows = state.rows();
    let active = rows.iter().find(|row| {
        Some(row.request_id) == state.selected
            && matches!(row.state(), RequestState::Queued | RequestState::Running)
    });
    match active {
        Some(row) => {
            state.asked = Some(row.request_id);
            state.mode = Mode::Confirm;
        }
        None => state.tell("no waiting or running request is selected"),
    }
}

/// Keys of the prompt that its table leaves to the line editor.
fn write(state: &mut State, key: &KeyEvent) {
    use crossterm::event::KeyModifiers as M;
    let control = key.modifiers.contains(M::CONTROL);
    let alt = key.modifiers.contains(M::ALT);
    let request = match key.code {
        KeyCode::Char('a') if control => InputRequest::GoToStart,
        KeyCode::Char('e') if control => InputRequest::GoToEnd,
        KeyCode::Char('u') if control => InputRequest::DeleteLine,
        KeyCode::Char('k') if control => InputRequest::DeleteTillEnd,
        KeyCode::Char('w') if control => InputRequest::DeletePrevWord,
        KeyCode::Backspace if alt || control => InputRequest::DeletePrevWord,
        KeyCode::Left if alt || control => InputRequest::GoToPrevWord,
        KeyCode::Right if alt || control => InputRequest::GoToNextWord,
        KeyCode::Char(character) if !control && !alt => InputRequest::InsertChar(character),
        KeyCode::Backspace => InputRequest::DeletePrevChar,
        KeyCode::Delete => InputRequest::DeleteNextChar,
        KeyCode::Left => InputRequest::GoToPrevChar,
        KeyCode::Right => InputRequest::GoToNextChar,
        KeyCode::Home => InputRequest::GoToStart,
        KeyCode::End => InputRequest::GoToEnd,
        _ => return,
    };
    state.recalled = None;
    let _ = state.input.handle(request);
}

fn paste(state: &mut State, text: &str) {
    if state.mode == Mode::Prompt {
        // One line holds the prompt, so line ends become spaces.
        for character in crate::text::sanitise_line(text).chars() {
            let _ = state.input.handle(InputRequest::InsertChar(character));
        }
    }
}
