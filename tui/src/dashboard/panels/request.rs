//! The panel of one request: its progress, its canvas, and the legend.

use super::{super::screen::Screen, work};
use crate::{
    canvas::{Canvas, Look, TextRun, ids_text, runs, wrap, wrap_marked},
    paint::{Paint, Role},
    text::sanitise,
};
use ratatui::{
    layout::Rect,
    text::{Line, Span},
};

/// Draws the selected request: its progress, its canvas and the legend.
pub(in super::super) fn request(screen: &mut Screen<'_, '_>, area: Rect) {
    let (state, paint) = (screen.state, screen.paint());
    let title = match state.requests.selected {
        Some(id) if state.requests.is_own(id) => format!("Request {id}, yours"),
        Some(id) => format!("Request {}", state.requests.name(id)),
        None => "Canvas".to_owned(),
    };
    let columns = usize::from(area.width.saturating_sub(2));
    let rows = usize::from(area.height.saturating_sub(2));
    let Some(canvas) = state.canvas() else {
        let words = match state.requests.selected {
            Some(id) if state.fills_no_canvas(id) => "a measurement, which fills no canvas",
            Some(_) => "nothing seen of it yet",
            None => "no request; i writes a prompt",
        };
        let line = Line::styled(words, screen.style(Role::Dim));
        screen.framed(area, &title, false, vec![line]);
        return;
    };
    if canvas.has_only_thought() {
        let inner = screen.pane(area, &title, false);
        work::draw_thinking(screen, inner, canvas);
        return;
    }
    let from = work::streamed_from(state);
    let mut lines = work::progress(canvas, from, (columns, rows), paint);
    let legend = (rows >= 6 && !canvas.has_ended()).then(|| legend(canvas, columns, paint));
    let free = rows.saturating_sub(lines.len() + usize::from(legend.is_some()));
    let (text, shown, scrollable) = canvas_lines(canvas, columns, free, state.reel.scroll, paint);
    state.reel.drew(scrollable);
    lines.extend(text);
    screen.framed(area, &title, false, lines);
    if let Some(legend) = legend {
        // The legend is always on the last row, so that it does not move while the text grows.
        let place = Rect::new(
            area.x + 1,
            area.bottom().saturating_sub(2),
            area.width.saturating_sub(2),
            1,
        );
        screen.lines(place, vec![legend]);
    }
    if let Some(shown) = shown {
        screen.foot(area, &shown);
    }
}

/// The canvas in `rows` rows, which lines these are if not all fit, and the lines that it can be scrolled back.
pub(in super::super) fn canvas_lines(
    canvas: &Canvas,
    columns: usize,
    rows: usize,
    scroll: usize,
    paint: &Paint,
) -> (Vec<Line<'static>>, Option<String>, usize) {
    let ids = canvas.shows_ids();
    let (lines, open_end) = match &canvas.done {
        Some(done) => {
            let text = match &done.text {
                Some(text) => sanitise(text),
                None => ids_text(&done.token_ids).replace(',', ", "),
            };
            let look = Look::Committed;
            let lines = wrap(&[TextRun { text, look }], columns);
            let end = lines.len();
            (lines, end)
        }
        None => {
            let mut all = runs(canvas.seen(), ids);
            let open_end = all.iter().map(|run| run.text.chars().count()).sum();
            all.extend(runs(&canvas.ahead(), ids));
            wrap_marked(&all, columns, open_end)
        }
    };
    // Follows the open block and one line of the masks behind it.
    let total = lines.len();
    let end = (open_end + 1).min(total).max(rows.min(total));
    let scrollable = end - rows.min(total);
    let end = end - scroll.min(scrollable);
    let first = end.saturating_sub(rows);
    let shown = (total > rows).then(|| format!(" lines {}-{end} of {total} ", first + 1));
    let span = |run: TextRun| Span::styled(run.text, paint.look(run.look));
    let line = |line: Vec<TextRun>| Line::from(line.into_iter().map(span).collect::<Vec<_>>());
    let visible = lines.into_iter().skip(first).take(rows).map(line);
    (visible.collect(), shown, scrollable)
}

/// The legend: each word in the look that it explains.
pub(in super::super) fn legend(canvas: &Canvas, columns: usize, paint: &Paint) -> Line<'static> {
    let runs = canvas.legend(columns).into_iter();
    Line::from_iter(runs.map(|run| Span::styled(run.text, paint.look(run.look))))
}
