//! The matmul with a weight as it is, `x · weight`, through which gradients go back: outputs are the weight's inputs.

use rayon::prelude::*;
use sluice_weights::{Weight, WeightData};

use super::{Columns, DEQUANTIZED_LEN, Factors, Tile, grid::TILES};
use crate::{
    Activation,
    cpu::{
        CpuBackend,
        microkernel::{DEPTH, MatrixRows, Microkernel},
        packed::{PackedRows, Packing},
    },
};

/// Most columns of a tile: those of a block of the depth have room where weights are dequantized.
const COLUMNS_MAX: usize = DEQUANTIZED_LEN / DEPTH / 256 * 256;

impl CpuBackend {
    /// `x · weight` into `out`, or added to it.
    pub(crate) fn gemm_transposed(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: &mut [f32],
        adds: bool,
    ) {
        assert_eq!(x.width(), weight.rows);
        assert_eq!(out.len(), x.len() * weight.width);
        if x.is_empty() || weight.width == 0 {
            return;
        }
        let out = Columns {
            start: out.as_mut_ptr(),
            stride: weight.width,
            columns: weight.width,
            rows: x.len(),
            adds,
        };
        let instructions = self.instructions();
        let step = tile_columns(weight, self.device.threads(), Microkernel::of(instructions));
        // Fewer rows of the widest compressed weights, since those have room as a whole.
        let depth = DEPTH.min(DEQUANTIZED_LEN / step);
        let packing = Packing::elements(instructions, Factors::Unrounded).with_depth(depth);
        let multiply = |x: &PackedRows<'_>| {
            let tiles = (0..weight.width).into_par_iter().step_by(step);
            tiles.for_each(|from| {
                let columns = from..weight.width.min(from + step);
                // SAFETY: tiles have columns of their own.
                let own = unsafe { out.tile(x.panels.rows(), columns.clone()) };
                self.scratch.with(|scratch| {
                    let mut tile = Tile::new(instructions, Factors::Unrounded, own, scratch);
                    tile.gemm_transposed(weight, columns.start, x);
                });
            });
        };
        self.run(|| {
            self.scratch.with_packed(|buffer| {
                for piece in packing.pieces(0..x.len(), weight.rows, buffer.len()) {
                    let packed = self.pack(x, [&piece].into_iter(), buffer);
                    packed.iter().for_each(multiply);
                }
            });
        });
    }
}

/// Columns of a tile: whole panels, and whole blocks of the weight's format.
fn tile_columns(weight: &Weight<'_>, threads: usize, kernel: &Microkernel) -> usize {
    if let WeightData::Compressed(_) = weight.data {
        // Whole rows are decompressed, which each tile would repeat.
        return weight.width;
    }
    let block = kernel.columns.max(weight.format.block_len());
    let several = weight.width.div_ceil(threads * TILES);
    several.next_multiple_of(block).min(COLUMNS_MAX)
}

impl Tile<'_> {
    /// Multiplies packed rows by the tile's columns of these weights, the first of which is `first`.
    fn gemm_transposed(&mut self, weight: &Weight<'_>, first: usize, x: &PackedRows<'_>) {
        let width = self.out.columns.len();
        // Taken out, since methods below borrow all of `self`.
        let values = std::mem::take(&mut self.decompressed);
        for block in x.blocks() {
            let depth = block.part.len();
            let values = &mut values[..depth * width];
            let rows = weight.rows(block.part.start, block.part.end);
            match rows.data {
                WeightData::Compressed(_) => rows.dequantize(values),
                _ => {
                    for (row, out) in values.chunks_exact_mut(width).enumerate() {
                        rows.dequantize_row(row, first, out);
                    }
                }
            }
            let inputs = MatrixRows::new(values, width, depth, width);
            for column in (0..width).step_by(self.kernel.columns) {
                let panel = &mut self.panel[..self.kernel.columns * depth];
                self.kernel.pack_inputs(inputs, column, panel);
                let count = self.kernel.columns.min(width - column);
                self.multiply_panel(&block, column, count);
            }
        }
        self.decompressed = values;
    }
}
