//! The steps for a latent thought model's latents: the curves of the bound and of its two parts by step, or of the noise that
//! is left, and their figures in a line.

use ratatui::{
    layout::{Constraint, Layout, Rect},
    text::Line,
};
use sluice_proto::v1::GenerationThought;

use super::{
    super::screen::Screen,
    graph::{SHADES, dots_across, graph},
};
use crate::{
    canvas::Canvas,
    paint::{Paint, Role},
    text::{clip, width},
    thinking::{self, ThoughtBound},
};

/// Width of the names and figures beside the curves, with the axis.
const GUTTER_COLUMNS: u16 = 17;
/// Rows of a curve: fewer show nothing, more show no more.
const CURVE_ROWS_MIN: u16 = 2;
const CURVE_ROWS_MAX: u16 = 8;
/// Width of the small curve in a line.
const SPARK_COLUMNS: usize = 8;

/// The curves, from the top: the bound, then its parts.
type Figure = fn(&GenerationThought) -> f64;
const CURVES: [(&str, Figure, Role); 3] = [
    ("bound", |step| ThoughtBound::of(step).sum(), Role::Good),
    ("text", |step| ThoughtBound::of(step).text, Role::Host),
    (
        "thoughts",
        |step| ThoughtBound::of(step).thoughts,
        Role::KvCache,
    ),
];
/// The curve of a sample of the prior: the noise that is left, by powers of ten. After the last step there is none.
const NOISE: [(&str, Figure, Role); 1] = [(
    "lg noise",
    |step| step.noise_level.unwrap_or_default().log10(),
    Role::KvCache,
)];

/// Draws all curves above each other, or that of the bound alone where there is little room.
pub(super) fn draw_curves(screen: &mut Screen<'_, '_>, area: Rect, canvas: &Canvas) {
    let axis_rows = 1;
    let room = area.height.saturating_sub(axis_rows);
    if room < CURVE_ROWS_MIN || area.width < GUTTER_COLUMNS + 4 {
        return;
    }
    let curves = match canvas.thoughts.is_empty() {
        true => &NOISE[..],
        false => &CURVES[..],
    };
    let shown = match room / curves.len() as u16 {
        rows if rows >= CURVE_ROWS_MIN => curves,
        _ => &curves[..1],
    };
    let each = (room / shown.len() as u16).min(CURVE_ROWS_MAX);
    let taken = canvas.latent_steps();
    // Of inference there is a figure before the first step, too.
    let first = taken.first().map_or(0, |first| u64::from(first.step));
    let steps = steps_across(canvas);
    let mut y = area.y;
    for (name, figure, role) in shown {
        let place = Rect::new(area.x, y, area.width, each);
        let figures: Vec<_> = taken.iter().map(figure).collect();
        draw_curve(screen, place, (name, *role), &figures, steps);
        y += each;
    }
    let gutter = usize::from(GUTTER_COLUMNS);
    let last = (first + steps.saturating_sub(1)).to_string();
    let room = usize::from(area.width) - gutter;
    let line = "─".repeat(room.saturating_sub(last.len() + 3));
    let words = format!("{:>gutter$}{first} {line} {last}", "step ");
    let place = Rect::new(area.x, y, area.width, 1);
    let words = clip(&words, usize::from(area.width));
    screen.lines(place, vec![Line::styled(words, screen.style(Role::Dim))]);
}

/// Draws a curve between its least and its largest figure, which stand beside it.
fn draw_curve(
    screen: &mut Screen<'_, '_>,
    area: Rect,
    (name, role): (&str, Role),
    figures: &[f64],
    steps: u64,
) {
    let [gutter, plot] =
        Layout::horizontal([Constraint::Length(GUTTER_COLUMNS), Constraint::Min(0)]).areas(area);
    let (least, most) = ends(figures);
    let shown = |figure: f64| match figure.is_finite() {
        true if figure.abs() < 1000.0 => format!("{figure:.3}"),
        true => format!("{figure:.0}"),
        false => "unknown".to_owned(),
    };
    let line = |name: &str, figure: &str, axis| format!("{name:<8} {figure:>7}{axis}");
    let rows = usize::from(area.height);
    let words = (0..rows).map(|row| match row {
        0 => line(name, &shown(most), '┤'),
        row if row + 1 == rows => line("", &shown(least), '┤'),
        _ => line("", "", '│'),
    });
    let dim = screen.style(Role::Dim);
    screen.lines(
        gutter,
        words.map(|words| Line::styled(words, dim)).collect(),
    );
    let glyphs = screen.paint().glyphs;
    let values = across(figures, steps, dots_across(plot.width, glyphs));
    // Above the least figure there are as many rows as the graph has but one, so that each figure has a dot.
    let span = if most > least { most - least } else { 1.0 };
    let floor = span / 20.0;
    let values: Vec<_> = values
        .into_iter()
        .map(|value| value.map(|value| value - least + floor))
        .collect();
    graph(screen, plot, &values, span + floor, None, role);
}

/// Number of figures that the curves have room for: all that may come, or those of the steps taken once there is an end.
fn steps_across(canvas: &Canvas) -> u64 {
    let steps = canvas.latent_steps();
    let taken = steps.len() as u64;
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
        return 0;
    };
    let all = u64::from(last.steps_max.saturating_sub(first.step)) + 1;
    match last.is_last || canvas.has_ended() {
        true => taken,
        false => taken.max(all),
    }
}

/// One figure for each column of dots: the latest of the steps that share it; `None` where a step is still to come.
fn across(figures: &[f64], steps: u64, columns: usize) -> Vec<Option<f64>> {
    let columns = columns as u64;
    let of_column = |column: u64| {
        let step = ((column + 1) * steps).div_ceil(columns).max(1) - 1;
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        figures
            .get(step)
            .copied()
            .filter(|figure| figure.is_finite())
    };
    (0..columns).map(of_column).collect()
}

/// The least and the largest figure; not finite where there is none.
fn ends(figures: &[f64]) -> (f64, f64) {
    let known = figures.iter().copied().filter(|figure| figure.is_finite());
    known.fold(
        (f64::INFINITY, f64::NEG_INFINITY),
        |(least, most), figure| (least.min(figure), most.max(figure)),
    )
}

/// How a request thought, in a line with a small curve of the bound; `None` if it did not.
pub(super) fn brief(canvas: &Canvas, columns: usize, paint: &Paint) -> Option<Line<'static>> {
    let last = canvas.latent_steps().last()?;
    if last.noise_level.is_some() {
        let words = clip(&thinking::last(last), columns);
        return Some(Line::styled(words, paint.style(Role::Committed)));
    }
    let bound = ThoughtBound::of(last);
    let (step, sum) = (last.step, bound.sum());
    let spark = spark(&canvas.thoughts);
    let parts = format!("text {:.3}, thoughts {:.3}", bound.text, bound.thoughts);
    // The first that fits.
    let words = [
        format!("{spark} {}", thinking::last(last)),
        format!("{spark} {step} steps: {}", thinking::bound(last)),
        format!("{spark} bound {sum:.3}: {parts}"),
        format!("bound {sum:.3}: {parts}"),
    ];
    let words = words.into_iter().find(|words| width(words) <= columns);
    let words = words.unwrap_or_else(|| clip(&format!("bound {sum:.3}, {step} steps"), columns));
    Some(Line::styled(words, paint.style(Role::Committed)))
}

/// The bound by step in a few characters, the highest first in height.
fn spark(thoughts: &[GenerationThought]) -> String {
    let bounds: Vec<_> = thoughts
        .iter()
        .map(|thought| ThoughtBound::of(thought).sum())
        .collect();
    let (least, most) = ends(&bounds);
    let columns = SPARK_COLUMNS.min(bounds.len());
    let shade = |value: Option<f64>| {
        let Some(value) = value else { return " " };
        let share = if most > least {
            (value - least) / (most - least)
        } else {
            0.0
        };
        SHADES[(share * (SHADES.len() - 1) as f64).round() as usize]
    };
    let step = |column: usize| column * (bounds.len() - 1) / (columns - 1).max(1);
    let known = |column| Some(bounds[step(column)]).filter(|bound| bound.is_finite());
    (0..columns).map(|column| shade(known(column))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paint::{Glyphs, Theme};

    fn canvas(steps: u32, steps_max: u32) -> Canvas {
        let thought = |step| GenerationThought {
            step,
            steps_max,
            nll: 40.0 - f64::from(step),
            kl: f64::from(step) / 4.0,
            tokens: 10,
            is_last: step == steps_max,
            ..Default::default()
        };
        let mut canvas = Canvas::default();
        canvas.thoughts = (0..=steps).map(thought).collect();
        canvas
    }

    fn words(canvas: &Canvas, columns: usize) -> Option<String> {
        let paint = Paint::new(Theme::Terminal, Glyphs::Braille, false);
        brief(canvas, columns, &paint).map(|line| line.to_string())
    }

    #[test]
    fn steps_to_come_have_no_dots() {
        assert_eq!(steps_across(&canvas(3, 7)), 8);
        let halves = across(&[4.0, 3.0, 2.0, 1.0], 8, 16);
        assert_eq!(halves[..4], [Some(4.0), Some(4.0), Some(3.0), Some(3.0)]);
        assert_eq!(halves[8..], [None; 8]);
        // Once it has ended, those that were taken fill the width.
        assert_eq!(steps_across(&canvas(7, 7)), 8);
        let mut ended = canvas(3, 7);
        ended.failure = Some("cancelled".into());
        assert_eq!(steps_across(&ended), 4);
        assert_eq!(across(&[4.0, 3.0, 2.0, 1.0], 4, 2), [Some(3.0), Some(1.0)]);
        assert_eq!(across(&[f64::NAN], 1, 2), [None, None]);
        let columns = across(&[1.0], u64::from(u32::MAX) + 1, 300);
        assert_eq!(columns, vec![None; 300]);
    }

    #[test]
    fn the_line_says_what_fits() {
        let ended = canvas(7, 7);
        assert_eq!(
            words(&ended, 120).unwrap(),
            "█▇▆▅▄▃▂▁ thought for 7 steps, 0 ms: bound 3.475 nats a token (text 3.300, thoughts 0.175)"
        );
        assert_eq!(
            words(&ended, 50).unwrap(),
            "█▇▆▅▄▃▂▁ bound 3.475: text 3.300, thoughts 0.175"
        );
        assert_eq!(words(&ended, 24).unwrap(), "bound 3.475, 7 steps");
        assert_eq!(words(&Canvas::default(), 120), None);
    }

    #[test]
    fn a_flat_curve_is_low() {
        let flat = vec![GenerationThought::default(); 3];
        assert_eq!(spark(&flat), "▁▁▁");
    }
}
