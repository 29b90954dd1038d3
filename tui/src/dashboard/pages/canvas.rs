//! The canvas page: one request in large, pass by pass.

mod heat;
mod scrubber;

use std::borrow::Cow;

use ratatui::{
    layout::{Constraint, Layout, Rect},
    text::Line,
};
use sluice_proto::v1::{CanvasToken, GenerationPass};
use sluice_shared::units;
use tui_input::Input;

use super::super::{
    event::Effect,
    keys::{Action, Mode, Page},
    panels,
    requests::step_request,
    state::{CanvasView, DashboardState, OpenedRun},
    update::SCROLL_LINES,
    view::{HitTarget, Screen, ScreenShape},
};
use crate::{
    canvas::{Canvas, Look},
    text::{clip, sanitise_line},
};

/// Time that each pass is shown while passes are played.
const PASS_MS: u64 = 100;
/// Delay beyond which playing goes on from now, instead of catching up on the passes in between.
const LATE_MS: u64 = 1_000;
/// Width from which on text and heat map are beside each other.
const BESIDE_COLUMNS: u16 = 120;
/// Height from which on they are below each other.
const BELOW_ROWS: u16 = 30;

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

/// The index of the pass that is shown; `None` for the latest.
fn index(state: &DashboardState) -> Option<usize> {
    state.recording()?.index_of(state.reel.at?)
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
    let at = index(state).unwrap_or(end).saturating_add_signed(by);
    let number = (at < end).then(|| recording.number(at)).flatten();
    state.reel.at = number;
}

/// Plays on from the pass that is shown, or from the first if that is the latest.
fn begin_to_play(state: &mut DashboardState) {
    if index(state).is_none() {
        show(state, 0);
    }
    if state.reel.at.is_some() {
        state.reel.next_at_ms = Some(state.now_ms + PASS_MS);
    }
}

/// Shows the next pass when it is due. Returns whether another pass is shown.
pub(in super::super) fn play(state: &mut DashboardState) -> bool {
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
    match file(state) {
        Some(file) => {
            state.command = Input::new(format!("save {file}"));
            state.modes.push(Mode::Command);
        }
        None => state.warn("there is no run to save"),
    }
}

/// Default path for saving the run that is shown; `None` without a run.
pub(in super::super) fn file(state: &DashboardState) -> Option<String> {
    let canvas = state.recording()?.canvas();
    let request_id = canvas.queued.map_or(0, |queued| queued.request_id);
    let file = state.runs.file(request_id, state.now_ms);
    Some(sanitise_line(&file.display().to_string()))
}

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let Some(recording) = state.recording() else {
        draw_request(screen, area);
        return;
    };
    state.reel.draws();
    let index = index(state);
    let picture = match index.and_then(|index| recording.picture(index)) {
        // Only one pass is decoded a frame; the latest picture is there already.
        Some(picture) => Cow::Owned(picture),
        None => Cow::Borrowed(recording.canvas()),
    };
    let foot_rows = if screen.shape == ScreenShape::Small {
        1
    } else {
        2
    };
    let [body, foot] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(foot_rows)]).areas(area);
    let halves = match state.reel.view {
        CanvasView::Both if area.width >= BESIDE_COLUMNS => {
            Some(Layout::horizontal([Constraint::Percentage(45), Constraint::Min(0)]).areas(body))
        }
        CanvasView::Both if area.height >= BELOW_ROWS => {
            Some(Layout::vertical([Constraint::Percentage(45), Constraint::Min(0)]).areas(body))
        }
        _ => None,
    };
    match (halves, state.reel.view) {
        (Some([text, map]), _) => {
            draw_text(screen, text, &picture, index.is_none());
            heat::draw(screen, map, recording, &picture, index);
        }
        (None, CanvasView::Heat) => heat::draw(screen, body, recording, &picture, index),
        (None, CanvasView::Text | CanvasView::Both) => {
            draw_text(screen, body, &picture, index.is_none());
        }
    }
    let [line, figures] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(foot_rows - 1)]).areas(foot);
    scrubber::draw(screen, line, recording, index);
    let words = match &picture.pass {
        Some(pass) => figures_of(pass, &picture),
        None => "no pass yet".to_owned(),
    };
    let words = clip(&words, usize::from(figures.width));
    screen.lines(figures, vec![Line::raw(words)]);
}

/// Draws the selected request: its progress, its canvas and the legend.
pub(super) fn draw_request(screen: &mut Screen<'_, '_>, area: Rect) {
    screen.hit_area(area, HitTarget::Canvas);
    screen.state.reel.draws();
    panels::request(screen, area);
}

fn draw_text(screen: &mut Screen<'_, '_>, area: Rect, picture: &Canvas, is_latest: bool) {
    screen.hit_area(area, HitTarget::Canvas);
    let (state, paint) = (screen.state, screen.paint());
    let inner = screen.pane(area, &title(state), false);
    let (columns, rows) = (usize::from(inner.width), usize::from(inner.height));
    let mut lines = match is_latest {
        true => {
            let from = panels::work::streamed_from(state);
            panels::work::progress(picture, from, (columns, rows), paint)
        }
        false => Vec::new(),
    };
    let legend = (rows >= 6).then(|| panels::legend(columns, paint));
    let free = rows.saturating_sub(lines.len() + usize::from(legend.is_some()));
    let (text, part, scrollable) =
        panels::canvas_lines(picture, columns, free, state.reel.scroll, paint);
    state.reel.drew(scrollable);
    lines.extend(text);
    lines.truncate(rows);
    screen.lines(inner, lines);
    if let Some(legend) = legend {
        let last = Rect::new(inner.x, inner.bottom() - 1, inner.width, 1);
        screen.lines(last, vec![legend]);
    }
    if let Some(part) = part {
        screen.foot(area, &part);
    }
}

fn title(state: &DashboardState) -> String {
    match (&state.opened, state.requests.selected) {
        (Some(opened), _) => format!("Saved run {}", opened.name),
        (None, Some(id)) if state.requests.is_own(id) => format!("Request {id}, yours"),
        (None, Some(id)) => format!("Request {}", state.requests.name(id)),
        (None, None) => "Canvas".to_owned(),
    }
}

/// Figures of a pass, in one line.
fn figures_of(pass: &GenerationPass, picture: &Canvas) -> String {
    let length = match &picture.started {
        Some(started) => units::count(started.length.into()),
        None => "unknown".to_owned(),
    };
    let fresh = pass.tokens.iter().filter(|token| token.is_fresh).count();
    let sure = match mean_confidence(&pass.tokens) {
        Some(mean) => format!("mean confidence {mean:.2}"),
        None => "mean confidence unknown".to_owned(),
    };
    format!(
        "committed {} of {length}, {fresh} new · {sure} · {:.1} ms, {} since the start · {} rows, {} LM head rows · block {}",
        units::count(pass.committed_positions.into()),
        pass.pass_ms,
        units::duration_ms(pass.elapsed_ms),
        units::count(pass.rows.into()),
        units::count(pass.lm_head_rows.into()),
        u64::from(pass.block) + 1,
    )
}

/// Mean confidence of the tokens that the pass predicted. Those committed earlier are left out: they keep the confidence of
/// their own pass.
fn mean_confidence(tokens: &[CanvasToken]) -> Option<f32> {
    let predicted = tokens
        .iter()
        .filter(|token| matches!(Look::of(token), Look::Fresh(_) | Look::Provisional));
    let known: Vec<f32> = predicted.filter_map(|token| token.confidence).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f32>() / known.len() as f32)
}
