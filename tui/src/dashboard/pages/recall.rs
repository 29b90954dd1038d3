//! Pieces of what the daemon remembers, above the text of the selected one.

use ratatui::{layout::Rect, text::Line};

use super::super::{screen::Screen, state::DashboardState};
use crate::{
    canvas::wrap_text,
    paint::Role,
    text::{clip, sanitise, sanitise_line},
};

/// Width of the overlay with its frame.
const COLUMNS: u16 = 110;
/// Rows of the overlay with its frame.
const ROWS: u16 = 40;

/// The selected piece's text as lines, on the screen that there is.
pub(in super::super) fn text_lines(state: &DashboardState) -> Vec<String> {
    let columns = usize::from(COLUMNS.min(state.size.0).saturating_sub(2));
    let text = sanitise(state.recall.text());
    text.lines()
        .flat_map(|line| match line.is_empty() {
            true => vec![String::new()],
            false => wrap_text(line, columns),
        })
        .collect()
}

pub(in super::super) fn draw(screen: &mut Screen<'_, '_>) {
    let state = screen.state;
    let recall = &state.recall;
    let title = clip(
        &sanitise_line(&recall.title),
        usize::from(screen.frame.area().width.min(COLUMNS).saturating_sub(6)),
    );
    let inner = screen.popup(COLUMNS, ROWS, &title);
    let columns = usize::from(inner.width);
    if recall.pieces.is_empty() {
        screen.lines(inner, vec![Line::raw("nothing was found")]);
        return;
    }
    // At most a third is the list, so that there is room for the text.
    let rows = (usize::from(inner.height) / 3).clamp(1, recall.pieces.len());
    let first = (recall.selected + 1).saturating_sub(rows);
    let shown = recall.pieces.iter().enumerate().skip(first).take(rows);
    let mut lines: Vec<_> = shown
        .map(|(index, piece)| {
            let (mark, role) = match index == recall.selected {
                true => ('▸', Role::Selected),
                false => (' ', Role::Committed),
            };
            let words = clip(&format!("{mark} {}", piece.line), columns);
            Line::styled(words, screen.style(role))
        })
        .collect();
    lines.push(Line::styled("─".repeat(columns), screen.style(Role::Dim)));
    screen.lines(inner, lines);
    let above = u16::try_from(rows + 1).unwrap_or(u16::MAX);
    let below = Rect {
        y: inner.y.saturating_add(above),
        height: inner.height.saturating_sub(above),
        ..inner
    };
    let text = text_lines(state).into_iter().skip(recall.scroll);
    screen.lines(below, text.map(Line::raw).collect());
}
