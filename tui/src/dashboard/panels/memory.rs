//! Memory of the host, the process and the device.

use ratatui::{
    style::Style,
    text::{Line, Span},
};
use sluice_proto::v1::{Device, Host};
use sluice_shared::units;

use super::{
    super::{levels, state::State},
    bar, ratio,
};
use crate::{
    card,
    paint::{Paint, Role},
    text::{clip, sanitise_line},
};

/// Shares of the host's memory from which the bar warns.
const MEMORY_HIGH: f64 = 0.75;
const MEMORY_VERY_HIGH: f64 = 0.90;
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
pub(in super::super) fn memory(
    state: &State,
    (columns, rows): (usize, usize),
) -> Vec<Line<'static>> {
    let paint = &state.paint;
    let snapshot = state.snapshot();
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
            lines.extend(card_lines(device, columns, paint));
            lines.extend(device_lines(device, columns, paint));
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
fn card_lines(device: &Device, columns: usize, paint: &Paint) -> Vec<(Worth, Line<'static>)> {
    if let Some(no_card) = &device.no_card {
        let line = said("no card", &no_card.reason, columns).style(paint.style(Role::Dim));
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
        spans.extend(bar(share, columns.saturating_sub(25), Style::new(), paint));
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

fn device_lines(device: &Device, columns: usize, paint: &Paint) -> Vec<(Worth, Line<'static>)> {
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
        spans.extend(bar(share, columns.saturating_sub(24), Style::new(), paint));
        let worth = match kind.bytes {
            0 => Worth::Nothing,
            _ => Worth::Part,
        };
        lines.push((worth, Line::from(spans)));
    }
    lines
}

/// The same in three lines, and one for a card.
pub(in super::super) fn memory_brief(state: &State, columns: usize) -> Vec<Line<'static>> {
    let paint = &state.paint;
    let snapshot = state.snapshot();
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

fn host_line(host: &Host, columns: usize, paint: &Paint) -> Line<'static> {
    let Some((used, total)) = host_used(host) else {
        return Line::raw(format!("host     {UNKNOWN}"));
    };
    let share = ratio(used, total);
    let (style, word) = match share {
        s if s >= MEMORY_VERY_HIGH => (paint.style(Role::Bad), " very high"),
        s if s >= MEMORY_HIGH => (paint.style(Role::Warning), " high"),
        _ => (paint.style(Role::Good), ""),
    };
    let words = format!(" {:>3.0} %{word}", share * 100.0);
    let mut spans = vec![Span::raw("host     ")];
    spans.extend(bar(share, columns.saturating_sub(25), style, paint));
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
