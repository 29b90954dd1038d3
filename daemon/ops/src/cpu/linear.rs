//! `linear`: one matmul for every format. Rows of weights are dequantized a small piece at a time into a thread's
//! scratch, packed there, and multiplied by all rows while they are in the nearest cache. All that differs between
//! formats is how a tile is dequantized.

mod compressed;
mod grid;
mod grouped;
mod jobs;
mod output;
mod pairs;
mod transposed;

use std::ops::Range;

use sluice_formats::{Format, interleaved::ROWS};
use sluice_machine::Instructions;
use sluice_weights::{Weight, WeightData};

use self::{
    grid::Grid,
    output::{Columns, OutputTile},
};
use super::{
    CpuBackend,
    factors::{Factors, round_to_bf16},
    interleaved::{Interleaved, beside, rows_of_panel},
    microkernel::{DEPTH, LINE, MatrixRows, Microkernel, RowPanels, TileOutput, prefetch},
    packed::{PackedBlock, PackedRows, Packing},
    scratch::SCRATCH_LEN,
};
use crate::Activation;

/// Elements of a panel of weights, before and after it is packed.
const PANEL_LEN: usize = 32 * DEPTH;

/// Words of rows of `x` that a thread packs for itself at a time, where they can't be packed once for all.
const OWN_PACKED_LEN: usize = 1 << 16;

/// Elements that compressed weights are decompressed to at a time, since only whole rows can be.
const DEQUANTIZED_LEN: usize = SCRATCH_LEN - OWN_PACKED_LEN - 2 * PANEL_LEN - LINE;

/// A matrix that rows of `x` are multiplied with, and where the products go.
pub(crate) struct Product<'a> {
    pub(crate) weight: Weight<'a>,
    /// The rows of the products, which begin `stride` elements apart.
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
    /// Whether they are added to what is there.
    pub(crate) adds: bool,
}

impl<'a> Product<'a> {
    /// `x · weightᵀ` into `out`, or added to it, row after row.
    pub(crate) fn new(weight: &Weight<'a>, out: &'a mut [f32], adds: bool) -> Self {
        Self {
            weight: *weight,
            out,
            stride: weight.rows,
            adds,
        }
    }

    /// The output, as far as these rows' products go.
    fn columns(self, x: &Activation) -> Columns {
        let Self {
            weight,
            out,
            stride,
            adds,
        } = self;
        assert_eq!(
            x.width(),
            weight.width,
            "the widths of rows and weights differ"
        );
        // Every row ends inside, and before the next begins.
        assert!(weight.rows <= stride && (x.len() - 1) * stride + weight.rows <= out.len());
        Columns {
            start: out.as_mut_ptr(),
            stride,
            columns: weight.rows,
            rows: x.len(),
            adds,
        }
    }
}

impl CpuBackend {
    /// `x · weightᵀ` into `out`, or added to it, row after row.
    pub(crate) fn gemm_one(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: &mut [f32],
        adds: bool,
    ) {
        self.gemm(x, [Product::new(weight, out, adds)]);
    }

    /// The same in `f32`, whatever the device rounds elsewhere.
    pub(crate) fn gemm_unrounded(&self, x: &Activation, weight: &Weight<'_>, out: &mut [f32]) {
        if x.is_empty() {
            return;
        }
        let out = Product::new(weight, out, false).columns(x);
        let job = self.job_of(0..x.len(), weight, out, Factors::Unrounded);
        self.work(x, &[job]);
    }

    /// Multiplies the rows of `x` by several matrices at once: threads are woken once for all of them, and none waits
    /// for another in between.
    pub(crate) fn gemm<const N: usize>(&self, x: &Activation, products: [Product<'_>; N]) {
        if x.is_empty() {
            return;
        }
        let jobs = products.map(|product| {
            let weight = product.weight;
            self.job(0..x.len(), &weight, product.columns(x))
        });
        self.work(x, &jobs);
    }
}

/// A part of the output, and the scratch that its weights go through.
struct Tile<'a> {
    instructions: Instructions,
    kernel: &'static Microkernel,
    factors: Factors,
    out: OutputTile<'a>,
    /// Rows of `x` that this thread packs for itself.
    packed: &'a mut [f32],
    /// A panel's weights as they are dequantized, and packed.
    dequantized: &'a mut [f32],
    panel: &'a mut [f32],
    /// Whole rows of decompressed weights.
    decompressed: &'a mut [f32],
}

impl<'a> Tile<'a> {
    fn new(
        instructions: Instructions,
        factors: Factors,
        out: OutputTile<'a>,
        scratch: &'a mut [f32],
    ) -> Self {
        let kernel = Microkernel::of(instructions);
        assert!(kernel.columns * DEPTH <= PANEL_LEN);
        let line = scratch.as_ptr().align_offset(LINE * size_of::<f32>());
        let (packed, scratch) = scratch[line..].split_at_mut(OWN_PACKED_LEN);
        let (panel, scratch) = scratch.split_at_mut(PANEL_LEN);
        let (widened, scratch) = scratch.split_at_mut(PANEL_LEN);
        Self {
            instructions,
            kernel,
            factors,
            out,
            packed,
            dequantized: widened,
            panel,
            decompressed: &mut scratch[..DEQUANTIZED_LEN],
        }
    }

    /// Multiplies all rows of the tile by weights that are not compressed, into its columns from `column` on, packing them as
    /// often as need be.
    fn gemm_dequantized(&mut self, weight: &Weight<'_>, column: usize, x: &Activation) {
        let done = self.gemm_few(weight, column, x);
        if done == weight.rows {
            return;
        }
        let (weight, column) = (&weight.rows(done, weight.rows), column + done);
        // Taken out, since methods below borrow all of `self`.
        let packed = std::mem::take(&mut self.packed);
        let packing = Packing::elements(self.instructions, self.factors);
        for piece in packing.pieces(self.out.rows.clone(), weight.width, packed.len()) {
            let x = piece.pack(x, packed, self.dequantized);
            self.gemm_panels(weight, column, &x);
        }
        self.packed = packed;
    }

    /// Multiplies packed rows by weights that are not compressed, into the tile's columns from `column` on.
    fn gemm_panels(&mut self, weight: &Weight<'_>, column: usize, x: &PackedRows<'_>) {
        let _begun = self.factors.begin(&x.panels);
        for first in (0..weight.rows).step_by(self.kernel.columns) {
            let last = weight.rows.min(first + self.kernel.columns);
            self.gemm_panel(&weight.rows(first, last), column + first, x);
        }
    }

    /// Multiplies few rows by those weights at the beginning whose rows lie beside each other, and returns how many weight
    /// rows those were.
    fn gemm_few(&mut self, weight: &Weight<'_>, column: usize, x: &Activation) -> usize {
        let (rows, width) = (&self.out.rows, weight.width);
        let Some(kernels) = few(self.instructions, self.factors, rows.len(), weight) else {
            return 0;
        };
        let mut x = &x.values()[rows.start * width..rows.end * width];
        if matches!(self.factors, Factors::Rounded) {
            let rounded = &mut self.packed[..x.len()];
            rounded.copy_from_slice(x);
            round_to_bf16(self.instructions, rounded);
            x = rounded;
        }
        let out = self.out.part(rows, column, weight.rows);
        let kernels = (kernels.elements)(weight.format).multiply;
        let panels = RowPanels::new(0..rows.len(), kernels.len());
        let mut done = 0;
        for bytes in beside(weight) {
            for (row, count) in panels.iter() {
                let x = &x[row * width..(row + count) * width];
                let out = out.at_column(done).at_row(row);
                // SAFETY: `Interleaved::of` made sure of the instructions; rows and columns are of this tile alone.
                unsafe { kernels[count - 1](x, bytes, out) };
            }
            done += ROWS;
        }
        done
    }

    /// Multiplies packed rows by a panel of weights.
    fn gemm_panel(&mut self, weight: &Weight<'_>, column: usize, x: &PackedRows<'_>) {
        // The panel stays the same while the depth goes by, so the same few rows of weights are read from front to
        // back.
        for block in x.blocks() {
            let part = &block.part;
            if let Factors::Pairs(kernel) = self.factors {
                prefetch_next(weight, part, x.span());
                self.gemm_pairs(kernel, weight, column, &block);
                continue;
            }
            if self.gemm_stored(weight, column, &block) {
                continue;
            }
            for (lane, rows) in rows_of_panel(weight) {
                match (
                    Interleaved::of(self.instructions),
                    weight.side_by_side(lane),
                ) {
                    (Some(kernels), Some(bytes)) => {
                        self.widen(kernels, weight.format, bytes, lane, part.clone());
                    }
                    _ => self.dequantize(
                        &weight.rows(lane, lane + rows),
                        lane,
                        part.start,
                        part.len(),
                    ),
                }
            }
            if matches!(self.factors, Factors::Rounded) && weight.format != Format::Bf16 {
                let panel = &mut self.panel[..self.kernel.columns * part.len()];
                round_to_bf16(self.instructions, panel);
            }
            prefetch_next(weight, part, x.span());
            self.multiply_panel(&block, column, weight.rows);
        }
    }

    /// Multiplies packed rows by a panel of weights where they lie, if they lie beside each other and all columns are there: they
    /// are unpacked by instructions that go beside those of the products.
    fn gemm_stored(&self, weight: &Weight<'_>, column: usize, x: &PackedBlock<'_>) -> bool {
        let rounds = matches!(self.factors, Factors::Rounded) && weight.format != Format::Bf16;
        let Some(kernels) = Interleaved::of(self.instructions).filter(|_| !rounds) else {
            return false;
        };
        let mut groups = beside(weight);
        let (Some(low), Some(high)) = (groups.next(), groups.next()) else {
            return false;
        };
        let tiles = (kernels.elements)(weight.format).tiles;
        if tiles.is_empty() {
            return false;
        }
        let stored = |elements: usize| ROWS * weight.format.bytes(elements);
        let groups = [low, high].map(|group| &group[stored(x.part.start)..stored(x.part.end)]);
        let out = self.output(x, column, weight.rows);
        for (first, count, x) in self.kernel.panels(x.panels, x.words, x.part.len()) {
            let (lanes, out) = (self.kernel.row_lanes, out.at_row(first));
            // SAFETY: `Interleaved::of` made sure of the instructions; rows and columns are of this tile alone.
            unsafe { tiles[count - 1](x, lanes, groups, out) };
        }
        true
    }

    /// Dequantizes a part of the depth of 16 rows that lie beside each other, to the panel's lanes from `lane` on.
    fn widen(
        &mut self,
        kernels: &Interleaved,
        format: Format,
        bytes: &[u8],
        lane: usize,
        part: Range<usize>,
    ) {
        let panel = &mut self.panel[lane..self.kernel.columns * part.len()];
        let bytes = &bytes[ROWS * format.bytes(part.start)..ROWS * format.bytes(part.end)];
        // SAFETY: `Interleaved::of` made sure of the instructions.
        unsafe { ((kernels.elements)(format).dequantize)(bytes, panel, self.kernel.columns) };
    }

    /// Dequantizes a part of the depth of rows that lie one after another, and packs it into lanes of the panel.
    fn dequantize(&mut self, weight: &Weight<'_>, lane: usize, from: usize, depth: usize) {
        let rows = self.dequantized.chunks_exact_mut(depth).take(weight.rows);
        for (row, out) in rows.enumerate() {
            weight.dequantize_row(row, from, out);
        }
        let weights = MatrixRows::new(self.dequantized, depth, weight.rows, depth);
        let panel = &mut self.panel[..self.kernel.columns * depth];
        self.kernel.pack_weights(weights, lane, panel);
    }

    /// Where products of packed rows go: `count` of the tile's columns from `column` on.
    fn output(&self, x: &PackedBlock<'_>, column: usize, count: usize) -> TileOutput {
        let mut out = self.out.part(&x.panels.rows(), column, count);
        // The first block of the depth overwrites: the output's memory is not cleared beforehand.
        out.adds |= x.part.start > 0;
        out
    }

    /// Multiplies packed rows by the packed panel, the weights of `count` outputs, which go to the tile's columns from
    /// `column` on.
    fn multiply_panel(&mut self, x: &PackedBlock<'_>, column: usize, count: usize) {
        let out = self.output(x, column, count);
        let panel = &self.panel[..self.kernel.columns * x.part.len()];
        // SAFETY: rows and columns are of this tile alone.
        unsafe { self.kernel.gemm_panel(x.panels, x.words, panel, out) };
    }
}

/// What [`Tile::gemm_few`] multiplies so many rows by this weight with, if it can.
fn few(
    instructions: Instructions,
    factors: Factors,
    rows: usize,
    weight: &Weight<'_>,
) -> Option<&'static Interleaved> {
    let kernels = Interleaved::of(instructions)?;
    let is_read = match factors {
        Factors::Unrounded => true,
        // Other weights are rounded in panels.
        Factors::Rounded => weight.format == Format::Bf16 && rows * weight.width <= OWN_PACKED_LEN,
        // These are multiplied straight from the weights however many rows there are.
        Factors::Pairs(_) => false,
    };
    let is_few = (1..=kernels.few_for_elements).contains(&rows);
    (is_read && is_few && weight.side_by_side(0).is_some()).then_some(kernels)
}

/// Prefetches the piece of weights that is read after this part of the depth: it is a short stretch of each of many rows, a
/// pattern that the hardware does not foresee.
fn prefetch_next(weight: &Weight<'_>, part: &Range<usize>, span: &Range<usize>) {
    let WeightData::Host(bytes) = weight.data else {
        return;
    };
    // Measured with AVX2 and few rows, where dequantizing and packing are a quarter of a pass: 5 to 8 % off.
    let (ahead, next) = match part.end < span.end {
        true => (0, part.end),
        false => (weight.rows, span.start),
    };
    let (format, row_bytes) = (weight.format, weight.format.bytes(weight.width));
    let piece = format.bytes(DEPTH.min(span.end - next));
    for row in 0..weight.rows {
        let place = (row + ahead) * row_bytes + format.bytes(next);
        prefetch(bytes.as_ptr().wrapping_add(place), piece);
    }
}

#[cfg(test)]
mod tests;
