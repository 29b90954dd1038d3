//! Matmuls in integers, for formats whose weights are bytes in groups: rows of `x` are rounded to 8 bits in groups of
//! 32, as llama.cpp rounds them, and sums within a group are exact. Weights stay bytes in a thread's scratch, so that
//! little is written and read there, and an instruction multiplies four times as many as of `f32`. Rows are rounded
//! alike whatever their number, so that a row depends on those beside it by the order of sums alone.

use std::ops::Range;

use sluice_formats::{QuantGroups, interleaved::ROWS as ROWS_BESIDE};
use sluice_machine::Instructions;
use sluice_weights::{PIECE, Weight, WeightData};

use super::{
    byte_kernel::{BYTES, ByteKernel, RoundedPanels, kernel_for},
    interleaved::{Interleaved, PanelLanes, RoundedRows, rows_of_panel},
    microkernel::{COLUMNS_MAX, LINE, MatrixRows, QUANTS_DEPTH as DEPTH, RowPanels, TileOutput},
    packed::PackedRows,
};

/// Words of a panel's bytes, and below of its scales and minima for the smallest groups.
const PANEL_LEN: usize = COLUMNS_MAX * DEPTH / BYTES;
const SCALES_LEN: usize = 2 * COLUMNS_MAX * DEPTH / GROUP_MIN;
const GROUP_MIN: usize = 16;

/// The integer matmul of one format.
pub(super) struct QuantizedGemm {
    kernel: &'static ByteKernel,
    groups: QuantGroups,
    interleaved: Option<&'static Interleaved>,
}

impl QuantizedGemm {
    /// That of the weight's format, if these instructions have one.
    pub(super) fn of(instructions: Instructions, weight: &Weight<'_>) -> Option<Self> {
        let (kernel, groups) = kernel_for(instructions, weight.format)?;
        let is_plain = matches!(
            weight.data,
            WeightData::Host(_) | WeightData::Interleaved(_)
        );
        is_plain.then_some(Self {
            kernel,
            groups,
            interleaved: Interleaved::of(instructions),
        })
    }

    /// How it takes rows of `x`.
    pub(super) fn rounded_panels(&self) -> RoundedPanels {
        RoundedPanels::new(self.kernel, self.groups)
    }

    /// Multiplies packed rows by some rows of weights. The output begins at the first of these rows, and with the weight's
    /// first one.
    ///
    /// # Safety
    /// The output's columns of these rows are nobody else's.
    pub(super) unsafe fn gemm(
        &self,
        x: &PackedRows<'_>,
        weight: &Weight<'_>,
        tile: Range<usize>,
        out: TileOutput,
        scratch: &mut [f32],
    ) {
        let buffers = &mut Buffers::new(scratch);
        let tile_columns = self.kernel.columns;
        let kernels = (self.kernel.tiles)(self.groups);
        // Weights outside, rows inside: a panel's bytes are unpacked once and stay in L1 while all packed rows go past.
        for column in tile.clone().step_by(tile_columns) {
            let columns = tile_columns.min(tile.end - column);
            let weight = weight.rows(column, column + columns);
            for block in x.blocks() {
                let (from, depth) = (block.part.start, block.part.len());
                let groups = depth / self.groups.len;
                let source = Source {
                    weight: &weight,
                    from,
                    depth,
                };
                self.pack_weights(&source, buffers);
                let panel = &buffers.panel[..tile_columns * depth / BYTES];
                let scales = &buffers.scales[..2 * tile_columns * groups];
                let out = TileOutput {
                    columns,
                    adds: out.adds || from > 0,
                    ..out.at_column(column)
                };
                for ((row, count), x) in block.each_panel() {
                    let (numbers, x) = x.split_at(2 * self.kernel.lanes * groups);
                    let x = &x[..self.kernel.lanes * self.rounded_panels().row_words(depth)];
                    // SAFETY: `of` made sure of the instructions; these are some of the caller's rows and columns.
                    unsafe { kernels[count - 1](x, numbers, panel, scales, out.at_row(row)) };
                }
            }
        }
    }

    /// What [`QuantizedGemm::gemm_few`] multiplies so many rows by this weight with, if it can.
    pub(super) fn few(&self, rows: usize, weight: &Weight<'_>) -> Option<&'static Interleaved> {
        let is_beside = weight.side_by_side(0).is_some();
        (self.interleaved)
            .filter(|kernels| (1..=kernels.few_for_quants).contains(&rows) && is_beside)
    }

    /// [`QuantizedGemm::gemm`] for few rows and weights whose rows lie beside each other; returns the weight rows at the end
    /// that don't.
    ///
    /// # Safety
    /// As [`QuantizedGemm::gemm`].
    pub(super) unsafe fn gemm_few(
        &self,
        kernels: &Interleaved,
        x: &[f32],
        weight: &Weight<'_>,
        out: TileOutput,
        tiles: &mut dyn FnMut() -> Option<Range<usize>>,
        scratch: &mut [f32],
    ) -> Option<Range<usize>> {
        let mut tile = tiles()?;
        let (words, scratch) = scratch.split_at_mut(x.len() / BYTES);
        let numbers = &mut scratch[..2 * x.len() / self.groups.len];
        // As one row: groups don't straddle rows.
        // SAFETY: `of` made sure of the instructions.
        unsafe {
            let bytes = bytemuck::cast_slice_mut(words);
            (self.kernel.round)(x, bytes, numbers, 0, 1, self.groups.len);
        }
        let kernels = (kernels.quants)(weight.format).multiply;
        let panels = RowPanels::new(0..x.len() / weight.width, kernels.len());
        let (row_words, row_numbers) = (weight.width / BYTES, 2 * weight.width / self.groups.len);
        loop {
            while !tile.is_empty()
                && let Some(bytes) = weight.side_by_side(tile.start)
            {
                for (row, count) in panels.iter() {
                    let rows = RoundedRows {
                        words: &words[row * row_words..][..count * row_words],
                        numbers: &numbers[row * row_numbers..][..count * row_numbers],
                    };
                    let out = out.at_column(tile.start).at_row(row);
                    // SAFETY: `of` made sure of the instructions; the caller vouches for the output.
                    unsafe { kernels[count - 1](rows, bytes, out) };
                }
                tile.start += ROWS_BESIDE;
            }
            // Only the last rows of a weight lie one after another.
            if !tile.is_empty() {
                return Some(tile);
            }
            tile = tiles()?;
        }
    }

    /// Unpacks the weights' bytes and packs them with their scales and minima.
    fn pack_weights(&self, source: &Source<'_>, buffers: &mut Buffers<'_>) {
        let Buffers {
            panel,
            scales,
            loose,
            loose_scales,
        } = buffers;
        let columns = self.kernel.columns;
        let panel = &mut panel[..columns * source.depth / BYTES];
        let scales = &mut scales[..2 * columns * source.depth / self.groups.len];
        for (lane, rows) in rows_of_panel(source.weight) {
            match (self.interleaved, source.weight.side_by_side(lane)) {
                (Some(kernels), Some(bytes)) => {
                    self.unpack(kernels, source, bytes, lane, panel, scales);
                }
                _ => {
                    let source = Source {
                        weight: &source.weight.rows(lane, lane + rows),
                        ..*source
                    };
                    self.transpose(&source, lane, loose, loose_scales, panel, scales);
                }
            }
        }
    }

    /// Unpacks 16 rows that lie beside each other, to the panel's lanes from `lane` on.
    fn unpack(
        &self,
        kernels: &Interleaved,
        source: &Source<'_>,
        bytes: &[u8],
        lane: usize,
        panel: &mut [f32],
        scales: &mut [f32],
    ) {
        let format = source.weight.format;
        let part = format.bytes(source.from)..format.bytes(source.from + source.depth);
        let (scales, minima) = scales.split_at_mut(scales.len() / 2);
        let panel = PanelLanes {
            words: &mut panel[lane..],
            scales: &mut scales[lane..],
            minima: &mut minima[lane..],
            step: self.kernel.columns,
        };
        let bytes = &bytes[ROWS_BESIDE * part.start..ROWS_BESIDE * part.end];
        // SAFETY: `of` made sure of the instructions.
        unsafe { ((kernels.quants)(format).unpack)(bytes, panel) };
    }

    /// Unpacks rows that lie one after another, and transposes them into lanes of the panel.
    fn transpose(
        &self,
        source: &Source<'_>,
        lane: usize,
        loose: &mut [f32],
        loose_scales: &mut [f32],
        panel: &mut [f32],
        scales: &mut [f32],
    ) {
        let (weight, depth) = (source.weight, source.depth);
        let (format, groups, words) = (weight.format, depth / self.groups.len, depth / BYTES);
        let mut buffer = [0; PIECE];
        for row in 0..weight.rows {
            let bytes = weight.stored(row, source.from..source.from + depth, &mut buffer);
            let out = bytemuck::cast_slice_mut(&mut loose[row * words..][..words]);
            let both = &mut loose_scales[row * 2 * groups..][..2 * groups];
            let (scales, minima) = both.split_at_mut(groups);
            // Formats store 4 to 6 bits in orders of their own; as plain bytes all of them go through one kernel.
            format.quants(bytes, out, scales, minima);
        }
        let (kernel, columns) = (self.kernel.words, self.kernel.columns);
        let bytes = MatrixRows::new(loose, words, weight.rows, words);
        kernel.transpose(bytes, &mut panel[lane..], columns, lane);
        // Scales and minima of a row lie next to each other, so one transposition serves both: all scales come first,
        // then the minima.
        let both = MatrixRows::new(loose_scales, 2 * groups, weight.rows, 2 * groups);
        kernel.transpose(both, &mut scales[lane..], columns, lane);
    }
}

/// What a panel of weights goes through.
struct Buffers<'a> {
    /// Bytes of a panel, and the scales and minima of its groups.
    panel: &'a mut [f32],
    scales: &'a mut [f32],
    /// The same row after row.
    loose: &'a mut [f32],
    loose_scales: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    fn new(scratch: &'a mut [f32]) -> Self {
        let line = scratch.as_ptr().align_offset(LINE * size_of::<f32>());
        let scratch = &mut scratch[line..];
        let (panel, scratch) = scratch.split_at_mut(PANEL_LEN);
        let (scales, scratch) = scratch.split_at_mut(SCALES_LEN);
        let (loose, scratch) = scratch.split_at_mut(PANEL_LEN);
        Self {
            panel,
            scales,
            loose,
            loose_scales: &mut scratch[..SCALES_LEN],
        }
    }
}

/// A part of the depth of a panel's weights.
struct Source<'a> {
    weight: &'a Weight<'a>,
    from: usize,
    depth: usize,
}

#[cfg(test)]
mod tests;
