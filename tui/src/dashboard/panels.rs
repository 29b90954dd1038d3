//! Panels that several pages share: memory, layers, graphs and one request.

pub(super) mod graph;
pub(super) mod layers;
mod level;
pub(super) mod memory;
mod request;
mod thoughts;
pub(super) mod work;

pub(super) use request::{canvas_lines, legend, request};

use ratatui::{style::Style, text::Span};

use crate::paint::{Paint, Role};

/// A part as a share of the whole, at most 1; 0 if the whole is 0.
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => (part as f64 / whole as f64).min(1.0),
    }
}

/// A bar whose parts differ by shape, so that it needs no colour.
pub(super) fn bar(share: f64, columns: usize, style: Style, paint: &Paint) -> [Span<'static>; 2] {
    let [filled, empty] = bar_parts(share, columns);
    [
        Span::styled(filled, style),
        Span::styled(empty, paint.style(Role::Dim)),
    ]
}

/// The filled and the empty part of a bar.
pub(super) fn bar_parts(share: f64, columns: usize) -> [String; 2] {
    let filled = (share.clamp(0.0, 1.0) * columns as f64).round() as usize;
    ["━".repeat(filled), "─".repeat(columns - filled)]
}
