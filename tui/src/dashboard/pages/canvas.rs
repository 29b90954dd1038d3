//! The canvas page: one request in large, pass by pass.

mod heat;
mod scrubber;

use std::borrow::Cow;

use ratatui::{
    layout::{Constraint, Layout, Rect},
    text::Line,
};
use sluice_proto::v1::{CanvasToken, GenerationPass, GenerationThought};
use sluice_shared::units;

use super::super::{
    hit_areas::HitTarget,
    panels,
    reel::CanvasView,
    screen::{Screen, ScreenShape},
    state::DashboardState,
};
use crate::{
    canvas::{Canvas, Look},
    text::clip,
    thinking,
};

/// Width from which on text and heat map are beside each other.
const BESIDE_COLUMNS: u16 = 120;
/// Height from which on they are below each other.
const BELOW_ROWS: u16 = 30;

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let Some(recording) = state.recording() else {
        draw_request(screen, area);
        return;
    };
    state.reel.draws();
    let index = state.pass_index();
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
    // Before the first pass there is no confidence to show.
    let view = match picture.has_only_thought() {
        true => CanvasView::Text,
        false => state.reel.view,
    };
    let halves = match view {
        CanvasView::Both if area.width >= BESIDE_COLUMNS => {
            Some(Layout::horizontal([Constraint::Percentage(45), Constraint::Min(0)]).areas(body))
        }
        CanvasView::Both if area.height >= BELOW_ROWS => {
            Some(Layout::vertical([Constraint::Percentage(45), Constraint::Min(0)]).areas(body))
        }
        _ => None,
    };
    match (halves, view) {
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
    let words = match (&picture.pass, picture.latent_steps().last()) {
        (Some(pass), _) => figures_of(pass, &picture),
        (None, Some(thought)) => figures_of_thought(thought),
        (None, None) => "no pass yet".to_owned(),
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
    if picture.has_only_thought() {
        panels::work::draw_thinking(screen, inner, picture);
        return;
    }
    let mut lines = match is_latest {
        true => {
            let from = panels::work::streamed_from(state);
            panels::work::progress(picture, from, (columns, rows), paint)
        }
        false => {
            let thought = panels::work::thought(picture, (columns, rows), paint);
            thought.into_iter().collect()
        }
    };
    let legend = (rows >= 6).then(|| panels::legend(picture, columns, paint));
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
    let edited = pass.tokens.iter().filter(|token| token.is_edited).count();
    let fresh = pass.tokens.iter().filter(|token| token.is_fresh).count();
    let mut news = format!("{} new", fresh.saturating_sub(edited));
    if edited > 0 {
        news += &format!(", {edited} edited");
    }
    let sure = match mean_confidence(&pass.tokens) {
        Some(mean) => format!("mean confidence {mean:.2}"),
        None => "mean confidence unknown".to_owned(),
    };
    format!(
        "committed {} of {length}, {news} · {sure} · {:.1} ms, {} since the start · {} rows, {} LM head rows · block {}",
        units::count(pass.committed_positions.into()),
        pass.pass_ms,
        units::duration_ms(pass.elapsed_ms),
        units::count(pass.rows.into()),
        units::count(pass.lm_head_rows.into()),
        u64::from(pass.block) + 1,
    )
}

/// Figures of a step of inference, or of sampling the prior, in one line.
fn figures_of_thought(thought: &GenerationThought) -> String {
    let (what, of) = match thought.noise_level {
        Some(level) => (thinking::noise(level), "sampling"),
        None => {
            let tokens = units::count(thought.tokens.into());
            (format!("{tokens} tokens of the prompt"), "inference")
        }
    };
    format!(
        "{what} · {:.1} ms a step, {} since {of} began",
        thought.pass_ms,
        units::duration_ms(thought.elapsed_ms),
    )
}

/// Mean confidence of the tokens that the pass predicted. Those committed earlier are left out: they keep the confidence of
/// their own pass.
fn mean_confidence(tokens: &[CanvasToken]) -> Option<f32> {
    let predicted = tokens.iter().filter(|token| {
        matches!(
            Look::of(token),
            Look::Fresh(_) | Look::Edited | Look::Provisional
        )
    });
    let known: Vec<f32> = predicted.filter_map(|token| token.confidence).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f32>() / known.len() as f32)
}
