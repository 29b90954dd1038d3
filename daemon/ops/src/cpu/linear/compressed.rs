//! Weights that are decompressed into a thread's scratch, and multiplied from there.

use std::{ops::Range, time::Instant};

use sluice_formats::{Format, interleaved::ROWS};
use sluice_weights::{InterleavedRows, OpenRows, Weight, WeightData};

use super::{PackedRows, Tile};
use crate::{
    Activation,
    clock::PhaseClock,
    cpu::{
        factors::{Factors, round_to_bf16},
        interleaved::Interleaved,
        microkernel::MatrixRows,
    },
};

/// A matmul returns no error, so damage has to be found when the bytes are read.
const CHECKED: &str = "compressed bytes are checked when they are read";

impl Tile<'_> {
    /// Multiplies all rows of the tile by weights that are decompressed in whole rows: some of them at a time, which come to
    /// lie as resident weights do, and are multiplied like those.
    pub(super) fn gemm_compressed(
        &mut self,
        weight: &Weight<'_>,
        x: &Activation,
        clock: &PhaseClock,
    ) {
        // As it was before compression, where kernels are made for that: half as many bytes are written and read again.
        let format = match weight.format {
            Format::Bf16 => Format::Bf16,
            _ => Format::F32,
        };
        let row_bytes = format.bytes(weight.width);
        // Taken out, since methods below borrow all of `self`.
        let decompressed = std::mem::take(&mut self.decompressed);
        let scratch: &mut [u8] = bytemuck::cast_slice_mut(decompressed);
        // 16 rows go through another place on their way, which the widest leave too little space beside: many rows of `x` are
        // packed again for each part of the weights.
        let is_beside = Interleaved::of(self.instructions).is_some_and(|kernels| {
            let least = match self.out.rows.len() <= kernels.few_for_elements {
                true => 2 * ROWS,
                false => 4 * ROWS,
            };
            format.interleaves(weight.width) && least * row_bytes <= scratch.len()
        });
        let staged = if is_beside { ROWS * row_bytes } else { 0 };
        let (stage, space) = scratch.split_at_mut(staged);
        // `SCRATCH_LEN` leaves room for some rows of the widest projection, so at least one row fits.
        let fitting = space.len() / row_bytes;
        // Whole panels, if at least one fits: a partly filled panel costs as much as a full one.
        let together = match fitting < self.kernel.columns {
            true => ROWS.min(fitting),
            false => self.kernel.columns,
        };
        let fitting = fitting - fitting % together;
        for (first, open) in weight.chunks() {
            for from in open.local.clone().step_by(fitting) {
                let rows = from..open.local.end.min(from + fitting);
                let values = &mut space[..rows.len() * row_bytes];
                let begun = Instant::now();
                let data = match is_beside {
                    true => {
                        self.decompress_beside(&open, format, rows.clone(), stage, values);
                        WeightData::Interleaved(InterleavedRows {
                            bytes: values,
                            first_row: 0,
                        })
                    }
                    false => {
                        decompress(&open, format, rows.clone(), values);
                        WeightData::Host(values)
                    }
                };
                clock.add_decompressed(begun.elapsed());
                let part = Weight {
                    format,
                    rows: rows.len(),
                    data,
                    ..*weight
                };
                self.gemm_dequantized(&part, first + from - open.local.start, x);
            }
        }
        self.decompressed = decompressed;
    }

    /// Decompresses rows of a chunk, 16 at a time to `stage`, from where they are put beside each other; a rest of fewer stays
    /// row after row.
    fn decompress_beside(
        &self,
        open: &OpenRows<'_>,
        format: Format,
        rows: Range<usize>,
        stage: &mut [u8],
        out: &mut [u8],
    ) {
        let words = stage.len() / (ROWS * size_of::<f32>());
        let mut groups = out.chunks_exact_mut(stage.len());
        let mut first = rows.start;
        for group in &mut groups {
            decompress(open, format, first..first + ROWS, stage);
            let rows = MatrixRows::new(bytemuck::cast_slice(stage), words, ROWS, words);
            // Words of bf16 are pairs.
            (self.kernel).transpose(rows, bytemuck::cast_slice_mut(group), ROWS, 0);
            first += ROWS;
        }
        decompress(open, format, first..rows.end, groups.into_remainder());
    }

    /// Multiplies packed rows by weights that are decompressed by columns: as many columns as a block of the depth has at a
    /// time, which lie as panels need them. The depth is cut where it is for all weights, so sums are the same.
    pub(super) fn gemm_columns(
        &mut self,
        weight: &Weight<'_>,
        x: &PackedRows<'_>,
        clock: &PhaseClock,
    ) {
        let _begun = self.factors.begin(&x.panels);
        // Taken out, since methods below borrow all of `self`.
        let decoded = std::mem::take(&mut self.decompressed);
        for (first, open) in weight.chunks() {
            let outputs = open.matrix.layout().rows();
            for block in x.blocks() {
                let depth = block.part.len();
                let values = &mut decoded[..depth * outputs];
                let begun = Instant::now();
                let columns = open
                    .matrix
                    .decompress_columns_f32(block.part.clone(), values);
                columns.expect(CHECKED);
                clock.add_decompressed(begun.elapsed());
                let inputs = MatrixRows::new(values, outputs, depth, outputs);
                for output in open.local.clone().step_by(self.kernel.columns) {
                    let count = self.kernel.columns.min(open.local.end - output);
                    let place = first + output - open.local.start;
                    if let Factors::Pairs(kernel) = self.factors {
                        self.gemm_input_pairs(kernel, inputs, output, place, count, &block);
                        continue;
                    }
                    let panel = &mut self.panel[..self.kernel.columns * depth];
                    self.kernel.pack_inputs(inputs, output, panel);
                    if matches!(self.factors, Factors::Rounded) {
                        round_to_bf16(self.instructions, panel);
                    }
                    self.multiply_panel(&block, place, count);
                }
            }
        }
        self.decompressed = decoded;
    }
}

/// Decompresses rows of a chunk to this format, row after row.
fn decompress(open: &OpenRows<'_>, format: Format, rows: Range<usize>, out: &mut [u8]) {
    let done = match format {
        Format::Bf16 => open.matrix.decompress_rows(rows, out),
        _ => (open.matrix).decompress_rows_f32(rows, bytemuck::cast_slice_mut(out)),
    };
    done.expect(CHECKED);
}
