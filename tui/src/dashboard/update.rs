//! The one function that changes the state.
//!
//! Nothing here does I/O: [`update`] takes an event and the time, and answers with effects
//! for the runtime. What a key does on a page stands with the page ([`super::pages`]).

use crossterm::event::KeyEvent;
use sluice_proto::v1::{RequestState, generation_event::Kind};
use tui_input::Input;

use super::{
    command,
    event::{Effect, Event},
    keep,
    keys::{Action, Mode, Page},
    line, pages,
    state::{Link, Own, State, Then},
    view::Target,
};

/// Requests whose passes are kept after they ended.
const RECORDINGS_MAX: usize = 16;
/// How long a message stays that is no error, and how long a first Esc waits for the second.
const MESSAGE_MS: u64 = 6_000;
const SECOND_ESCAPE_MS: u64 = 2_000;
/// Lines that one press scrolls.
pub(super) const SCROLL_LINES: isize = 5;

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
        Event::Key(key) => press(state, key, &mut effects),
        Event::Paste(text) => paste(state, &text),
        Event::Click(target) => click(state, target, &mut effects),
        Event::Wheel(target, by) => wheel(state, target, by, &mut effects),
        Event::Resized(columns, rows) => state.size = (columns, rows),
        Event::Tick => {
            changed = tick(state, shown_seconds);
            effects.extend(keep::due(state).map(Effect::Keep));
        }
        Event::Connected => {
            state.link = Link::Connected;
            // A watch broke with the connection; what is selected is followed anew.
            state.requests.watched = None;
            pages::enter(state, &mut effects);
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
            state.history.take(&snapshot, now_ms);
            pages::jobs::note(state, &snapshot, &mut effects);
            pages::levels::note(state, &snapshot, &mut effects);
            state.latest = Some((snapshot, now_ms));
            pages::jobs::see(state);
            // A daemon that was started anew numbers its requests anew.
            if known_pid.is_some() && state.daemon_pid() != known_pid {
                state.requests.recordings.clear();
                state.requests.selected = None;
                state.requests.watched = None;
            }
            changed = state.frozen.is_none();
        }
        Event::Request { request_id, kind } => follow(state, request_id, *kind),
        Event::OwnFailed(message) => own_failed(state, message),
        Event::WatchFailed {
            request_id,
            message,
        } => {
            if let Some(recording) = state.requests.recordings.get_mut(&request_id)
                && state.link == Link::Connected
            {
                recording.fail(message);
            }
        }
        Event::Opened(opened) => pages::canvas::open(state, opened),
        Event::Told(message) => state.tell(message),
        Event::Failed(message) => state.warn(message),
        Event::Planned { .. }
        | Event::Foreseen { .. }
        | Event::Changing { .. }
        | Event::Converting(_)
        | Event::Applied { .. }
        | Event::ApplyFailed { .. }
        | Event::Measuring { .. }
        | Event::Measured(_)
        | Event::MeasuringStopped => pages::levels::take(state, event, &mut effects),
        Event::Models(models) => pages::jobs::list(state, models),
        Event::Jobs(jobs) => pages::jobs::learn(state, &jobs),
        Event::Terminate => effects.push(Effect::Quit),
    }
    select(state, &mut effects);
    Outcome { changed, effects }
}

/// Whether the passing of time shows.
fn tick(state: &mut State, shown_seconds: u64) -> bool {
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
    let counts = matches!(state.link, Link::Lost { .. }) || state.stale_ms().is_some();
    let next_second = state.now_ms / 1000 != shown_seconds;
    let played = pages::canvas::play(state);
    message_ends || escape_ends || played || (counts && next_second)
}

fn follow(state: &mut State, request_id: u64, kind: Kind) {
    if let Kind::Loading(loading) = &kind {
        state.tell(format!("{} is loaded again", loading.model));
        return;
    }
    state.levels.dials.see(&kind);
    let ends = matches!(kind, Kind::Done(_));
    if state.requests.own == Own::Sent && matches!(kind, Kind::Queued(_)) {
        state.requests.own = Own::Active(request_id);
        state.requests.selected = Some(request_id);
        state.requests.chosen = false;
        state.show_latest();
    }
    match &kind {
        Kind::Notice(notice) => state.tell(notice.text.clone()),
        Kind::Started(started) if !started.warnings.is_empty() => {
            state.tell(started.warnings.join("; "));
        }
        _ => {}
    }
    let requests = &mut state.requests;
    requests
        .recordings
        .entry(request_id)
        .or_default()
        .take(kind);
    if ends && requests.own == Own::Active(request_id) {
        requests.own = Own::Idle;
        pages::chat::answered(state, request_id);
    }
    let requests = &mut state.requests;
    while requests.recordings.len() > RECORDINGS_MAX {
        let keep = requests.selected;
        let mut ids = requests.recordings.keys().copied();
        let Some(oldest) = ids.find(|id| Some(*id) != keep) else {
            break;
        };
        requests.recordings.remove(&oldest);
    }
}

fn own_failed(state: &mut State, message: String) {
    match state.requests.own {
        Own::Active(id) => {
            if let Some(recording) = state.requests.recordings.get_mut(&id) {
                recording.fail(message.clone());
            }
            pages::chat::refused(state, true);
        }
        Own::Sent | Own::Idle => pages::chat::refused(state, false),
    }
    state.requests.own = Own::Idle;
    state.warn(pages::chat::with_hint(message));
}

/// Keeps a selection where there is something to select, and follows what is selected.
fn select(state: &mut State, effects: &mut Vec<Effect>) {
    let rows = state.rows();
    let requests = &state.requests;
    let listed = |id: &u64| rows.iter().any(|row| row.request_id == *id);
    let present = requests
        .selected
        .filter(|id| listed(id) || requests.recordings.contains_key(id));
    let lasting = present.filter(|id| requests.chosen || !state.has_ended(*id));
    let own = match requests.own {
        Own::Active(own) if !requests.chosen => Some(own),
        _ => None,
    };
    let running = rows
        .iter()
        .find(|row| row.state() == RequestState::Running)
        .map(|row| row.request_id);
    let first = rows.first().map(|row| row.request_id);
    // Whoever looks at an earlier pass goes on looking at it.
    let held = present.filter(|_| state.reel.at.is_some());
    let selected = held.or(own).or(lasting).or(running).or(present).or(first);
    if selected != state.requests.selected {
        match state.opened {
            // Whoever looks at a saved run goes on looking at it, too.
            Some(_) => state.requests.selected = selected,
            None => choose(state, selected),
        }
        state.requests.chosen = false;
    }
    // Our own request comes over its own stream, and one that ended has nothing to add.
    let wanted = state.requests.selected.filter(|id| {
        state.requests.own != Own::Active(*id)
            && !state.has_ended(*id)
            && !state.fills_no_canvas(*id)
    });
    if state.is_connected() && wanted != state.requests.watched {
        state.requests.watched = wanted;
        effects.push(Effect::Watch(wanted));
    }
}

/// Selects a request, of which the latest pass is shown.
pub(super) fn choose(state: &mut State, request_id: Option<u64>) {
    state.requests.selected = request_id;
    state.requests.chosen = true;
    state.show_latest();
}

/// Selects the request so many rows below the selected one.
pub(super) fn step_request(state: &mut State, by: isize) {
    let rows = state.rows();
    let at = rows
        .iter()
        .position(|row| Some(row.request_id) == state.requests.selected)
        .map_or(0, |at| at.saturating_add_signed(by));
    if let Some(row) = rows.get(at.min(rows.len().saturating_sub(1))) {
        choose(state, Some(row.request_id));
    }
}

fn press(state: &mut State, key: KeyEvent, effects: &mut Vec<Effect>) {
    // What went wrong stays until somebody was there to see it.
    if state
        .message
        .as_ref()
        .is_some_and(|message| message.is_error)
    {
        state.message = None;
    }
    let mode = state.mode();
    match mode.action(state.page, &key) {
        Some(action) => act(state, action, &key, effects),
        None if mode.writes() => write(state, &key),
        None => {}
    }
}

/// Keys that no table names are written where something is being written.
fn write(state: &mut State, key: &KeyEvent) {
    match state.mode() {
        Mode::Prompt if line::write(&mut state.prompt, key) => state.prompts.leave(),
        Mode::Command if line::write(&mut state.command, key) => state.commands.leave(),
        Mode::Filter => {
            line::write(&mut state.filter, key);
            state.help_line = 0;
        }
        Mode::Field => pages::options::write(state, key),
        _ => {}
    }
}

fn paste(state: &mut State, text: &str) {
    match state.mode() {
        Mode::Prompt => line::paste(&mut state.prompt, text),
        Mode::Command => line::paste(&mut state.command, text),
        Mode::Filter => line::paste(&mut state.filter, text),
        Mode::Field => pages::options::paste(state, text),
        // Nothing is being written.
        _ => {}
    }
}

fn act(state: &mut State, action: Action, key: &KeyEvent, effects: &mut Vec<Effect>) {
    let mode = state.mode();
    match (mode, action) {
        (_, Action::Quit) => effects.push(Effect::Quit),
        (_, Action::Suspend) => effects.push(Effect::Suspend),
        (Mode::Help, _) => help(state, action),
        (Mode::Confirm, _) => answer(state, action == Action::Yes, effects),
        (Mode::Command, _) => command::act(state, action, effects),
        (Mode::Filter, _) => filter(state, action),
        (Mode::Options | Mode::Field, _) if action != Action::Help => {
            pages::options::act(state, action, effects);
        }
        (Mode::Mask, _) if action != Action::Help => pages::chat::mask(state, action, effects),
        (Mode::Prompt, Action::HelpIfEmpty) if !state.prompt.value().is_empty() => {
            write(state, key);
        }
        (_, Action::Help | Action::HelpIfEmpty) => {
            state.help_line = 0;
            state.filter.reset();
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
        (_, Action::Options) => pages::options::open(state, effects),
        (_, Action::Freeze) => freeze(state),
        (_, Action::Theme) => {
            state.paint.theme = state.paint.theme.next();
            state.chosen.theme = Some(state.paint.theme);
            state.tell(format!("theme {}", state.paint.theme));
        }
        (_, Action::Write) => {
            if !state.page.has_prompt() {
                go(state, Page::Chat, effects);
            }
            state.modes = vec![Mode::Page, Mode::Prompt];
        }
        (_, Action::NewConversation) => pages::chat::begin(state),
        (_, Action::Escape) => escape(state, effects),
        (Mode::Prompt, Action::Enter) => send(state, effects),
        (Mode::Prompt, Action::Up) => recall(state, -1),
        (Mode::Prompt, Action::Down) => recall(state, 1),
        (_, Action::Cancel) => cancel(state),
        _ => pages::act(state, action, effects),
    }
}

/// Shows another page.
pub(super) fn go(state: &mut State, page: Page, effects: &mut Vec<Effect>) {
    state.page = page;
    state.filter.reset();
    // A page with a prompt is mostly there to be written on.
    state.modes = vec![Mode::Page];
    pages::enter(state, effects);
}

fn leave_prompt(state: &mut State) {
    state.modes = vec![Mode::Page];
}

fn help(state: &mut State, action: Action) {
    let by = match action {
        Action::Up => -1,
        Action::Down => 1,
        Action::PageUp => -SCROLL_LINES,
        Action::PageDown => SCROLL_LINES,
        Action::Filter => {
            state.filter.reset();
            state.modes.push(Mode::Filter);
            return;
        }
        _ => {
            state.filter.reset();
            state.modes.pop();
            return;
        }
    };
    let last = super::view::help_lines(state).len().saturating_sub(1);
    state.help_line = state.help_line.saturating_add_signed(by).min(last);
}

fn filter(state: &mut State, action: Action) {
    if action == Action::Escape {
        state.filter.reset();
    }
    state.modes.pop();
}

fn answer(state: &mut State, is_yes: bool, effects: &mut Vec<Effect>) {
    state.modes.pop();
    let Some(question) = state.question.take().filter(|_| is_yes) else {
        return;
    };
    effects.extend(question.effects);
    match question.then {
        Then::Nothing => {}
        Then::ForgetConversation => pages::chat::forget(state),
        Then::Dial(dial) => pages::levels::set_dial(state, dial),
    }
}

fn freeze(state: &mut State) {
    match state.frozen.take() {
        Some(_) => state.tell("going on"),
        None if state.latest.is_some() => {
            state.frozen.clone_from(&state.latest);
            state.tell("frozen; f goes on");
        }
        None => state.warn("there is nothing to freeze yet"),
    }
}

fn escape(state: &mut State, effects: &mut Vec<Effect>) {
    if state.own_is_active() {
        let second = state.escape_at_ms.take().is_some();
        match state.requests.own {
            Own::Active(id) if second => {
                state.tell("cancelling");
                effects.push(Effect::Cancel(id));
                return;
            }
            _ => {
                state.escape_at_ms = Some(state.now_ms);
                state.tell("Esc again cancels your request");
            }
        }
    }
    state.filter.reset();
    leave_prompt(state);
    if state.page == Page::Canvas {
        state.show_latest();
    }
}

fn send(state: &mut State, effects: &mut Vec<Effect>) {
    let prompt = state.prompt.value().trim().to_owned();
    if prompt.is_empty() {
        return;
    }
    if can_send(state, "the prompt is kept") {
        state.prompt.reset();
        state.prompts.keep(&prompt);
        let mut request = pages::chat::request(state, &prompt);
        state.options.apply(&mut request);
        submit(state, request, effects);
    }
}

/// Whether a request of ours can be sent now; if not, it is told why.
pub(super) fn can_send(state: &mut State, otherwise: &str) -> bool {
    if !state.is_connected() {
        state.warn(format!("not connected; {otherwise}"));
        return false;
    }
    if state.own_is_active() {
        state.warn("your request still runs; Esc twice cancels it");
        return false;
    }
    true
}

/// Sends a request of our own.
pub(super) fn submit(
    state: &mut State,
    request: sluice_proto::v1::GenerateRequest,
    effects: &mut Vec<Effect>,
) {
    state.requests.own = Own::Sent;
    state.requests.chosen = false;
    state.show_latest();
    state.message = None;
    effects.push(Effect::Generate(Box::new(request)));
}

fn recall(state: &mut State, by: isize) {
    let present = state.prompt.value().to_owned();
    if let Some(text) = state.prompts.step(&present, by) {
        state.prompt = Input::new(text);
    }
}

/// Asks whether to stop what is selected.
fn cancel(state: &mut State) {
    match state.page {
        Page::Jobs => return pages::jobs::cancel(state),
        Page::Levels => return pages::levels::cancel(state),
        Page::Chat => {
            if let Own::Active(id) = state.requests.own {
                choose(state, Some(id));
            }
        }
        Page::Overview | Page::Memory | Page::Canvas => {}
    }
    let rows = state.rows();
    let active = rows.iter().find(|row| {
        Some(row.request_id) == state.requests.selected
            && matches!(row.state(), RequestState::Queued | RequestState::Running)
    });
    match active.map(|row| row.request_id) {
        Some(id) => state.ask(
            format!("Cancel request {id}?"),
            vec![Effect::Cancel(id)],
            Then::Nothing,
        ),
        None => state.warn("no waiting or running request is selected"),
    }
}

fn click(state: &mut State, target: Target, effects: &mut Vec<Effect>) {
    // What lies below an overlay can't be reached.
    let mode = state.mode();
    if !matches!(mode, Mode::Page | Mode::Prompt) {
        return pages::click_overlay(state, target, effects);
    }
    match target {
        Target::Page(page) => go(state, page, effects),
        Target::Prompt => state.modes = vec![Mode::Page, Mode::Prompt],
        Target::Request(id) => choose(state, Some(id)),
        other => {
            state.modes = vec![Mode::Page];
            pages::click(state, other, effects);
        }
    }
}

fn wheel(state: &mut State, target: Option<Target>, by: isize, effects: &mut Vec<Effect>) {
    let action = |less, more| if by < 0 { less } else { more };
    match (state.mode(), target) {
        (Mode::Help, _) => help(state, action(Action::Up, Action::Down)),
        (Mode::Page | Mode::Prompt, Some(Target::Request(_))) => step_request(state, by),
        (Mode::Page | Mode::Prompt, Some(target))
            if target == Target::Canvas || state.page == Page::Chat =>
        {
            pages::act(state, action(Action::PageUp, Action::PageDown), effects);
        }
        (Mode::Page | Mode::Prompt, _) if !matches!(state.page, Page::Overview) => {
            pages::act(state, action(Action::Up, Action::Down), effects);
        }
        _ => {}
    }
}
