//! Dot products with weights that are decompressed by columns.

use sluice_codec::DecompressError;
use sluice_formats::{LANES, add_scaled};

use crate::OpenRows;

/// Columns that are decompressed at a time: six tiles, as many as are decoded in turn. They stay in the first-level
/// cache.
const COLUMNS: usize = 48;
/// Rows of a chunk at most.
const ROWS_MAX: usize = sluice_codec::layout::COLUMN_ROWS_MAX;

/// Dot products of a row of input with rows of a chunk. Each row has [`LANES`] partial sums, of which input `j` adds to
/// the one of `j % LANES`, in order: the same additions as for weights that are stored row after row, so the same bits.
pub(crate) fn dot(open: &OpenRows<'_>, x: &[f32], out: &mut [f32]) -> Result<(), DecompressError> {
    let rows = open.matrix.layout().rows();
    // On the stack, 80 KiB: the matmul of a single row allocates nothing.
    let mut values = [0.0; COLUMNS * ROWS_MAX];
    let mut sums = [[0.0; ROWS_MAX]; LANES];
    for first in (0..x.len()).step_by(COLUMNS) {
        let columns = first..x.len().min(first + COLUMNS);
        let values = &mut values[..columns.len() * rows];
        open.matrix
            .decompress_columns_f32(columns.clone(), values)?;
        for (column, values) in columns.zip(values.chunks(rows)) {
            let values = &values[open.local.clone()];
            add_scaled(values, x[column], &mut sums[column % LANES][..values.len()]);
        }
    }
    for (row, out) in out.iter_mut().enumerate() {
        let lanes: [f32; LANES] = std::array::from_fn(|lane| sums[lane][row]);
        *out = lanes.iter().sum();
    }
    Ok(())
}
