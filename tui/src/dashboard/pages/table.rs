//! Tables, whose least important columns are left out on narrow screens.

use ratatui::{
    layout::Rect,
    style::Style,
    text::{Line, Span},
};

use super::super::{hit_areas::HitTarget, panels::bar_parts, screen::Screen};
use crate::{
    paint::Role,
    text::{clip, sanitise_line, width},
};

/// A column of a table.
pub(super) struct Column {
    /// The heading.
    pub(super) heading: &'static str,
    /// The width in columns of the terminal.
    pub(super) columns: usize,
    /// Columns with the greatest number are left out first.
    pub(super) rank: u8,
}

/// Makes a column of its heading, width and order of leaving.
pub(super) const fn column(heading: &'static str, columns: usize, rank: u8) -> Column {
    Column {
        heading,
        columns,
        rank,
    }
}

/// The cell of a row in a column.
#[derive(Debug, Clone, Default)]
pub(super) struct Cell {
    text: String,
    role: Option<Role>,
    /// Whether it extends over all columns to its right.
    spans: bool,
}

impl Cell {
    /// A cell in a role's style.
    pub(super) fn styled(text: impl Into<String>, role: Role) -> Self {
        Self {
            text: text.into(),
            role: Some(role),
            spans: false,
        }
    }

    /// The same for the last cell of a row, which extends over all columns to its right.
    pub(super) fn spanning(text: impl Into<String>, role: Role) -> Self {
        Self {
            spans: true,
            ..Self::styled(text, role)
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            role: None,
            spans: false,
        }
    }
}

/// A table with its selection.
pub(super) struct Table<'a> {
    /// Its columns; the first one gets the width that is left over.
    pub(super) columns: &'a [Column],
    /// Largest width of the first column.
    pub(super) widest: usize,
    /// Its rows; each has at most one cell for each column.
    pub(super) rows: Vec<Vec<Cell>>,
    /// Index of the selected row.
    pub(super) selected: Option<usize>,
    /// Whether the table has the keyboard.
    pub(super) is_focused: bool,
    /// Makes the mouse target of a row of its index.
    pub(super) target: fn(usize) -> HitTarget,
}

/// Width of the mark before a row.
const MARK_COLUMNS: usize = 2;

impl Table<'_> {
    /// Draws the table, scrolled so that the selection is visible.
    pub(super) fn draw(&self, screen: &mut Screen<'_, '_>, area: Rect) {
        let shown = fit(self.columns, self.widest, usize::from(area.width));
        let headings = shown.iter().map(|(at, columns)| {
            let heading = Cell::from(self.columns[*at].heading);
            Span::raw(padded(&heading, *columns))
        });
        let mut spans = vec![Span::raw(" ".repeat(MARK_COLUMNS))];
        spans.extend(headings);
        let heading = Line::from(spans).style(screen.style(Role::Dim));
        let place = Rect::new(area.x, area.y, area.width, area.height.min(1));
        screen.frame.render_widget(heading, place);
        let rows = usize::from(area.height.saturating_sub(1));
        let first = self.selected.unwrap_or(0).saturating_sub(rows.max(1) - 1);
        let visible = self.rows.iter().enumerate().skip(first).take(rows);
        for ((index, row), y) in visible.zip(area.y + 1..) {
            let place = Rect::new(area.x, y, area.width, 1);
            let line = self.row(screen, index, row, &shown);
            screen.frame.render_widget(line, place);
            screen.hit_area(place, (self.target)(index));
        }
    }

    fn row(
        &self,
        screen: &Screen<'_, '_>,
        index: usize,
        row: &[Cell],
        shown: &[(usize, usize)],
    ) -> Line<'static> {
        let is_selected = self.selected == Some(index);
        let (mark, style) = match (is_selected, self.is_focused) {
            (true, true) => ("▸ ", screen.style(Role::Selected)),
            (true, false) => ("▸ ", screen.style(Role::Title)),
            (false, _) => ("  ", Style::new()),
        };
        let mut spans = vec![Span::raw(mark)];
        for (place, (at, columns)) in shown.iter().enumerate() {
            let cell = row.get(*at).cloned().unwrap_or_default();
            // The selected row has one style from end to end; styles of its cells would break it up.
            let role = cell.role.filter(|_| !is_selected);
            let style = role.map_or(Style::new(), |role| screen.style(role));
            if cell.spans {
                let room = shown[place..].iter().map(|(_, columns)| columns + 1);
                spans.push(Span::styled(padded(&cell, room.sum::<usize>() - 1), style));
                break;
            }
            spans.push(Span::styled(padded(&cell, *columns), style));
        }
        Line::from(spans).style(style)
    }
}

/// A cell's text, cut or padded to a width, and a space.
fn padded(cell: &Cell, columns: usize) -> String {
    let mut words = clip(&sanitise_line(&cell.text), columns);
    words += &" ".repeat(columns + 1 - width(&words).min(columns));
    words
}

/// The columns that fit, with their widths.
fn fit(columns: &[Column], widest: usize, room: usize) -> Vec<(usize, usize)> {
    let mut ranked: Vec<usize> = (0..columns.len()).collect();
    ranked.sort_by_key(|at| columns[*at].rank);
    let mut left = room.saturating_sub(MARK_COLUMNS);
    let mut shown = Vec::new();
    for at in ranked {
        // The last column has no space behind it.
        let needed = columns[at].columns + usize::from(!shown.is_empty());
        if needed > left {
            break;
        }
        left -= needed;
        shown.push((at, columns[at].columns));
    }
    shown.sort_unstable();
    if let Some((0, first)) = shown.first_mut() {
        *first = (*first + left).min(widest.max(*first));
    }
    shown
}

/// A bar of `columns` whose parts differ by shape.
pub(super) fn bar(share: f64, columns: usize) -> String {
    bar_parts(share, columns).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        column("NAME", 6, 0),
        column("DETAIL", 8, 2),
        column("SIZE", 4, 1),
    ];

    #[test]
    fn what_matters_least_goes_first_and_the_first_column_has_the_rest() {
        assert_eq!(fit(&COLUMNS, 99, 30), [(0, 14), (1, 8), (2, 4)]);
        assert_eq!(fit(&COLUMNS, 9, 30), [(0, 9), (1, 8), (2, 4)]);
        assert_eq!(fit(&COLUMNS, 99, 22), [(0, 6), (1, 8), (2, 4)]);
        assert_eq!(fit(&COLUMNS, 99, 20), [(0, 13), (2, 4)]);
        assert_eq!(fit(&COLUMNS, 99, 9), [(0, 7)]);
        assert_eq!(fit(&COLUMNS, 99, 4), []);
    }

    #[test]
    fn a_bar_has_one_width() {
        for share in [0.0, 0.3, 1.0, 7.0, f64::NAN] {
            assert_eq!(bar(share, 10).chars().count(), 10, "{share}");
        }
    }
}
