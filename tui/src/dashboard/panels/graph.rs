//! Graphs over time: the newest at the right, filled from below.

use ratatui::{
    layout::Rect,
    symbols::Marker,
    widgets::canvas::{Canvas, Line},
};

use super::super::screen::Screen;
use crate::paint::{Glyphs, Role};

/// Shapes of a share in one cell, from the lowest to the highest.
pub(in super::super) const SHADES: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Number of dots of a graph across a width in columns.
pub(in super::super) fn dots_across(columns: u16, glyphs: Glyphs) -> usize {
    usize::from(columns) * dots(glyphs.marker()).0
}

/// Draws values from 0 to `most`, one for each column of dots; `None` leaves a gap. `limit` is drawn as a level line.
pub(in super::super) fn graph(
    screen: &mut Screen<'_, '_>,
    area: Rect,
    values: &[Option<f64>],
    most: f64,
    limit: Option<f64>,
    role: Role,
) {
    if area.is_empty() {
        return;
    }
    let marker = screen.paint().glyphs.marker();
    let (across, down) = dots(marker);
    let columns = usize::from(area.width) * across;
    let rows = f64::from(area.height) * f64::from(down);
    // A limit drawn with the graph's own shapes would look like values that reach it.
    let limit = limit.filter(|_| !matches!(marker, Marker::Custom(_)));
    let colour = |role| screen.style(role).fg.unwrap_or_default();
    let (colour, limit_colour) = (colour(role), colour(Role::Warning));
    let most = most.max(f64::MIN_POSITIVE);
    let canvas = Canvas::default()
        .marker(marker)
        .x_bounds([0.0, columns as f64 - 1.0])
        .y_bounds([0.0, rows - 1.0])
        .paint(|context| {
            for (x, value) in values.iter().enumerate() {
                let Some(value) = value else { continue };
                // A value above 0 always has a dot, however small it is.
                let share = (value / most).clamp(0.0, 1.0);
                let top = (share * rows).ceil();
                if top < 1.0 {
                    continue;
                }
                let x = x as f64;
                context.draw(&Line::new(x, 0.0, x, top - 1.0, colour));
            }
            if let Some(limit) = limit {
                let y = ((limit / most).clamp(0.0, 1.0) * rows).ceil() - 1.0;
                let end = columns as f64 - 1.0;
                context.draw(&Line::new(0.0, y.max(0.0), end, y.max(0.0), limit_colour));
            }
        });
    screen.frame.render_widget(canvas, area);
}

/// Dots of a cell, across and down.
fn dots(marker: Marker) -> (usize, u16) {
    match marker {
        Marker::Braille => (2, 4),
        Marker::HalfBlock => (1, 2),
        _ => (1, 1),
    }
}

/// A round number at or above `most`, for the upper end of a graph.
pub(in super::super) fn round_up(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let decade = 10_f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let fits = steps.into_iter().find(|step| step * decade >= most);
    fits.unwrap_or(10.0) * decade
}

/// The same for bytes, which are counted in powers of two.
pub(in super::super) fn round_up_bytes(most: f64) -> f64 {
    most.max(1.0).log2().ceil().exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upper_end_is_a_round_number() {
        for (most, end) in [
            (0.0, 1.0),
            (1.0, 1.0),
            (1.1, 2.0),
            (37.0, 50.0),
            (512.0, 1000.0),
        ] {
            assert_eq!(round_up(most), end, "{most}");
        }
        for (most, end) in [(0.0, 1.0), (1024.0, 1024.0), (1025.0, 2048.0)] {
            assert_eq!(round_up_bytes(most), end, "{most}");
        }
    }
}
