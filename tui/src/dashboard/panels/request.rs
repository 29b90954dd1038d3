//! How one request stands: its progress, its canvas, and what the canvas's looks mean.

use ratatui::{
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use sluice_shared::units;

use super::{
    super::{state::Own, view::Screen},
    bar, ratio,
};
use crate::{
    canvas::{Canvas, Confidence, Look, MASK_MARK, Run, ids_text, runs, wrap},
    json,
    paint::{Paint, Role},
    text::{clip, sanitise, sanitise_line},
};

/// Columns of the bars of a request.
const GAUGE_COLUMNS: usize = 24;

/// The selected request: its progress, its canvas and what the canvas's looks mean.
pub(in super::super) fn request(screen: &mut Screen<'_, '_>, area: Rect) {
    let (state, paint) = (screen.state, screen.paint());
    let title = match state.requests.selected {
        Some(id) if state.requests.own == Own::Active(id) => format!("Request {id}, yours"),
        Some(id) => format!("Request {id}"),
        None => "Canvas".to_owned(),
    };
    let columns = usize::from(area.width.saturating_sub(2));
    let rows = usize::from(area.height.saturating_sub(2));
    let Some(canvas) = state.canvas() else {
        let words = match state.requests.selected {
            Some(id) if state.fills_no_canvas(id) => "a measurement, which fills no canvas",
            Some(_) => "nothing seen of it yet",
            None => "no request; write a prompt below",
        };
        let line = Line::styled(words, screen.style(Role::Dim));
        screen.framed(area, &title, false, vec![line]);
        return;
    };
    let mut lines = progress(canvas, columns, rows >= 12, paint);
    let legend = (rows >= 6 && !canvas.has_ended()).then(|| legend(columns, paint));
    let free = rows.saturating_sub(lines.len() + usize::from(legend.is_some()));
    let (text, shown) = canvas_lines(canvas, columns, free, state.reel.scroll, paint);
    lines.extend(text);
    screen.framed(area, &title, false, lines);
    if let Some(legend) = legend {
        // The legend stands on the last row, whatever the canvas leaves free above it.
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

/// How far a request has come: gauges where there is room, else one line.
fn progress(canvas: &Canvas, columns: usize, roomy: bool, paint: &Paint) -> Vec<Line<'static>> {
    let say = |words: String, style| Line::styled(clip(&sanitise_line(&words), columns), style);
    if let Some(failure) = &canvas.failure {
        return vec![say(format!("failed: {failure}"), paint.style(Role::Bad))];
    }
    if let Some(done) = &canvas.done {
        let words = format!(
            "{}: {} tokens in {} passes, {}, peak {}, {}",
            json::finish_reason(done.finish_reason()),
            units::count(done.text_tokens.into()),
            units::count(done.passes.into()),
            units::duration_ms(done.elapsed_ms),
            units::bytes(done.peak_device_bytes),
            exactness(done.exact)
        );
        return vec![say(words, paint.style(Role::Good))];
    }
    let Some(started) = &canvas.started else {
        let ahead = canvas.queued.map_or(0, |queued| queued.ahead);
        return vec![say(
            format!("waiting, {ahead} ahead"),
            paint.style(Role::Warning),
        )];
    };
    let Some(pass) = &canvas.pass else {
        let words = format!("first pass over {} prompt tokens", started.prompt_tokens);
        return vec![say(words, Style::new())];
    };
    let passes = f64::from(pass.pass.max(1));
    let speed = format!(
        "{} a pass · {:.2} tokens a pass",
        pass_duration(pass.elapsed_ms / passes),
        f64::from(pass.committed) / passes
    );
    let blocks_done = u32::try_from(canvas.blocks.len()).unwrap_or(u32::MAX);
    if !roomy {
        let words = format!(
            "block {}/{} pass {}/{} · {speed}",
            blocks_done, started.blocks, pass.pass, started.steps
        );
        return vec![say(words, Style::new())];
    }
    let gauge = |name: &str, part: u32, whole: u32| {
        let mut spans = vec![Span::raw(format!("{name:<9} "))];
        let wide = GAUGE_COLUMNS.min(columns.saturating_sub(28));
        spans.extend(bar(
            ratio(part.into(), whole.into()),
            wide,
            paint.style(Role::Good),
            paint,
        ));
        spans.push(Span::raw(format!(" {part} of {whole}")));
        Line::from(spans)
    };
    let rows = format!(
        "{speed} · {} rows, {} to the head · {}",
        units::count(pass.rows.into()),
        units::count(pass.head_rows.into()),
        exactness(pass.exact)
    );
    vec![
        gauge("blocks", blocks_done, started.blocks),
        gauge("passes", pass.pass, started.steps),
        gauge("committed", pass.committed, started.length),
        say(rows, Style::new()),
        Line::default(),
    ]
}

/// Small models take a few milliseconds a pass, where a whole number says too little.
fn pass_duration(ms: f64) -> String {
    if ms < 100.0 {
        format!("{ms:.1} ms")
    } else {
        units::duration_ms(ms)
    }
}

fn exactness(exact: bool) -> &'static str {
    if exact { "exact" } else { "not exact" }
}

/// The canvas in `rows` rows, and which lines they are when not all of them are.
fn canvas_lines(
    canvas: &Canvas,
    columns: usize,
    rows: usize,
    scroll: usize,
    paint: &Paint,
) -> (Vec<Line<'static>>, Option<String>) {
    let ids = canvas.shows_ids();
    let (lines, open_end) = match &canvas.done {
        Some(done) => {
            let text = match &done.text {
                Some(text) => sanitise(text),
                None => ids_text(&done.tokens).replace(',', ", "),
            };
            let look = Look::Committed;
            let lines = wrap(&[Run { text, look }], columns);
            let end = lines.len();
            (lines, end)
        }
        None => {
            let lines = wrap(&runs(&canvas.all_tokens(), ids), columns);
            let open_end = wrap(&runs(&canvas.seen_tokens(), ids), columns).len();
            (lines, open_end)
        }
    };
    // Follows the open block, a line of what lies ahead included.
    let total = lines.len();
    let end = (open_end + 1).min(total).max(rows.min(total));
    let end = end.saturating_sub(scroll).max(rows.min(total));
    let first = end.saturating_sub(rows);
    let shown = (total > rows).then(|| format!(" lines {}-{end} of {total} ", first + 1));
    let span = |run: Run| Span::styled(run.text, paint.look(run.look));
    let line = |line: Vec<Run>| Line::from(line.into_iter().map(span).collect::<Vec<_>>());
    let visible = lines.into_iter().skip(first).take(rows).map(line);
    (visible.collect(), shown)
}

/// What the looks mean, each word in its look.
fn legend(columns: usize, paint: &Paint) -> Line<'static> {
    let mask = format!("{MASK_MARK} masked");
    let entries = [
        ("committed", Look::Committed),
        ("guess", Look::Provisional),
        (mask.as_str(), Look::Masked),
        ("pinned", Look::Pinned),
        ("new", Look::Fresh(Confidence::High)),
        ("new <0.7", Look::Fresh(Confidence::Medium)),
        ("new <0.3", Look::Fresh(Confidence::Low)),
    ];
    let mut spans = Vec::new();
    let mut used = 0;
    for (words, look) in entries {
        let wide = crate::text::width(words) + 2;
        if used + wide > columns + 2 {
            break;
        }
        used += wide;
        spans.push(Span::styled(words.to_owned(), paint.look(look)));
        spans.push(Span::raw("  "));
    }
    Line::from(spans)
}
