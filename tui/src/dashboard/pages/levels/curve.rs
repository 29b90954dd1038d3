//! The curve of loss against memory that an optimization found, with its mix and the fixed levels on it.

use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
    widgets::canvas::{self, Canvas},
};
use sluice_shared::{level::Level, units};

use super::super::super::{
    levels::{Optimization, is_loss},
    screen::{Screen, ScreenShape},
    state::DashboardState,
};
use crate::{paint::Role, text::width};

/// Rows from which on the curve is drawn, with its frame and axes.
const ROWS_MIN: u16 = 12;
/// Rows of the curve where it is below the words, and those that the words need before it.
const ROWS_BELOW: u16 = 14;
const WORDS_ROWS: u16 = 12;
/// Width of the figures beside the vertical axis, with the axis.
const GUTTER_COLUMNS: u16 = 8;

/// Marks of the mix. Another shape and not another colour, since both may be of one colour.
const PREDICTED: &str = "●";
const MEASURED: &str = "×";

/// The areas of the words about a level and of the curve; `None` where there is nothing to draw, or no room for it.
pub(super) fn beside(screen: &Screen<'_, '_>, area: Rect) -> (Rect, Option<Rect>) {
    let known = screen.state.optimization();
    let ends = known.and_then(|known| known.curve.first().zip(known.curve.last()));
    let has_curve = ends.is_some_and(|(first, last)| first.bytes < last.bytes);
    let split = match screen.shape {
        ScreenShape::Wide if area.height >= ROWS_MIN => {
            Layout::horizontal([Constraint::Percentage(55), Constraint::Percentage(45)])
        }
        ScreenShape::Tall if area.height >= WORDS_ROWS + ROWS_BELOW => {
            Layout::vertical([Constraint::Min(0), Constraint::Length(ROWS_BELOW)])
        }
        _ => return (area, None),
    };
    let [words, curve] = split.areas(area);
    match has_curve {
        true => (words, Some(curve)),
        false => (area, None),
    }
}

/// A place on the curve's plane.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    bytes: f64,
    kl_nats: f64,
}

/// Ends of both axes. Losses span powers of ten, so theirs ends at whole ones.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axes {
    bytes: (f64, f64),
    exponents: (i32, i32),
}

impl Axes {
    /// Axes that show all places.
    fn of(places: &[Place]) -> Self {
        let ends = |figure: fn(&Place) -> f64| {
            let figures = places.iter().map(figure);
            let ends = (f64::INFINITY, f64::NEG_INFINITY);
            figures.fold(ends, |(least, most), figure| {
                (least.min(figure), most.max(figure))
            })
        };
        let bytes = ends(|place| place.bytes);
        let (least, most) = ends(|place| place.kl_nats.log10());
        let low = least.floor() as i32;
        let high = (most.ceil() as i32).max(low + 1);
        Self {
            bytes,
            exponents: (low, high),
        }
    }

    /// Where a place lies, as shares of both axes.
    fn shares(self, place: Place) -> (f64, f64) {
        let (low, high) = (f64::from(self.exponents.0), f64::from(self.exponents.1));
        (
            (place.bytes - self.bytes.0) / (self.bytes.1 - self.bytes.0),
            (place.kl_nats.log10() - low) / (high - low),
        )
    }
}

/// Draws the curve with its axes and marks.
pub(super) fn draw(screen: &mut Screen<'_, '_>, area: Rect) {
    let state = screen.state;
    let Some(known) = state.optimization() else {
        return;
    };
    let inner = screen.pane(area, "KL in nats by device memory of the plan", false);
    screen.foot(
        area,
        &format!(" the mix: {PREDICTED} predicted, {MEASURED} measured "),
    );
    let [above, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(2)]).areas(inner);
    let [gutter, plot] =
        Layout::horizontal([Constraint::Length(GUTTER_COLUMNS), Constraint::Min(0)]).areas(above);
    let curve: Vec<_> = known
        .curve
        .iter()
        .map(|point| Place {
            bytes: point.bytes as f64,
            kl_nats: point.predicted_kl_nats,
        })
        .collect();
    let marks = marks(state, known);
    let mut places = curve.clone();
    places.extend(marks.iter().map(|mark| mark.place));
    let axes = Axes::of(&places);
    vertical_axis(screen, gutter, axes);
    horizontal_axis(screen, below, axes);
    plane(screen, plot, axes, &curve, &marks);
}

/// A mark on the plane, with its name where it has one.
struct Mark {
    place: Place,
    shape: &'static str,
    name: &'static str,
    role: Role,
}

/// Marks of the fixed levels that were measured, and on top of them those of the mix.
fn marks(state: &DashboardState, known: &Optimization) -> Vec<Mark> {
    let fixed = Level::ALL.into_iter().filter_map(|level| {
        if matches!(level, Level::Optimized | Level::Auto) {
            return None;
        }
        let plan = state.levels.plan(level)?;
        let kl_nats = state.fidelity_of(level)?.mean_kl_nats;
        // The curve is of weights that stay on the device. Of weights that are streamed, the plan's memory says nothing.
        let is_comparable = plan.is_loadable && plan.streamed_bytes_per_pass == 0;
        (is_comparable && is_loss(kl_nats)).then(|| Mark {
            place: Place {
                bytes: plan.peak_bytes as f64,
                kl_nats,
            },
            shape: MEASURED,
            name: level.name(),
            role: Role::Committed,
        })
    });
    let role = match state.is_mix_in_force(known) {
        true => Role::Good,
        false => Role::Warning,
    };
    let of_mix = [
        (known.measured.map(|loss| loss.kl_nats), MEASURED),
        (known.predicted.map(|loss| loss.kl_nats), PREDICTED),
    ];
    let of_mix = of_mix.into_iter().filter_map(|(kl_nats, shape)| {
        let (kl_nats, bytes) = (kl_nats?, known.plan_bytes()? as f64);
        is_loss(kl_nats).then_some(Mark {
            place: Place { bytes, kl_nats },
            shape,
            name: "",
            role,
        })
    });
    fixed.chain(of_mix).collect()
}

/// Figures at the powers of ten, as far as there are rows for them.
fn vertical_axis(screen: &mut Screen<'_, '_>, area: Rect, axes: Axes) {
    let dim = screen.style(Role::Dim);
    let columns = usize::from(area.width) - 1;
    let mut lines = vec![Line::styled(format!("{:columns$}│", ""), dim); area.height.into()];
    for exponent in axes.exponents.0..=axes.exponents.1 {
        let kl_nats = 10_f64.powi(exponent);
        let place = Place {
            bytes: axes.bytes.0,
            kl_nats,
        };
        let share = axes.shares(place).1;
        let row = ((1.0 - share) * f64::from(area.height - 1)).round() as usize;
        let Some(line) = lines.get_mut(row) else {
            continue;
        };
        // More zeros than this have no room.
        let words = match exponent {
            ..-5 => format!("1e{exponent}"),
            -5..0 => format!("{kl_nats:.*}", exponent.unsigned_abs() as usize),
            _ => format!("{kl_nats}"),
        };
        *line = Line::styled(format!("{words:>columns$}┤"), dim);
    }
    screen.lines(area, lines);
}

/// The axis below the plane, and the memory at both ends of it.
fn horizontal_axis(screen: &mut Screen<'_, '_>, area: Rect, axes: Axes) {
    let dim = screen.style(Role::Dim);
    let gutter = usize::from(GUTTER_COLUMNS) - 1;
    let columns = usize::from(area.width).saturating_sub(gutter + 1);
    let bytes = |bytes: f64| units::bytes(bytes as u64);
    let (low, high) = (bytes(axes.bytes.0), bytes(axes.bytes.1));
    let middle = bytes((axes.bytes.0 + axes.bytes.1) / 2.0);
    let sides = columns.saturating_sub(width(&middle));
    let (left, right) = (sides / 2, sides - sides / 2);
    let axis = format!("{:gutter$}└{}", "", "─".repeat(columns));
    let figures = format!("{:gutter$} {low:<left$}{middle}{high:>right$}", "");
    let lines = [axis, figures].map(|line| Line::styled(line, dim));
    screen.lines(area, lines.into());
}

/// Draws the curve and the marks, in cells from the lower left corner.
fn plane(screen: &mut Screen<'_, '_>, area: Rect, axes: Axes, curve: &[Place], marks: &[Mark]) {
    let (right, top) = (f64::from(area.width - 1), f64::from(area.height - 1));
    let cell = |place: Place| {
        let (across, up) = axes.shares(place);
        (across * right, up * top)
    };
    let colour = screen.style(Role::Committed).fg.unwrap_or_default();
    let marks: Vec<_> = marks
        .iter()
        .map(|mark| {
            let (across, up) = cell(mark.place);
            (across, up, mark, screen.style(mark.role))
        })
        .collect();
    let plane = Canvas::default()
        .marker(screen.paint().glyphs.marker())
        .x_bounds([0.0, right])
        .y_bounds([0.0, top])
        .paint(|context| {
            for pair in curve.windows(2) {
                let ((x1, y1), (x2, y2)) = (cell(pair[0]), cell(pair[1]));
                context.draw(&canvas::Line::new(x1, y1, x2, y2, colour));
            }
            for (across, up, mark, style) in &marks {
                let (across, words) = label(*across, right, mark, *style);
                context.print(across, *up, words);
            }
        });
    screen.frame.render_widget(plane, area);
}

/// A mark with its name on the side that has room for it, and where it begins.
fn label(across: f64, right: f64, mark: &Mark, style: Style) -> (f64, Line<'static>) {
    let shape = Span::styled(mark.shape, style);
    // The mark's own column is the one that it is rounded down to.
    let across = across.floor();
    let beside = (width(mark.name) + 1) as f64;
    match mark.name {
        "" => (across, shape.into()),
        name if across + beside > right && across >= beside => {
            let name = Span::styled(format!("{name} "), style);
            (across - beside, Line::from(vec![name, shape]))
        }
        name => {
            let name = Span::styled(format!(" {name}"), style);
            (across, Line::from(vec![shape, name]))
        }
    }
}
