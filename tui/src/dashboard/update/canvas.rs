//! Keys of the canvas page, and passes that are played.

use tui_input::Input;

use super::{
    super::{
        event::Effect,
        keys::{Action, Mode, Page},
        reel::{CanvasView, OpenedRun},
        state::DashboardState,
    },
    navigation::SCROLL_LINES,
    requests::step_request,
};

/// Time that each pass is shown while passes are played.
const PASS_MS: u64 = 100;
/// Delay beyond which playing goes on from now, instead of catching up on the passes in between.
const LATE_MS: u64 = 1_000;

pub(super) fn act(state: &mut DashboardState, action: Action, _effects: &mut Vec<Effect>) {
    match action {
        Action::Up => state.reel.scroll(1),
        Action::Down => state.reel.scroll(-1),
        Action::PageUp => state.reel.scroll(SCROLL_LINES),
        Action::PageDown => state.reel.scroll(-SCROLL_LINES),
        Action::Left => step(state, -1),
        Action::Right => step(state, 1),
        Action::First => show(state, 0),
        Action::Last => {
            state.reel.at = None;
            state.reel.next_at_ms = None;
        }
        Action::Play => match state.reel.next_at_ms.take() {
            Some(_) => {}
            None => begin_to_play(state),
        },
        Action::Heat => next_view(state),
        Action::Save => ask_where_to_save(state),
        Action::PreviousRequest | Action::NextRequest if state.opened.is_some() => {
            state.show_latest();
        }
        Action::PreviousRequest => step_request(state, -1),
        Action::NextRequest => step_request(state, 1),
        _ => {}
    }
}

/// Shows a pass, by its index among those that are kept.
pub(super) fn show(state: &mut DashboardState, index: usize) {
    let number = state.recording().and_then(|run| run.number(index));
    if let Some(number) = number {
        state.reel.at = Some(number);
        state.reel.next_at_ms = None;
    }
}

/// Shows the pass `by` passes later; beyond the last one, the latest picture is followed.
fn step(state: &mut DashboardState, by: isize) {
    state.reel.next_at_ms = None;
    let Some(recording) = state.recording() else {
        return;
    };
    // The end of a run has a picture of its own behind the last pass; while the run goes on, the latest picture is
    // that of the last pass.
    let end = match recording.canvas().has_ended() {
        true => recording.len(),
        false => recording.len().saturating_sub(1),
    };
    let at = state.pass_index().unwrap_or(end).saturating_add_signed(by);
    let number = (at < end).then(|| recording.number(at)).flatten();
    state.reel.at = number;
}

/// Plays on from the pass that is shown, or from the first if that is the latest.
fn begin_to_play(state: &mut DashboardState) {
    if state.pass_index().is_none() {
        show(state, 0);
    }
    if state.reel.at.is_some() {
        state.reel.next_at_ms = Some(state.now_ms + PASS_MS);
    }
}

/// Shows the next pass when it is due. Returns whether another pass is shown.
pub(super) fn play(state: &mut DashboardState) -> bool {
    let mut changed = false;
    // The process was suspended: passes that were due meanwhile are not rushed through.
    if let Some(next_at_ms) = &mut state.reel.next_at_ms
        && state.now_ms.saturating_sub(*next_at_ms) > LATE_MS
    {
        *next_at_ms = state.now_ms;
    }
    while let Some(next_at_ms) = state.reel.next_at_ms.filter(|at| *at <= state.now_ms) {
        changed = true;
        step(state, 1);
        if state.recording().is_none() {
            state.reel.rewind();
        }
        // Behind the last pass the run is followed, so there is nothing left to play.
        if state.reel.at.is_none() {
            break;
        }
        state.reel.next_at_ms = Some(next_at_ms + PASS_MS);
    }
    changed
}

/// Shows a run that was read from a file, and plays it from its first pass.
pub(in super::super) fn open(state: &mut DashboardState, opened: Box<OpenedRun>) {
    state.opened = Some(opened);
    state.page = Page::Canvas;
    state.modes = vec![Mode::Page];
    state.reel.rewind();
    begin_to_play(state);
}

/// Switches to the next of text, heat map and both.
fn next_view(state: &mut DashboardState) {
    let (show, words) = match state.reel.view {
        CanvasView::Both => (CanvasView::Text, "text alone"),
        CanvasView::Text => (CanvasView::Heat, "heat map alone"),
        CanvasView::Heat => (CanvasView::Both, "text and heat map, if they fit"),
    };
    state.reel.view = show;
    state.tell(words);
}

/// Opens the command line with the default file name for saving.
fn ask_where_to_save(state: &mut DashboardState) {
    match state.run_path() {
        Some(file) => {
            state.command = Input::new(format!("save {file}"));
            state.modes.push(Mode::Command);
        }
        None => state.warn("there is no run to save"),
    }
}
