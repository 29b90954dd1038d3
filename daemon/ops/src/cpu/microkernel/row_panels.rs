//! How rows are divided into panels.

use std::ops::Range;

/// Rows in panels of nearly equal size, or some of these panels: with 13 rows, tiles of 7 and 6 are faster than 12 and 1,
/// since each loads the whole panel of weights. Nobody has to store where panels begin.
#[derive(Debug, Clone)]
pub(in crate::cpu) struct RowPanels {
    /// Of all panels.
    rows: Range<usize>,
    all: usize,
    /// Those that are meant.
    panels: Range<usize>,
}

impl RowPanels {
    /// Panels of rows, at least one, with so many at most.
    pub(in crate::cpu) fn new(rows: Range<usize>, most: usize) -> Self {
        let all = rows.len().div_ceil(most);
        Self {
            rows,
            all,
            panels: 0..all,
        }
    }

    /// The number of panels.
    pub(in crate::cpu) fn len(&self) -> usize {
        self.panels.len()
    }

    /// Most rows that any of all panels has.
    pub(in crate::cpu) fn tallest(&self) -> usize {
        self.rows.len().div_ceil(self.all)
    }

    /// One of so many parts with nearly as many panels each.
    pub(in crate::cpu) fn part(&self, index: usize, parts: usize) -> Self {
        let begin = |part| self.panels.start + part * self.len() / parts;
        Self {
            panels: begin(index)..begin(index + 1),
            ..self.clone()
        }
    }

    /// Panels of `others` before the first of these.
    pub(in crate::cpu) fn behind(&self, others: &Self) -> usize {
        self.panels.start - others.panels.start
    }

    /// All their rows.
    pub(in crate::cpu) fn rows(&self) -> Range<usize> {
        self.begin(self.panels.start)..self.begin(self.panels.end)
    }

    /// Of each panel the first row, counted from the first of them all, and the number of rows.
    pub(in crate::cpu) fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        let first = self.begin(self.panels.start);
        self.panels.clone().map(move |panel| {
            let row = self.begin(panel);
            (row - first, self.begin(panel + 1) - row)
        })
    }

    fn begin(&self, panel: usize) -> usize {
        self.rows.start + panel * self.rows.len() / self.all
    }
}
