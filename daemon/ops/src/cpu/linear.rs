//! `linear`: one matmul for every format. Rows of weights are dequantized a small piece at a time into a thread's
//! scratch, packed there, and multiplied by all rows while they are in the nearest cache. All that differs between
//! formats is how a tile is dequantized.

mod grouped;
mod pairs;
mod transposed;

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use rayon::prelude::*;
use sluice_codec::container::CHUNK_ROWS;
use sluice_formats::{Format, interleaved::ROWS};
use sluice_machine::Instructions;
use sluice_weights::{Weight, WeightData};

pub(super) use self::pairs::rounds_to_bf16;
use self::pairs::{Factors, round_to_bf16};
use super::{
    CpuBackend,
    interleaved::{FEW_ROWS, Interleaved, beside, rows_of_panel},
    microkernel::{DEPTH, MatrixRows, Microkernel, TileOutput, prefetch},
    quantized::QuantizedGemm,
    scratch::SCRATCH_LEN,
};
use crate::{Activation, clock::PhaseClock};

/// Elements of `x` that are packed at a time: 1 MiB, so that they stay in a core's own cache while weights stream past.
const PACKED_LEN: usize = 1 << 18;

/// Elements of a panel of weights, before and after it is packed.
const PANEL_LEN: usize = 32 * DEPTH;

/// Elements that compressed weights are decompressed to at a time, since only whole rows can be.
const DEQUANTIZED_LEN: usize = SCRATCH_LEN - PACKED_LEN - 2 * PANEL_LEN - LINE;

/// Elements in a cache line.
const LINE: usize = 16;

/// Tiles for each thread: few enough that a tile's fixed costs matter little, enough that no thread waits long for
/// another.
const TILES: usize = 4;

/// Least weight rows of a tile, where there are as many rows of `x`: each tile packs those anew, which takes a
/// hundredth of the time of as many weight rows' matmul.
const COLUMNS_MIN: usize = 256;

/// Least rows of `x` of a tile, where they are shared out, too: each tile dequantizes its weights anew.
const ROWS_MIN: usize = 64;

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

    /// Multiplies the rows of `x` by several matrices at once: threads are woken once for all of them, and none waits
    /// for another in between.
    pub(crate) fn gemm<const N: usize>(&self, x: &Activation, products: [Product<'_>; N]) {
        if x.is_empty() {
            return;
        }
        let outputs = products.iter().map(|product| product.weight.rows);
        let all = x.len() * outputs.sum::<usize>();
        let jobs = products.map(|product| {
            let weight = product.weight;
            self.job(0..x.len(), &weight, product.columns(x), all)
        });
        self.work(x, &jobs);
    }

    /// Some rows of `x` and a matrix, whose products are some of `all` elements that are computed at once.
    fn job<'a>(
        &self,
        rows: Range<usize>,
        weight: &Weight<'a>,
        out: Columns,
        all: usize,
    ) -> Job<'a> {
        let kernel = Microkernel::of(self.instructions());
        Job {
            grid: Grid::new(rows, weight, all, self.device.threads(), kernel),
            factors: Factors::of(&self.device, weight.format),
            weight: *weight,
            out,
            taken: AtomicUsize::new(0),
        }
    }

    /// Does all jobs; their products are disjoint.
    fn work(&self, x: &Activation, jobs: &[Job<'_>]) {
        let instructions = self.instructions();
        // Tiles share nothing but their inputs: each thread dequantizes and packs what it needs, so that no barrier is
        // needed. A thread takes one tile after another, and keeps the rows of `x` that it has packed for them.
        let each_thread = |_| {
            self.scratch.with(|scratch| {
                for job in jobs {
                    job.work(x, instructions, &self.clock, scratch);
                }
            });
        };
        // On the device's threads from here on: scratch is found by the index of the thread.
        self.run(|| {
            let threads = (0..self.device.threads()).into_par_iter().with_max_len(1);
            threads.for_each(each_thread);
        });
    }
}

/// A matrix while rows of `x` are multiplied with it: what of it is yet to be taken by a thread.
struct Job<'a> {
    grid: Grid,
    factors: Factors,
    weight: Weight<'a>,
    out: Columns,
    /// Tiles that threads have taken.
    taken: AtomicUsize,
}

impl Job<'_> {
    /// The next tile's rows of `x`, and rows of weights.
    fn take(&self) -> Option<(Range<usize>, Range<usize>)> {
        // Relaxed: only which thread takes which tile hangs on it.
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        (number < self.grid.len()).then(|| self.grid.tile(number))
    }

    /// Multiplies tiles for as long as there are any.
    fn work(
        &self,
        x: &Activation,
        instructions: Instructions,
        clock: &PhaseClock,
        scratch: &mut [f32],
    ) {
        let weight = &self.weight;
        if let Some(products) = QuantizedGemm::of(instructions, weight) {
            while let Some((rows, columns)) = self.take() {
                let mut first = Some(columns);
                // All tiles have these rows, unless those are shared out, too.
                let mut tiles = || match first.take() {
                    None if self.grid.tile_rows == self.grid.rows.len() => {
                        self.take().map(|(_, columns)| columns)
                    }
                    first => first,
                };
                // SAFETY: tiles are disjoint and taken once, and the products' outputs are, too.
                let own = unsafe { self.out.tile(rows.clone(), 0..weight.rows) };
                let out = own.part(&rows, 0, weight.rows);
                let x = &x.values()[rows.start * weight.width..rows.end * weight.width];
                // SAFETY: rows and columns are inside the output and of these tiles alone.
                unsafe { products.gemm(x, weight, out, &mut tiles, scratch) };
            }
            return;
        }
        while let Some((rows, columns)) = self.take() {
            let part = weight.rows(columns.start, columns.end);
            // SAFETY: tiles are disjoint and taken once, and the products' outputs are, too.
            let own = unsafe { self.out.tile(rows, columns) };
            let mut tile = Tile::new(instructions, self.factors, x, own, scratch);
            tile.gemm_tile(&part, 0, clock);
        }
    }
}

/// How a matmul is divided into tiles.
struct Grid {
    /// Rows of `x`, and how many of them a tile has.
    rows: Range<usize>,
    tile_rows: usize,
    /// Rows of weights, and how many of them a tile has.
    columns: usize,
    tile_columns: usize,
    /// Weight rows of the first chunk that come before the first tile's, where tiles are whole chunks.
    before: usize,
}

impl Grid {
    /// Of rows, at least one, and a matrix, whose products are some of `all` elements that are computed at once.
    fn new(
        rows: Range<usize>,
        weight: &Weight<'_>,
        all: usize,
        threads: usize,
        kernel: &Microkernel,
    ) -> Self {
        // As many weight rows as if these rows of `x` were multiplied by all of them.
        let all_columns = all.div_ceil(rows.len());
        // Weight rows are shared out first: each is then dequantized once in all, and only `x`, which is smaller,
        // packed several times.
        let several = all_columns.div_ceil(threads * TILES);
        let tile_columns = several
            .max(rows.len().min(COLUMNS_MIN))
            // Whole panels: a partly filled one takes as long as a full one.
            .next_multiple_of(kernel.columns);
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
            _ => threads
                .div_ceil(tiles.max(1))
                .min(rows.len() / ROWS_MIN)
                .max(1),
        };
        Self {
            tile_rows: rows.len().div_ceil(parts),
            rows,
            columns: weight.rows,
            tile_columns,
            before,
        }
    }

    fn len(&self) -> usize {
        self.rows.len().div_ceil(self.tile_rows) * self.across()
    }

    /// Tiles that the weights' rows are divided into.
    fn across(&self) -> usize {
        match self.columns {
            0 => 0,
            columns => (self.before + columns).div_ceil(self.tile_columns),
        }
    }

    /// Rows of `x` and rows of weights of a tile.
    fn tile(&self, number: usize) -> (Range<usize>, Range<usize>) {
        let across = self.across();
        let (row, column) = (
            self.rows.start + number / across * self.tile_rows,
            number % across * self.tile_columns,
        );
        let end = column + self.tile_columns - self.before;
        (
            row..self.rows.end.min(row + self.tile_rows),
            column.saturating_sub(self.before)..self.columns.min(end),
        )
    }
}

/// The output matrix, of which each tile gets a part of its own.
#[derive(Clone, Copy)]
struct Columns {
    start: *mut f32,
    /// Elements from the beginning of a row to that of the next.
    stride: usize,
    /// Elements in a row.
    columns: usize,
    rows: usize,
    /// Whether to add to what the output holds.
    adds: bool,
}

// SAFETY: only its tiles are written through, and whoever takes one vouches for its being disjoint from the others.
unsafe impl Sync for Columns {}

impl Columns {
    /// # Safety
    /// The matrix lives as long as the tile, and meanwhile nobody else reads or writes these columns of these rows.
    ///
    /// # Panics
    /// When they lie outside of the matrix.
    unsafe fn tile(&self, rows: Range<usize>, columns: Range<usize>) -> OutputTile<'_> {
        assert!(rows.end <= self.rows && columns.end <= self.columns);
        OutputTile {
            matrix: self,
            rows,
            columns,
        }
    }
}

/// Columns of rows in the output matrix that nobody else reads or writes.
struct OutputTile<'a> {
    matrix: &'a Columns,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl OutputTile<'_> {
    /// Some of its rows, and of their columns `count` from `column` on.
    ///
    /// # Panics
    /// When they lie outside of the tile.
    fn part(&self, rows: &Range<usize>, column: usize, count: usize) -> TileOutput {
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

/// Some rows of `x` on their way past weights, and the scratch that both are packed in.
struct Tile<'a> {
    instructions: Instructions,
    kernel: &'static Microkernel,
    factors: Factors,
    x: &'a Activation,
    out: OutputTile<'a>,
    /// Packed rows of `x`, and which rows and which part of the depth those are.
    packed: &'a mut [f32],
    packs: Option<(Range<usize>, Range<usize>)>,
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
        x: &'a Activation,
        out: OutputTile<'a>,
        scratch: &'a mut [f32],
    ) -> Self {
        let kernel = Microkernel::of(instructions);
        assert!(kernel.columns * DEPTH <= PANEL_LEN);
        // Vectors that straddle cache lines take twice as long to load.
        let line = scratch.as_ptr().align_offset(LINE * size_of::<f32>());
        let (packed, scratch) = scratch[line..].split_at_mut(PACKED_LEN);
        let (panel, scratch) = scratch.split_at_mut(PANEL_LEN);
        let (widened, scratch) = scratch.split_at_mut(PANEL_LEN);
        Self {
            instructions,
            kernel,
            factors,
            x,
            out,
            packed,
            packs: None,
            dequantized: widened,
            panel,
            decompressed: &mut scratch[..DEQUANTIZED_LEN],
        }
    }

    /// Multiplies all rows by these weights, into the tile's columns from `column` on.
    fn gemm_tile(&mut self, weight: &Weight<'_>, column: usize, clock: &PhaseClock) {
        if !matches!(weight.data, WeightData::Compressed(_)) {
            return self.gemm_dequantized(weight, column);
        }
        if weight.has_columns() {
            return self.gemm_columns(weight, column, clock);
        }
        // `SCRATCH_LEN` leaves room for some rows of the widest projection, so at least one row fits.
        let fitting = DEQUANTIZED_LEN / weight.width;
        // Whole panels, if at least one fits: a partly filled panel costs as much as a full one.
        let fitting = fitting - fitting % self.kernel.columns.min(fitting);
        // Taken out, since the closure below borrows all of `self`.
        let decoded = std::mem::take(&mut self.decompressed);
        let begun = Instant::now();
        let mut multiplied = Duration::ZERO;
        weight.dequantize_by(fitting, decoded, |row, values| {
            let begun = Instant::now();
            let decoded = Weight {
                format: Format::F32,
                rows: values.len() / weight.width,
                data: WeightData::Host(bytemuck::cast_slice(values)),
                ..*weight
            };
            self.gemm_dequantized(&decoded, column + row);
            multiplied += begun.elapsed();
        });
        // The callback's time is the matmul's own; what is left is decompression.
        clock.add_decompressed(begun.elapsed().saturating_sub(multiplied));
        self.decompressed = decoded;
    }

    /// The same for weights that are decompressed by columns: as many columns as a block of the depth has at a time, which
    /// lie as panels need them. The depth is cut where it is for all weights, so sums are the same.
    fn gemm_columns(&mut self, weight: &Weight<'_>, column: usize, clock: &PhaseClock) {
        // Taken out, since methods below borrow all of `self`.
        let decoded = std::mem::take(&mut self.decompressed);
        for (first, open) in weight.chunks() {
            let outputs = open.matrix.layout().rows();
            self.each_span(weight.width, |tile, span| {
                for from in span.clone().step_by(DEPTH) {
                    let depth = DEPTH.min(span.end - from);
                    let values = &mut decoded[..depth * outputs];
                    let begun = Instant::now();
                    let columns = open
                        .matrix
                        .decompress_columns_f32(from..from + depth, values);
                    columns.expect("coded bytes are checked when they are read");
                    clock.add_decompressed(begun.elapsed());
                    let inputs = MatrixRows::new(values, outputs, depth, outputs);
                    for output in open.local.clone().step_by(tile.kernel.columns) {
                        let count = tile.kernel.columns.min(open.local.end - output);
                        let place = column + first + output - open.local.start;
                        if let Factors::Pairs(kernel) = tile.factors {
                            let part = from..from + depth;
                            tile.gemm_input_pairs(kernel, inputs, output, place, count, &part);
                            continue;
                        }
                        let panel = &mut tile.panel[..tile.kernel.columns * depth];
                        tile.kernel.pack_inputs(inputs, output, panel);
                        if matches!(tile.factors, Factors::Rounded) {
                            round_to_bf16(tile.instructions, panel);
                        }
                        tile.multiply_panel(from, depth, place, count);
                    }
                }
            });
        }
        self.decompressed = decoded;
    }

    /// The same for weights that are not compressed.
    fn gemm_dequantized(&mut self, weight: &Weight<'_>, column: usize) {
        let done = self.gemm_few(weight, column);
        if done == weight.rows {
            return;
        }
        let (weight, column) = (&weight.rows(done, weight.rows), column + done);
        self.each_span(weight.width, |tile, _| {
            for first in (0..weight.rows).step_by(tile.kernel.columns) {
                let last = weight.rows.min(first + tile.kernel.columns);
                tile.gemm_panel(&weight.rows(first, last), column + first);
            }
        });
    }

    /// Multiplies few rows by those weights at the beginning whose rows lie beside each other, and returns how many weight
    /// rows those were.
    fn gemm_few(&mut self, weight: &Weight<'_>, column: usize) -> usize {
        let kernels = Interleaved::of(self.instructions);
        let (Some(kernels), 1..=FEW_ROWS, Some(_)) =
            (kernels, self.out.rows.len(), weight.side_by_side(0))
        else {
            return 0;
        };
        let (rows, width) = (&self.out.rows, weight.width);
        let x = &self.x.values()[rows.start * width..rows.end * width];
        let x = match self.factors {
            Factors::Unrounded => x,
            Factors::Rounded if weight.format == Format::Bf16 && x.len() <= PACKED_LEN => {
                let rounded = &mut self.packed[..x.len()];
                rounded.copy_from_slice(x);
                round_to_bf16(self.instructions, rounded);
                self.packs = None;
                rounded
            }
            // Weights are rounded in panels; pairs are multiplied straight from the weights however many rows there are.
            Factors::Rounded | Factors::Pairs(_) => return 0,
        };
        let out = self.out.part(rows, column, weight.rows);
        let mut done = 0;
        for bytes in beside(weight) {
            let kernel = (kernels.elements)(weight.format).multiply[rows.len() - 1];
            // SAFETY: `Interleaved::of` made sure of the instructions; rows and columns are of this tile alone.
            unsafe { kernel(x, bytes, out.at_column(done)) };
            done += ROWS;
        }
        done
    }

    /// Packs all rows part by part, as much of the depth as there is space for at a time, and calls `multiply` for each.
    fn each_span(&mut self, width: usize, mut multiply: impl FnMut(&mut Self, Range<usize>)) {
        let rows_max = self.kernel.rows_in(PACKED_LEN / DEPTH);
        // Equal parts instead of full ones and a rest: each part goes past all weights, whose dequantization it pays
        // anew.
        let all = self.out.rows.clone();
        let parts = all.len().div_ceil(rows_max);
        for from in all.clone().step_by(all.len().div_ceil(parts)) {
            let rows = from..all.end.min(from + all.len().div_ceil(parts));
            let lanes = self.kernel.packed_lanes(rows.len());
            // As much of the depth as keeps the packed rows within their cache budget, in whole blocks of [`DEPTH`]:
            // sums are then cut at the same places whatever the number of rows.
            let span = PACKED_LEN / lanes / DEPTH * DEPTH;
            for from in (0..width).step_by(span) {
                let span = from..width.min(from + span);
                self.pack(&rows, &span);
                multiply(self, span);
            }
        }
    }

    /// Packs a part of the depth of some rows, unless that is what is packed.
    fn pack(&mut self, rows: &Range<usize>, span: &Range<usize>) {
        // Compressed weights come in several pieces that meet the same rows of `x`.
        let packs = Some((rows.clone(), span.clone()));
        if self.packs == packs {
            return;
        }
        let width = self.x.width();
        let values = &self.x.values()[rows.start * width + span.start..];
        let x = MatrixRows::new(values, width, rows.len(), span.len());
        if let Factors::Pairs(kernel) = self.factors {
            self.pack_row_pairs(kernel, x);
        } else {
            let packed = &mut self.packed[..self.kernel.packed_lanes(rows.len()) * span.len()];
            self.kernel.pack_rows(x, packed);
            if matches!(self.factors, Factors::Rounded) {
                round_to_bf16(self.instructions, packed);
            }
        }
        self.packs = packs;
    }

    /// Multiplies what is packed by a panel of weights.
    fn gemm_panel(&mut self, weight: &Weight<'_>, column: usize) {
        let (_, span) = self.packs.clone().expect("rows are packed first");
        // The panel stays the same while the depth goes by, so the same few rows of weights are read from front to
        // back.
        for from in span.clone().step_by(DEPTH) {
            let depth = DEPTH.min(span.end - from);
            if let Factors::Pairs(kernel) = self.factors {
                prefetch_next(weight, from..from + depth, &span);
                self.gemm_pairs(kernel, weight, column, &(from..from + depth));
                continue;
            }
            for (lane, rows) in rows_of_panel(weight) {
                match (
                    Interleaved::of(self.instructions),
                    weight.side_by_side(lane),
                ) {
                    (Some(kernels), Some(bytes)) => {
                        self.widen(kernels, weight.format, bytes, lane, from..from + depth);
                    }
                    _ => self.dequantize(&weight.rows(lane, lane + rows), lane, from, depth),
                }
            }
            if matches!(self.factors, Factors::Rounded) && weight.format != Format::Bf16 {
                let panel = &mut self.panel[..self.kernel.columns * depth];
                round_to_bf16(self.instructions, panel);
            }
            prefetch_next(weight, from..from + depth, &span);
            self.multiply_panel(from, depth, column, weight.rows);
        }
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

    /// Multiplies what is packed by the packed panel: a block of the depth from `from` on, and the weights of `count`
    /// outputs, which go to the tile's columns from `column` on.
    fn multiply_panel(&mut self, from: usize, depth: usize, column: usize, count: usize) {
        let (rows, span) = self.packs.as_ref().expect("rows are packed first");
        let mut out = self.out.part(rows, column, count);
        // The first block of the depth overwrites: the output's memory is not cleared beforehand.
        out.adds |= from > 0;
        let lanes = self.kernel.packed_lanes(rows.len());
        let packed = &self.packed[..lanes * span.len()];
        let panel = &self.panel[..self.kernel.columns * depth];
        // SAFETY: rows and columns are of this tile alone.
        unsafe {
            self.kernel.gemm_panel(
                rows.len(),
                packed,
                span.len(),
                from - span.start,
                panel,
                out,
            );
        }
    }
}

/// Prefetches the piece of weights that is read after this part of the depth: it is a short stretch of each of many rows, a
/// pattern that the hardware does not foresee.
fn prefetch_next(weight: &Weight<'_>, part: Range<usize>, span: &Range<usize>) {
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
