//! The pictures of the card, as SVG on white, so that they can be read on light and dark pages alike.

use anyhow::{Result, anyhow};
use plotters::{
    chart::{ChartBuilder, ChartContext},
    coord::{
        Shift,
        combinators::{BindKeyPoints, IntoLogRange, LogCoord},
        ranged1d::ValueFormatter,
    },
    element::{Circle, EmptyElement, PathElement, Text},
    prelude::{Cartesian2d, DrawingArea, IntoDrawingArea, Ranged, SVGBackend},
    series::LineSeries,
    style::{
        Color, FontFamily, IntoFont, RGBColor, ShapeStyle, TextStyle, WHITE,
        text_anchor::{HPos, Pos, VPos},
    },
};

use crate::{
    judge::{
        Schedule,
        curve::{Curve, Row},
        rate::Rate,
    },
    log::Entry,
    objective::Objective,
};

const SIZE: (u32, u32) = (860, 440);
const KEYS_WIDTH: u32 = 190;
const LOSS_TICKS: [f64; 14] = [
    0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0,
];

// Colours that stay apart for colour-blind eyes (Okabe and Ito).
const BLUE: RGBColor = RGBColor(0, 114, 178);
const ORANGE: RGBColor = RGBColor(213, 94, 0);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const GRAY: RGBColor = RGBColor(150, 150, 150);
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(228, 228, 228);

/// Loss in training and on held-out text against tokens. The loss falls far, so its axis is logarithmic.
pub fn loss(objective: Objective, log: &[Entry], yardstick: Option<&[Entry]>) -> Result<String> {
    let points = |entries: &[Entry], value: fn(&Entry) -> Option<f64>| -> Vec<(f64, f64)> {
        let measured = entries.iter();
        measured
            .filter_map(|entry| Some((entry.tokens as f64 / 1e6, value(entry)?)))
            .collect()
    };
    let [training, held_out] = match objective {
        Objective::Diffusion => [
            ["training,", "masked tokens"],
            ["held-out answers,", "upper bound"],
        ],
        Objective::Autoregressive => [
            ["training,", "answer tokens"],
            ["held-out answers,", "exact"],
        ],
        Objective::Latent => [
            ["training,", "evidence bound"],
            ["held-out texts,", "evidence bound"],
        ],
    };
    let mut lines = vec![
        (training, GRAY, 1, points(log, |entry| Some(entry.loss))),
        (
            ["of it latents,", "KL divergence"],
            GREEN,
            1,
            points(log, |entry| entry.kl),
        ),
        (held_out, BLUE, 2, points(log, |entry| entry.held_out)),
    ];
    if let Some(yardstick) = yardstick {
        lines.push((
            ["the yardstick on", "the same, exact"],
            ORANGE,
            2,
            points(yardstick, |entry| entry.held_out),
        ));
    }
    lines.retain(|(.., points)| !points.is_empty());
    let all = || lines.iter().flat_map(|(.., points)| points);
    let right = all().map(|(x, _)| *x).fold(0.1, f64::max);
    let low = all().map(|(_, y)| *y).fold(1.0, f64::min);
    let high = all().map(|(_, y)| *y).fold(1.0, f64::max);
    let range = low / 1.15..high * 1.15;
    // Lines are drawn for all of them, also beyond the frame.
    let ticks = LOSS_TICKS
        .into_iter()
        .filter(|tick| range.contains(tick))
        .collect();
    let vertical = LogCoord::from(range.log_scale()).with_key_points(ticks);

    let mut svg = String::new();
    {
        let (area, mut keys) = canvas(&mut svg)?;
        let mut chart = framed(&area)
            .build_cartesian_2d(0.0..right * 1.02, vertical)
            .map_err(failed)?;
        mesh(
            &mut chart,
            "tokens in training, in millions",
            "nats a token",
            "",
        )?;
        for (label, colour, width, points) in lines {
            let style = ShapeStyle::from(&colour).stroke_width(width);
            chart
                .draw_series(LineSeries::new(points, style))
                .map_err(failed)?;
            keys.line(&label, style)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// What is measured of a row, and how it is drawn.
type Measure = (&'static str, RGBColor, fn(&Row) -> Rate);

const MEASURES: [Measure; 3] = [
    ("sentences whole", BLUE, |row| row.scores.sentences_whole),
    ("names kept", ORANGE, |row| row.scores.names_kept),
    ("questions right", GREEN, |row| row.questions.right),
];

/// Quality against tokens a pass: dots for the threshold policy, rings for the reference schedule.
pub fn quality(curve: &Curve) -> Result<String> {
    let is_reference = |row: &&Row| matches!(row.schedule, Schedule::Steps(_));
    let speed = |row: &Row| row.scores.effort.tokens_per_pass();
    let right = curve.rows.iter().map(speed).fold(2.0, f64::max);

    let mut svg = String::new();
    {
        let (area, mut keys) = canvas(&mut svg)?;
        let mut chart = framed(&area)
            .build_cartesian_2d(0.0..right * 1.04, 0.0..104.0)
            .map_err(failed)?;
        mesh(&mut chart, "tokens of text a pass", "share", " %")?;
        for (label, colour, measure) in MEASURES {
            let points = |reference: bool| -> Vec<(f64, f64)> {
                let rows = curve
                    .rows
                    .iter()
                    .filter(|row| is_reference(row) == reference);
                rows.filter_map(|row| Some((speed(row), 100.0 * measure(row).share()?)))
                    .collect()
            };
            let thick = ShapeStyle::from(&colour).stroke_width(2);
            let faint = ShapeStyle::from(colour.mix(0.5)).stroke_width(1);
            chart
                .draw_series(LineSeries::new(points(true), faint))
                .map_err(failed)?;
            chart
                .draw_series(LineSeries::new(points(false), thick))
                .map_err(failed)?;
            for (points, inside) in [(points(true), WHITE), (points(false), colour)] {
                let marks = points.into_iter().map(|at| {
                    EmptyElement::at(at) + ring((0, 0), inside.filled()) + ring((0, 0), thick)
                });
                chart.draw_series(marks).map_err(failed)?;
            }
            keys.line(&[label], thick)?;
        }
        keys.dot("threshold policy", INK.filled())?;
        keys.dot("reference schedule", ShapeStyle::from(&INK).stroke_width(2))?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

fn ring(at: (i32, i32), style: ShapeStyle) -> Circle<(i32, i32), i32> {
    Circle::new(at, 3, style)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

/// The place for a chart, and beside it one for what its colours mean.
fn canvas(svg: &mut String) -> Result<(Area<'_>, Keys<'_>)> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let (chart, area) = area.split_horizontally(SIZE.0 - KEYS_WIDTH);
    Ok((chart, Keys { area, next: 40 }))
}

/// What lines and marks mean, one below the other, where they hide nothing.
struct Keys<'a> {
    area: Area<'a>,
    next: i32,
}

impl Keys<'_> {
    fn line(&mut self, label: &[&str], style: ShapeStyle) -> Result<()> {
        let line = PathElement::new(vec![(0, self.next), (24, self.next)], style);
        self.area.draw(&line).map_err(failed)?;
        self.label(label)
    }

    fn dot(&mut self, label: &str, style: ShapeStyle) -> Result<()> {
        self.area
            .draw(&ring((12, self.next), style))
            .map_err(failed)?;
        self.label(&[label])
    }

    fn label(&mut self, lines: &[&str]) -> Result<()> {
        let middle = Pos::new(HPos::Left, VPos::Center);
        for line in lines {
            let text = Text::new(*line, (32, self.next), letters().pos(middle));
            self.area.draw(&text).map_err(failed)?;
            self.next += 20;
        }
        self.next += 8;
        Ok(())
    }
}

fn framed<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart.margin(18).x_label_area_size(48).y_label_area_size(62);
    chart
}

fn letters() -> TextStyle<'static> {
    TextStyle::from((FontFamily::SansSerif, 15).into_font()).color(&INK)
}

fn mesh<X, Y>(chart: &mut Chart<'_, '_, X, Y>, across: &str, up: &str, unit: &str) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style(letters())
        .axis_desc_style(letters())
        .x_desc(across)
        .y_desc(up)
        .y_labels(6)
        .x_label_formatter(&|x| x.to_string())
        .y_label_formatter(&|y| format!("{y}{unit}"))
        .draw()
        .map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("draw: {error}")
}
