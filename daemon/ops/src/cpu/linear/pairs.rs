//! Products of bf16: which weights are multiplied so, and how their panels are read by a CPU that multiplies pairs.

use std::ops::Range;

use sluice_formats::{Format, interleaved::ROWS};
use sluice_weights::{PIECE, Weight};

use super::{PackedBlock, Tile};
use crate::cpu::{
    interleaved::Interleaved,
    microkernel::{
        DEPTH, MatrixRows,
        pairs::{PairKernel, PairLanes, pairs},
    },
};

impl Tile<'_> {
    /// Multiplies packed rows by a panel of weights.
    pub(super) fn gemm_pairs(
        &mut self,
        kernel: &dyn PairKernel,
        weight: &Weight<'_>,
        column: usize,
        x: &PackedBlock<'_>,
    ) {
        let part = &x.part;
        // Taken out, since methods below borrow all of `self`.
        let panel = std::mem::take(&mut self.panel);
        let (first, second) = panel.split_at_mut(ROWS * pairs(DEPTH));
        let middle = ROWS.min(weight.rows);
        let low = self.pair_weights(kernel, &weight.rows(0, middle), part, first);
        let high = match weight.rows > ROWS {
            true => self.pair_weights(kernel, &weight.rows(ROWS, weight.rows), part, second),
            // Multiplied, and not stored.
            false => low,
        };
        self.multiply_pairs(kernel, x, column, weight.rows, [low, high]);
        self.panel = panel;
    }

    /// The same for weights that come input by input, of which the outputs are those from `output` on.
    pub(super) fn gemm_input_pairs(
        &mut self,
        kernel: &dyn PairKernel,
        inputs: MatrixRows<'_>,
        output: usize,
        column: usize,
        count: usize,
        x: &PackedBlock<'_>,
    ) {
        let words = ROWS * pairs(x.part.len());
        // Taken out, since the method below borrows all of `self`.
        let panel = std::mem::take(&mut self.panel);
        let (low, high) = panel[..2 * words].split_at_mut(words);
        // SAFETY: `pair_kernel` made sure of the instructions.
        unsafe {
            kernel.pair_inputs(inputs, output, low);
            if count > ROWS {
                kernel.pair_inputs(inputs, output + ROWS, high);
            }
        }
        self.multiply_pairs(kernel, x, column, count, [as_lanes(low), as_lanes(high)]);
        self.panel = panel;
    }

    /// Pairs of at most 16 rows of weights; bf16 that lie beside each other are read where they are.
    fn pair_weights<'b>(
        &mut self,
        kernel: &dyn PairKernel,
        weight: &Weight<'b>,
        part: &Range<usize>,
        panel: &'b mut [f32],
    ) -> &'b [PairLanes] {
        let panel = &mut panel[..ROWS * pairs(part.len())];
        let Some(bytes) = weight.side_by_side(0) else {
            self.pair_rows(kernel, weight, part, panel);
            return as_lanes(panel);
        };
        let stored = |elements: usize| ROWS * weight.format.bytes(elements);
        let bytes = &bytes[stored(part.start)..stored(part.end)];
        if weight.format == Format::Bf16 {
            return bytes.as_chunks().0;
        }
        let kernels = Interleaved::of(self.instructions).expect("weights lie so for kernels");
        // SAFETY: `Interleaved::of` and `pair_kernel` made sure of the instructions.
        unsafe {
            ((kernels.elements)(weight.format).dequantize)(bytes, self.dequantized, ROWS);
            let inputs = MatrixRows::new(self.dequantized, ROWS, part.len(), ROWS);
            kernel.pair_inputs(inputs, 0, panel);
        }
        as_lanes(panel)
    }

    /// Packs pairs of rows that lie one after another.
    fn pair_rows(
        &mut self,
        kernel: &dyn PairKernel,
        weight: &Weight<'_>,
        part: &Range<usize>,
        panel: &mut [f32],
    ) {
        let words = pairs(part.len());
        let (loose, values) = self.dequantized.split_at_mut(ROWS * pairs(DEPTH));
        let values = &mut values[..part.len()];
        for (row, loose) in loose.chunks_exact_mut(words).take(weight.rows).enumerate() {
            if weight.format == Format::Bf16 {
                let mut buffer = [0; PIECE];
                let stored = weight.stored(row, part.clone(), &mut buffer);
                // Zero is what the last pair may lack.
                loose[words - 1] = 0.0;
                bytemuck::cast_slice_mut(loose)[..stored.len()].copy_from_slice(stored);
            } else {
                weight.dequantize_row(row, part.start, values);
                // SAFETY: `pair_kernel` made sure of the instructions.
                unsafe { kernel.round(values, loose) };
            }
        }
        let rows = MatrixRows::new(loose, words, weight.rows, words);
        self.kernel.transpose(rows, panel, ROWS, 0);
    }

    /// Multiplies packed rows by pairs of weights, into `count` of the tile's columns from `column` on.
    fn multiply_pairs(
        &self,
        kernel: &dyn PairKernel,
        x: &PackedBlock<'_>,
        column: usize,
        count: usize,
        weights: [&[PairLanes]; 2],
    ) {
        let out = self.output(x, column, count);
        // SAFETY: `pair_kernel` made sure of the instructions, `gemm_columns` or `gemm_panels` began, and rows and columns are of
        // this tile alone.
        unsafe { kernel.gemm_panel(x.panels, x.words, weights, out) };
    }
}

/// Words of a packed panel.
fn as_lanes(panel: &[f32]) -> &[PairLanes] {
    bytemuck::cast_slice::<f32, u8>(panel).as_chunks().0
}
