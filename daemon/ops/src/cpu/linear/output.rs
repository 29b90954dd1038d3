//! The output of a matmul, which threads write at once.

use std::ops::Range;

use crate::cpu::microkernel::TileOutput;

/// The output matrix, of which each tile gets a part of its own.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) start: *mut f32,
    /// Elements from the beginning of a row to that of the next.
    pub(super) stride: usize,
    /// Elements in a row.
    pub(super) columns: usize,
    pub(super) rows: usize,
    /// Whether to add to what the output holds.
    pub(super) adds: bool,
}

// SAFETY: only its tiles are written through, and whoever takes one vouches for its being disjoint from the others.
unsafe impl Sync for Columns {}

impl Columns {
    /// # Safety
    /// The matrix lives as long as the tile, and meanwhile nobody else reads or writes these columns of these rows.
    ///
    /// # Panics
    /// When they lie outside of the matrix.
    pub(super) unsafe fn tile(&self, rows: Range<usize>, columns: Range<usize>) -> OutputTile<'_> {
        assert!(rows.end <= self.rows && columns.end <= self.columns);
        OutputTile {
            matrix: self,
            rows,
            columns,
        }
    }
}

/// Columns of rows in the output matrix that nobody else reads or writes.
pub(super) struct OutputTile<'a> {
    matrix: &'a Columns,
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

impl OutputTile<'_> {
    /// Some of its rows, and of their columns `count` from `column` on.
    ///
    /// # Panics
    /// When they lie outside of the tile.
    pub(super) fn part(&self, rows: &Range<usize>, column: usize, count: usize) -> TileOutput {
        assert!(self.rows.start <= rows.start && rows.end <= self.rows.end);
        assert!(column + count <= self.columns.len());
        let Columns { start, stride, .. } = *self.matrix;
        TileOutput {
            // A raw pointer, since tiles of the same rows interleave in memory: no slice covers just this tile's part.
            start: start.wrapping_add(rows.start * stride + self.columns.start + column),
            stride,
            columns: count,
            adds: self.matrix.adds,
        }
    }
}
