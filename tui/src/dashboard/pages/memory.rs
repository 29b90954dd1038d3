//! The memory page: memory by kind and over time, and the map of layers.

use ratatui::{
    layout::{Constraint, Layout, Rect},
    text::Line,
};
use sluice_proto::v1::Snapshot;
use sluice_report::plan::memory_label;
use sluice_shared::units;

use super::super::{
    history::Sample,
    panels::{
        self,
        graph::{dots_across, graph, round_up, round_up_bytes},
        layers,
        memory::{budget, stack},
    },
    screen::{Screen, ScreenShape},
};
use crate::{
    paint::Role,
    text::{clip, sanitise_line},
};

/// Rows of the layer map with its frame, its legend and the selected layer in words; more where layers have many parts.
const MAP_ROWS: u16 = 10;
/// Height from which on a narrow screen has a graph, too.
const GRAPH_FROM_ROWS: u16 = 30;
/// Width of memory by kind beside the graphs.
const HELD_COLUMNS: u16 = 66;

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    match screen.shape {
        ScreenShape::Wide => {
            let needed = layers::full_rows(screen.state, area.width.saturating_sub(2)) + 2;
            let map_rows = needed.min(area.height / 2).max(MAP_ROWS);
            let [top, map] =
                Layout::vertical([Constraint::Min(0), Constraint::Length(map_rows)]).areas(area);
            let columns = HELD_COLUMNS.min(area.width / 2);
            let [held, graphs] =
                Layout::horizontal([Constraint::Length(columns), Constraint::Min(0)]).areas(top);
            draw_held(screen, held);
            let figures = Figure::ALL.iter().copied();
            // Only as many graphs as are tall enough to be read.
            let count = usize::from(graphs.height / 6).clamp(1, Figure::ALL.len());
            let places = Layout::vertical(vec![Constraint::Fill(1); count]).split(graphs);
            for (figure, place) in figures.zip(places.iter()) {
                draw_history(screen, *place, figure);
            }
            draw_map(screen, map);
        }
        ScreenShape::Tall => {
            let graph_rows = if area.height >= GRAPH_FROM_ROWS { 6 } else { 0 };
            let [held, graph, map] = Layout::vertical([
                Constraint::Min(0),
                Constraint::Length(graph_rows),
                Constraint::Length(MAP_ROWS - 2),
            ])
            .areas(area);
            draw_held(screen, held);
            if graph_rows > 0 {
                draw_history(screen, graph, Figure::Device);
            }
            draw_map(screen, map);
        }
        ScreenShape::Small => {
            let [held, map] =
                Layout::vertical([Constraint::Length(3), Constraint::Min(0)]).areas(area);
            draw_summary(screen, held);
            draw_map(screen, map);
        }
    }
}

fn draw_held(screen: &mut Screen<'_, '_>, area: Rect) {
    let inner = screen.pane(area, "Held now, and planned", false);
    let size = (usize::from(inner.width), usize::from(inner.height));
    let mut lines = panels::memory::in_full(screen.state, size);
    let weights = panels::memory::weights(screen.state, size.0);
    if lines.len() + weights.len() < size.1 {
        lines.push(Line::default());
        lines.extend(weights);
    }
    screen.lines(inner, lines);
}

/// Draws the device in three lines, for the smallest screens.
fn draw_summary(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let device = state
        .snapshot()
        .and_then(|snapshot| snapshot.device.as_ref());
    let Some(device) = device else {
        let line = Line::styled("unknown", screen.style(Role::Dim));
        return screen.lines(area, vec![line]);
    };
    let columns = usize::from(area.width);
    let whole = budget(state)
        .unwrap_or(device.used_bytes)
        .max(device.used_bytes);
    let words = format!(
        "{} {} of {}, peak {}",
        device.kind(),
        units::bytes(device.used_bytes),
        units::bytes(whole),
        units::bytes(device.peak_bytes)
    );
    let kinds = device.memory.iter().filter(|kind| kind.bytes > 0);
    let kinds =
        kinds.map(|kind| format!("{} {}", memory_label(kind.kind()), units::bytes(kind.bytes)));
    let kinds = kinds.collect::<Vec<_>>().join(" · ");
    let lines = vec![
        Line::raw(clip(&words, columns)),
        Line::from(stack(device, whole, columns, screen.paint())),
        Line::raw(clip(&sanitise_line(&kinds), columns)),
    ];
    screen.lines(area, lines);
}

fn draw_map(screen: &mut Screen<'_, '_>, area: Rect) {
    let inner = screen.pane(area, "Layers", true);
    layers::full(screen, inner);
}

/// The figure that a graph shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// Bytes that Sluice holds on the device.
    Device,
    /// Bytes of the host's memory in use.
    Host,
    /// Tokens committed per second.
    Tokens,
    /// Bytes of weights streamed per second.
    Streamed,
    /// The time of a pass.
    Pass,
}

impl Figure {
    const ALL: [Self; 5] = [
        Self::Device,
        Self::Host,
        Self::Tokens,
        Self::Streamed,
        Self::Pass,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Device => "Device",
            Self::Host => "Host",
            Self::Tokens => "Tokens a second",
            Self::Streamed => "Weights streamed a second",
            Self::Pass => "Time of a pass",
        }
    }

    fn value(self, sample: &Sample) -> Option<f64> {
        match self {
            Self::Device => sample.device_bytes.map(|bytes| bytes as f64),
            Self::Host => sample.host_bytes.map(|bytes| bytes as f64),
            Self::Tokens => sample.tokens_a_second,
            Self::Streamed => sample.streamed_a_second,
            Self::Pass => sample.pass_ms,
        }
    }

    /// Upper end and level line of a figure that has a limit: the budget, or the host's memory.
    fn limits(self, snapshot: &Snapshot) -> (Option<f64>, Option<f64>) {
        match self {
            Self::Device => {
                let settings = snapshot.settings.as_ref();
                let budget = settings.map(|settings| settings.budget_bytes as f64);
                (budget, budget)
            }
            Self::Host => {
                let host = snapshot.host.as_ref();
                (
                    host.and_then(|host| host.total_bytes)
                        .map(|bytes| bytes as f64),
                    None,
                )
            }
            Self::Tokens | Self::Streamed | Self::Pass => (None, None),
        }
    }

    /// A round upper end for a figure without a limit.
    fn end(self, most: f64) -> f64 {
        match self {
            Self::Device | Self::Host | Self::Streamed => round_up_bytes(most),
            Self::Tokens | Self::Pass => round_up(most),
        }
    }

    fn words(self, value: f64) -> String {
        match self {
            Self::Device | Self::Host => units::bytes(value as u64),
            Self::Tokens if value < 10.0 => format!("{value:.1}"),
            Self::Tokens => format!("{value:.0}"),
            Self::Streamed => format!("{}/s", units::bytes(value as u64)),
            Self::Pass => units::duration_ms(value),
        }
    }

    fn role(self) -> Role {
        match self {
            Self::Device => Role::Device,
            Self::Host => Role::Host,
            Self::Tokens => Role::Good,
            Self::Streamed => Role::Disk,
            Self::Pass => Role::KvCache,
        }
    }
}

/// Spans that graphs can show; the shortest that holds all samples is taken.
const SPANS_MS: [u64; 3] = [60_000, 120_000, 300_000];

/// Draws a figure over the last minutes, with its present value and its maximum.
pub(super) fn draw_history(screen: &mut Screen<'_, '_>, area: Rect, figure: Figure) {
    let state = screen.state;
    let until_ms = state
        .frozen
        .as_ref()
        .map_or(state.now_ms, |(_, at_ms)| *at_ms);
    let age_ms = state.history.age_ms(until_ms);
    let span_ms = SPANS_MS.into_iter().find(|span| *span >= age_ms);
    let span_ms = span_ms.unwrap_or(SPANS_MS[SPANS_MS.len() - 1]);
    let dots = dots_across(area.width.saturating_sub(2), screen.paint().glyphs);
    let values = state
        .history
        .parts(until_ms, span_ms, dots, |sample| figure.value(sample));
    let now = values.last().copied().flatten();
    let now = now.map_or("unknown".to_owned(), |value| figure.words(value));
    let inner = screen.pane(area, &format!("{}: {now}", figure.title()), false);
    let is_known = values.iter().any(Option::is_some);
    let most_seen = values.iter().flatten().copied().fold(0.0, f64::max);
    if !is_known || most_seen == 0.0 {
        let words = if is_known {
            "nothing in this time"
        } else {
            "nothing measured yet"
        };
        let line = Line::styled(words, screen.style(Role::Dim));
        return screen.lines(inner, vec![line]);
    }
    let (end, limit) = match state.snapshot() {
        Some(snapshot) => figure.limits(snapshot),
        None => (None, None),
    };
    // A limit far above all values would make the graph flat.
    let is_flat = |end: f64| most_seen < end / 20.0;
    let (end, limit) = match end {
        Some(end) if is_flat(end) => (None, None),
        other => (other, limit),
    };
    let end = end.unwrap_or_else(|| figure.end(most_seen)).max(most_seen);
    graph(screen, inner, &values, end, limit, figure.role());
    let span = units::duration_ms(span_ms as f64);
    screen.foot(area, &format!(" 0 to {}, last {span} ", figure.words(end)));
}
