//! The heat map: a row for each token, a column for each pass, and in each cell the model's confidence.

use std::{collections::HashMap, ops::Range};

use ratatui::{
    layout::Rect,
    style::{Modifier, Style},
    text::{Line, Span},
};
use sluice_proto::v1::CanvasToken;

use super::super::super::{hit_areas::HitTarget, panels::graph::SHADES, screen::Screen};
use crate::{
    canvas::{Canvas, Confidence, Look, MASK_MARK, runs},
    paint::{Paint, Role},
    record::{HeatCell, Recording},
    text::{clip, sanitise_line, width},
};

/// Width of the labels: a token's position and text, and a space.
const LABEL_COLUMNS: usize = 14;
/// A token that took the place of another: bars and circles tell how sure the model is, so it is neither.
const EDITED_MARK: &str = "◆";
/// Width of a pass where there is room.
const PASS_COLUMNS_MAX: usize = 2;

/// Draws the map, with the column of the pass at `index` marked, or that of the latest.
pub(super) fn draw(
    screen: &mut Screen<'_, '_>,
    area: Rect,
    recording: &Recording,
    picture: &Canvas,
    index: Option<usize>,
) {
    screen.hit_area(area, HitTarget::Canvas);
    let paint = screen.paint();
    let inner = screen.pane(area, "Confidence, pass by pass", false);
    let (columns, rows) = (usize::from(inner.width), usize::from(inner.height));
    let has_legend = rows >= 8;
    let rows = rows.saturating_sub(1 + usize::from(has_legend));
    let room = columns.saturating_sub(LABEL_COLUMNS);
    let passes = recording.columns(room);
    if passes.is_empty() || rows == 0 {
        let line = Line::styled("no pass yet", screen.style(Role::Dim));
        screen.lines(inner, vec![line]);
        return;
    }
    let wide = (room / passes.len()).clamp(1, PASS_COLUMNS_MAX);
    let last = recording.len() - 1;
    let at = index.unwrap_or(last);
    let cursor = passes.iter().position(|shared| shared.contains(&at));
    let cursor = cursor.unwrap_or(passes.len() - 1);

    let tokens = recording.canvas().all_tokens();
    let (positions, total, scrollable) = visible(&tokens, picture, rows, screen.state.reel.scroll);
    screen.state.reel.drew(scrollable);
    let digits = total.to_string().len();
    let ids = recording.canvas().shows_ids();
    let labels = labels(&tokens, &positions, digits, ids, paint);
    let heat = recording.heat(positions.clone(), &passes);
    let mut lines = vec![axis(recording, &passes, cursor, wide, paint)];
    for (label, row) in labels.into_iter().zip(0..) {
        let mut spans = label;
        let labelled = spans.len();
        for (column, at) in heat.iter().zip(0..) {
            let (glyph, style) = drawn(column[row], paint);
            let style = match at == cursor {
                true => style.patch(paint.style(Role::Selected)),
                false => style,
            };
            let marks = glyph.repeat(wide);
            // Neighbours of one style share a span: a map has thousands of cells, and each span costs time to draw.
            match spans[labelled..].last_mut() {
                Some(span) if span.style == style => span.content.to_mut().push_str(&marks),
                _ => spans.push(Span::styled(marks, style)),
            }
        }
        lines.push(Line::from(spans));
    }
    screen.lines(inner, lines);
    if has_legend {
        let place = Rect::new(inner.x, inner.bottom() - 1, inner.width, 1);
        screen.lines(place, vec![legend(picture.may_be_edited(), columns, paint)]);
    }
    let shown = usize::try_from(positions.end - positions.start).unwrap_or(usize::MAX);
    if shown < total {
        let part = format!(
            " tokens {}-{} of {total} ",
            positions.start + 1,
            positions.end
        );
        screen.foot(area, &part);
    }
    for (shared, at) in passes.iter().zip(0..) {
        let x = inner.x + u16::try_from(LABEL_COLUMNS + at * wide).unwrap_or(u16::MAX);
        let place = Rect::new(x, inner.y, wide as u16, inner.height);
        screen.hit_area(place, HitTarget::Pass(shared.end - 1));
    }
}

/// The positions that are visible in `rows`, their total number, and the rows that can be scrolled back. Follows the open
/// block of the picture, with a few positions behind it.
fn visible(
    tokens: &[CanvasToken],
    picture: &Canvas,
    rows: usize,
    scroll: usize,
) -> (Range<u32>, usize, usize) {
    let end_of = |tokens: &[CanvasToken]| {
        let ends = tokens.iter().map(|token| token.position as usize + 1);
        ends.max().unwrap_or(0)
    };
    let total = end_of(tokens);
    let open = picture.pass.as_ref().map_or(0, |pass| end_of(&pass.tokens));
    let end = (open + 1).min(total).max(rows.min(total));
    let scrollable = end - rows.min(total);
    let end = end - scroll.min(scrollable);
    let place = |position: usize| u32::try_from(position).unwrap_or(u32::MAX);
    (
        place(end.saturating_sub(rows))..place(end),
        total,
        scrollable,
    )
}

/// The token at each position in the latest picture, cut to the width of the labels.
fn labels(
    tokens: &[CanvasToken],
    positions: &Range<u32>,
    digits: usize,
    ids: bool,
    paint: &Paint,
) -> Vec<Vec<Span<'static>>> {
    let visible = tokens.iter().filter(|t| positions.contains(&t.position));
    let visible: HashMap<u32, &CanvasToken> = visible.map(|t| (t.position, t)).collect();
    let room = LABEL_COLUMNS.saturating_sub(digits + 2);
    positions
        .clone()
        .map(|position| {
            let token = visible.get(&position);
            let text: String = match token {
                Some(token) => runs(std::slice::from_ref(*token), ids)
                    .into_iter()
                    .map(|run| run.text)
                    .collect(),
                None => MASK_MARK.to_owned(),
            };
            let text = clip(&sanitise_line(&text.replace('\n', "\\n")), room);
            let look = token.map_or(Look::Masked, |token| Look::of(token));
            let space = " ".repeat((LABEL_COLUMNS - 1).saturating_sub(digits + width(&text)));
            let number = format!("{:>digits$} ", position + 1);
            vec![
                Span::styled(number, paint.style(Role::Dim)),
                Span::styled(text, paint.look(look)),
                Span::raw(space),
            ]
        })
        .collect()
}

/// The numbers of the first and the last pass, and a mark above the one that is shown.
fn axis(
    recording: &Recording,
    passes: &[Range<usize>],
    cursor: usize,
    wide: usize,
    paint: &Paint,
) -> Line<'static> {
    let columns = passes.len() * wide;
    let mut row: Vec<char> = vec![' '; columns];
    let number = |index: usize| {
        let number = recording.number(index).unwrap_or_default();
        number.to_string().chars().collect::<Vec<_>>()
    };
    let (first, last) = (number(0), number(recording.len() - 1));
    let mark = cursor * wide;
    // If both numbers do not fit, the last one is more important.
    if last.len() <= columns {
        // If the mark is above the last pass, the number goes beside it.
        let end = if mark + last.len() >= columns {
            mark
        } else {
            columns
        };
        let start = end.saturating_sub(last.len());
        let shown = end - start;
        row[start..end].copy_from_slice(&last[last.len() - shown..]);
        if first.len() < start {
            row[..first.len()].copy_from_slice(&first);
        }
    }
    row[mark] = '▾';
    let words: String = row.into_iter().collect();
    Line::from(vec![
        Span::raw(" ".repeat(LABEL_COLUMNS)),
        Span::styled(words, paint.style(Role::Dim)),
    ])
}

/// Shape and style of a cell: the height shows the confidence, a mark the state; colour only repeats both.
fn drawn(cell: HeatCell, paint: &Paint) -> (&'static str, Style) {
    let class = |p| paint.style(Role::from(Confidence::of(p)));
    match cell {
        HeatCell::Masked => (" ", paint.style(Role::Masked)),
        HeatCell::Provisional(None) => ("?", paint.style(Role::Provisional)),
        HeatCell::Provisional(Some(p)) => {
            let shade = (p.clamp(0.0, 1.0) * SHADES.len() as f32) as usize;
            // Bold, italic or underline would change the shape of a bar.
            let style = class(Some(p)).remove_modifier(Modifier::all());
            (SHADES[shade.min(SHADES.len() - 1)], style)
        }
        HeatCell::Fresh(p) => {
            let mark = match Confidence::of(p) {
                Confidence::High => "●",
                Confidence::Medium => "◐",
                Confidence::Low => "○",
            };
            (mark, class(p).remove_modifier(Modifier::UNDERLINED))
        }
        HeatCell::Edited(_) => (
            EDITED_MARK,
            paint
                .style(Role::Edited)
                .remove_modifier(Modifier::REVERSED),
        ),
        HeatCell::Committed => ("─", paint.style(Role::Dim)),
        HeatCell::Pinned => (
            "═",
            paint
                .style(Role::Pinned)
                .remove_modifier(Modifier::UNDERLINED),
        ),
    }
}

fn legend(has_edits: bool, columns: usize, paint: &Paint) -> Line<'static> {
    let edited = (EDITED_MARK, HeatCell::Edited(None), " edited  ");
    let entries = [
        ("▁", HeatCell::Provisional(Some(0.1)), " to "),
        ("█", HeatCell::Provisional(Some(0.9)), " guess  "),
        ("●", HeatCell::Fresh(Some(0.9)), " new  "),
    ];
    let others = [
        ("◐", HeatCell::Fresh(Some(0.5)), " <0.7  "),
        ("○", HeatCell::Fresh(Some(0.1)), " <0.3  "),
        ("─", HeatCell::Committed, " committed  "),
        ("═", HeatCell::Pinned, " pinned"),
    ];
    let mut spans = Vec::new();
    let mut used = 0;
    let edited = has_edits.then_some(edited);
    for (glyph, cell, words) in entries.into_iter().chain(edited).chain(others) {
        let wide = width(glyph) + width(words);
        if used + wide > columns {
            break;
        }
        used += wide;
        spans.push(Span::styled(glyph, drawn(cell, paint).1));
        spans.push(Span::raw(words));
    }
    Line::from(spans)
}
