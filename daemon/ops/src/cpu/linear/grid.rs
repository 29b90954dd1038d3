//! How a matmul is shared out among threads.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use sluice_codec::container::CHUNK_ROWS;
use sluice_weights::{Weight, WeightData};

use crate::cpu::microkernel::{Microkernel, RowPanels};

/// Tiles for each thread: few enough that a tile's fixed costs matter little, enough that no thread waits long for
/// another.
pub(super) const TILES: usize = 4;

/// Least rows of `x` of a tile, where they are shared out, too: each tile dequantizes its weights anew.
pub(super) const ROWS_MIN: usize = 64;

/// Tiles of a matmul, some of which threads have taken.
pub(super) struct Grid {
    panels: RowPanels,
    /// Parts that the rows of `x` are divided into.
    parts: usize,
    /// Rows of weights, and how many of them a tile has.
    columns: usize,
    tile_columns: usize,
    /// Weight rows of the first chunk that come before the first tile's, where tiles are whole chunks.
    before: usize,
    taken: AtomicUsize,
}

impl Grid {
    /// Of rows and a matrix, whose products are some of `all` elements that are computed at once.
    pub(super) fn new(
        panels: &RowPanels,
        weight: &Weight<'_>,
        all: usize,
        threads: usize,
        kernel: &Microkernel,
    ) -> Self {
        let rows = panels.rows().len();
        // As many weight rows as if these rows of `x` were multiplied by all of them.
        let all_columns = all.div_ceil(rows);
        // Weight rows are shared out first: each is then dequantized once in all. Whole panels of them: a partly filled one
        // takes as long as a full one.
        let several = all_columns.div_ceil(threads * TILES);
        let tile_columns = several.max(1).next_multiple_of(kernel.columns);
        // Whole chunks, where any rows take as long to decompress as all of a chunk's.
        let (tile_columns, before) = match weight.data {
            WeightData::Compressed(compressed) if weight.has_columns() => (
                tile_columns.next_multiple_of(CHUNK_ROWS),
                compressed.first_row % CHUNK_ROWS,
            ),
            _ => (tile_columns, 0),
        };
        let tiles = all_columns.div_ceil(tile_columns);
        // Where there are few weight rows, rows of `x` are shared out, too: not if decompression, which each part
        // repeats, is most of the work.
        let parts = match weight.data {
            WeightData::Compressed(_) => 1,
            _ => threads.div_ceil(tiles.max(1)).min(rows / ROWS_MIN).max(1),
        };
        Self {
            panels: panels.clone(),
            parts,
            columns: weight.rows,
            tile_columns,
            before,
            taken: AtomicUsize::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.parts * self.across()
    }

    /// Tiles that the weights' rows are divided into.
    fn across(&self) -> usize {
        match self.columns {
            0 => 0,
            columns => (self.before + columns).div_ceil(self.tile_columns),
        }
    }

    /// Panels of `x` and rows of weights of a tile.
    pub(super) fn tile(&self, number: usize) -> (RowPanels, Range<usize>) {
        let across = self.across();
        let column = number % across * self.tile_columns;
        let end = column + self.tile_columns - self.before;
        (
            self.panels.part(number / across, self.parts),
            column.saturating_sub(self.before)..self.columns.min(end),
        )
    }

    /// The next tile.
    pub(super) fn take(&self) -> Option<(RowPanels, Range<usize>)> {
        // Relaxed: only which thread takes which tile hangs on it.
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        (number < self.len()).then(|| self.tile(number))
    }
}
