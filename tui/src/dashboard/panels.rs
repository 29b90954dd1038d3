//! The panels of the dashboard: memory, the queue and its requests, and one request's canvas.

use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
    widgets::Paragraph,
};
use sluice_proto::v1::{Device, Host, RequestState, RequestSummary};
use sluice_shared::units;

use super::{
    levels,
    state::{Own, State},
    view::{Paint, bold, dim, framed},
};
use crate::{
    canvas::{Canvas, Confidence, Look, MASK_MARK, Run, ids_text, runs, wrap},
    card, json,
    text::{clip, sanitise, sanitise_line},
};

/// Shares of the host's memory from which the bar warns.
const MEMORY_HIGH: f64 = 0.75;
const MEMORY_VERY_HIGH: f64 = 0.90;
/// Columns of the bars of a request.
const GAUGE_COLUMNS: usize = 24;

const UNKNOWN: &str = "unknown";

/// What a line is worth where there are fewer rows than lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worth {
    /// Says that nothing is held.
    Nothing,
    /// Says more of what another line tells.
    Detail,
    /// One of several alike.
    Part,
    /// Stays.
    Much,
}

/// Memory of the host, the process and the device, in full where there are enough rows.
pub(super) fn memory(
    state: &State,
    (columns, rows): (usize, usize),
    paint: Paint,
) -> Vec<Line<'static>> {
    let snapshot = state.snapshot.as_ref().map(|(snapshot, _)| snapshot);
    let host = snapshot.and_then(|s| s.host).unwrap_or_default();
    let sluiced = format!(
        "sluiced  {} resident, peak {}",
        known(host.resident_bytes),
        known(host.resident_peak_bytes)
    );
    let mut lines = vec![
        (Worth::Much, host_line(&host, columns, paint)),
        (Worth::Detail, said("", &host_figures(&host), columns)),
        (Worth::Detail, Line::raw(sluiced)),
    ];
    match snapshot.and_then(|s| s.device.as_ref()) {
        Some(device) => {
            lines.extend(card_lines(device, columns));
            lines.extend(device_lines(device, columns));
        }
        None => lines.push((Worth::Much, said("device", UNKNOWN, columns))),
    }
    for (name, value) in levels::facts(state) {
        lines.push((Worth::Much, said(name, &value, columns)));
    }
    fit(lines, rows)
}

/// Leaves out what is worth least, from the end, until the rest fits.
fn fit(mut lines: Vec<(Worth, Line<'static>)>, rows: usize) -> Vec<Line<'static>> {
    for worth in [Worth::Nothing, Worth::Detail, Worth::Part] {
        while lines.len() > rows
            && let Some(last) = lines.iter().rposition(|(its, _)| *its == worth)
        {
            lines.remove(last);
        }
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

/// A line with its name before it.
fn said(name: &str, words: &str, columns: usize) -> Line<'static> {
    let words = format!("{name:<8} {words}");
    Line::raw(clip(&sanitise_line(&words), columns))
}

/// The card, its memory and how much of that is whose; without one, quietly why.
fn card_lines(device: &Device, columns: usize) -> Vec<(Worth, Line<'static>)> {
    if let Some(no_card) = &device.no_card {
        let line = said("no card", &no_card.reason, columns).style(dim());
        return vec![(Worth::Detail, line)];
    }
    let Some(card) = &device.card else {
        return Vec::new();
    };
    let detail = |words: &str| (Worth::Detail, said("", words, columns));
    let mut lines = vec![
        (Worth::Much, said("card", &device.name, columns)),
        detail(&card::arithmetic(card)),
    ];
    if let Some(activity) = card::activity(card) {
        lines.push((Worth::Part, said("", &activity, columns)));
    }
    let speed = [
        card.clock_mhz
            .map(|mhz| format!("{} MHz", units::count(mhz.into()))),
        card::bus(card),
    ];
    lines.extend(card::joined(speed, ", ").map(|words| detail(&words)));
    if let Some((used, total)) = card_used(device) {
        let share = ratio(used, total);
        let mut spans = vec![Span::raw("memory   ")];
        spans.extend(bar(share, columns.saturating_sub(25), Style::new()));
        spans.push(Span::raw(format!(" {:>3.0} %", share * 100.0)));
        lines.push((Worth::Much, Line::from(spans)));
        lines.push(detail(&used_of(used, total)));
    }
    if let Some(bytes) = card.held_by_others_bytes {
        lines.push(detail(&format!("others hold {}", units::bytes(bytes))));
    }
    lines
}

fn card_used(device: &Device) -> Option<(u64, u64)> {
    let (total, free) = (device.total_bytes?, device.free_bytes?);
    (total > 0).then(|| (total.saturating_sub(free), total))
}

fn used_of(used: u64, total: u64) -> String {
    format!("{} of {} used", units::bytes(used), units::bytes(total))
}

fn device_lines(device: &Device, columns: usize) -> Vec<(Worth, Line<'static>)> {
    let words = format!(
        "{}: {}, peak {}",
        device.kind,
        units::bytes(device.used_bytes),
        units::bytes(device.peak_bytes)
    );
    let mut lines = vec![(Worth::Much, said("device", &words, columns))];
    for kind in &device.memory {
        let share = ratio(kind.bytes, device.used_bytes);
        let words = format!(
            "  {:<11} {:>9} ",
            clip(&sanitise_line(&kind.kind), 11),
            units::bytes(kind.bytes)
        );
        let mut spans = vec![Span::raw(words)];
        spans.extend(bar(share, columns.saturating_sub(24), Style::new()));
        let worth = match kind.bytes {
            0 => Worth::Nothing,
            _ => Worth::Part,
        };
        lines.push((worth, Line::from(spans)));
    }
    lines
}

/// The same in three lines, and one for a card.
pub(super) fn memory_brief(state: &State, columns: usize, paint: Paint) -> Vec<Line<'static>> {
    let snapshot = state.snapshot.as_ref().map(|(snapshot, _)| snapshot);
    let host = snapshot.and_then(|s| s.host).unwrap_or_default();
    let mut first = host_line(&host, columns / 2, paint);
    first.push_span(Span::raw(format!("  {}", host_figures(&host))));
    let device = snapshot.and_then(|s| s.device.as_ref());
    let held = match device {
        None => UNKNOWN.to_owned(),
        Some(device) => {
            let kinds = device.memory.iter().filter(|kind| kind.bytes > 0);
            let kinds = kinds.map(|kind| format!(", {} {}", kind.kind, units::bytes(kind.bytes)));
            let without = if device.no_card.is_some() {
                " (no card)"
            } else {
                ""
            };
            let used = units::bytes(device.used_bytes);
            format!(
                "{}{without} {used}{}",
                device.kind,
                kinds.collect::<String>()
            )
        }
    };
    let words = format!("{} resident · device {held}", known(host.resident_bytes));
    let mut lines = vec![first, said("sluiced", &words, columns)];
    lines.extend(device.and_then(|device| card_brief(device, columns)));
    let facts = levels::facts(state).into_iter();
    let facts = facts.map(|(name, value)| match name {
        "level" => format!("level    {value}"),
        name => format!("{name} {value}"),
    });
    let last = facts.collect::<Vec<_>>().join(" · ");
    lines.push(Line::raw(clip(&sanitise_line(&last), columns)));
    lines
}

fn card_brief(device: &Device, columns: usize) -> Option<Line<'static>> {
    let card = device.card.as_ref()?;
    let others = card.held_by_others_bytes;
    let words = [
        card_used(device).map(|(used, total)| used_of(used, total)),
        card::activity(card),
        others.map(|bytes| format!("others hold {}", units::bytes(bytes))),
        // What changes comes first: narrow screens cut the end.
        Some(device.name.clone()),
    ];
    Some(said("card", &card::joined(words, " · ")?, columns))
}

fn host_line(host: &Host, columns: usize, paint: Paint) -> Line<'static> {
    let Some((used, total)) = host_used(host) else {
        return Line::raw(format!("host     {UNKNOWN}"));
    };
    let share = ratio(used, total);
    let (style, word) = match share {
        s if s >= MEMORY_VERY_HIGH => (paint.bad(), " very high"),
        s if s >= MEMORY_HIGH => (paint.warning(), " high"),
        _ => (paint.good(), ""),
    };
    let words = format!(" {:>3.0} %{word}", share * 100.0);
    let mut spans = vec![Span::raw("host     ")];
    spans.extend(bar(share, columns.saturating_sub(25), style));
    spans.push(Span::styled(words, style));
    Line::from(spans)
}

fn host_figures(host: &Host) -> String {
    match host_used(host) {
        Some((used, total)) => used_of(used, total),
        None => format!(
            "{} available of {}",
            known(host.available_bytes),
            known(host.total_bytes)
        ),
    }
}

fn host_used(host: &Host) -> Option<(u64, u64)> {
    let (total, available) = (host.total_bytes?, host.available_bytes?);
    (total > 0).then(|| (total.saturating_sub(available), total))
}

fn known(bytes: Option<u64>) -> String {
    bytes.map_or(UNKNOWN.into(), units::bytes)
}

fn ratio(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => (part as f64 / whole as f64).min(1.0),
    }
}

/// A bar that tells its parts apart by shape, so that it needs no colour.
fn bar(share: f64, columns: usize, style: Style) -> [Span<'static>; 2] {
    let filled = (share * columns as f64).round() as usize;
    [
        Span::styled("━".repeat(filled), style),
        Span::styled("─".repeat(columns.saturating_sub(filled)), dim()),
    ]
}

/// Title of the request list: the queue in words.
pub(super) fn queue_title(state: &State) -> String {
    let queue = state.snapshot.as_ref().and_then(|(s, _)| s.queue);
    match queue {
        Some(queue) => format!(
            "Requests: {} running, {} of {} waiting",
            queue.running, queue.waiting, queue.capacity
        ),
        None => "Requests".to_owned(),
    }
}

/// The request list, scrolled so that the selection is in it.
pub(super) fn requests(state: &State, columns: usize, rows: usize) -> Vec<Line<'static>> {
    let all = state.rows();
    if all.is_empty() {
        return vec![Line::styled("none", dim())];
    }
    let selected = all
        .iter()
        .position(|row| Some(row.request_id) == state.selected);
    let first = selected.unwrap_or(0).saturating_sub(rows.saturating_sub(1));
    let line = |(index, row): (usize, &RequestSummary)| {
        let is_selected = Some(index) == selected;
        let mark = if is_selected { '▸' } else { ' ' };
        let words = format!("{mark} {}", request_words(row));
        let line = Line::raw(clip(&sanitise_line(&words), columns));
        if is_selected {
            line.style(bold())
        } else {
            line
        }
    };
    all.iter()
        .enumerate()
        .skip(first)
        .take(rows)
        .map(line)
        .collect()
}

fn request_words(row: &RequestSummary) -> String {
    let ms = match row.state() {
        RequestState::Queued => row.queued_ms,
        _ => row.elapsed_ms,
    };
    let mut words = format!(
        "{:<4} {:<9} {}/{} blocks  {}",
        row.request_id,
        json::request_state(row.state()),
        row.blocks_done,
        row.blocks,
        units::duration_ms(ms),
    );
    if !row.error.is_empty() {
        words += &format!("  {}", row.error);
    }
    words
}

/// The selected request: its progress, its canvas and what the canvas's looks mean.
pub(super) fn request(frame: &mut Frame<'_>, area: Rect, state: &State, paint: Paint) {
    let title = match state.selected {
        Some(id) if state.own == Own::Active(id) => format!("Request {id}, yours"),
        Some(id) => format!("Request {id}"),
        None => "Canvas".to_owned(),
    };
    let columns = usize::from(area.width.saturating_sub(2));
    let rows = usize::from(area.height.saturating_sub(2));
    let Some(canvas) = state.canvas() else {
        let words = match state.selected {
            Some(id) if state.fills_no_canvas(id) => "a measurement, which fills no canvas",
            Some(_) => "nothing seen of it yet",
            None => "no request; write a prompt below",
        };
        framed(frame, area, &title, false, vec![Line::styled(words, dim())]);
        return;
    };
    let mut lines = progress(canvas, columns, rows >= 12, paint);
    let legend = (rows >= 6 && !canvas.has_ended()).then(|| legend(columns, paint));
    let free = rows.saturating_sub(lines.len() + usize::from(legend.is_some()));
    let (text, shown) = canvas_lines(canvas, columns, free, state.scroll_lines, paint);
    lines.extend(text);
    framed(frame, area, &title, false, lines);
    if let Some(legend) = legend {
        // The legend stands on the last row, whatever the canvas leaves free above it.
        let place = Rect::new(
            area.x + 1,
            area.bottom().saturating_sub(2),
            area.width.saturating_sub(2),
            1,
        );
        frame.render_widget(Paragraph::new(legend), place);
    }
    if let Some(shown) = shown {
        let place = Rect::new(
            area.right().saturating_sub(shown.len() as u16 + 2),
            area.bottom().saturating_sub(1),
            shown.len() as u16,
            1,
        );
        frame.render_widget(Line::styled(shown, dim()), place);
    }
}

/// How far a request has come: gauges where there is room, else one line.
fn progress(canvas: &Canvas, columns: usize, roomy: bool, paint: Paint) -> Vec<Line<'static>> {
    let say = |words: String, style| Line::styled(clip(&sanitise_line(&words), columns), style);
    if let Some(failure) = &canvas.failure {
        return vec![say(format!("failed: {failure}"), paint.bad())];
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
        return vec![say(words, paint.good())];
    }
    let Some(started) = &canvas.started else {
        let ahead = canvas.queued.map_or(0, |queued| queued.ahead);
        return vec![say(format!("waiting, {ahead} ahead"), paint.warning())];
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
        spans.extend(bar(ratio(part.into(), whole.into()), wide, paint.good()));
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
    paint: Paint,
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
    let span = |run: Run| Span::styled(run.text, run.look.style(paint.colour));
    let line = |line: Vec<Run>| Line::from(line.into_iter().map(span).collect::<Vec<_>>());
    let visible = lines.into_iter().skip(first).take(rows).map(line);
    (visible.collect(), shown)
}

/// What the looks mean, each word in its look.
fn legend(columns: usize, paint: Paint) -> Line<'static> {
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
        spans.push(Span::styled(words.to_owned(), look.style(paint.colour)));
        spans.push(Span::raw("  "));
    }
    Line::from(spans)
}
