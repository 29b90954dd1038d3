//! `linear`: one matmul for every format. Rows of weights are dequantized a small piece at a time into a thread's
//! scratch, packed there, and multiplied by all rows while they are in the nearest cache. All that differs between
//! formats is how a tile is dequantized.

use std::{
    ops::Range,
    slice,
    time::{Duration, Instant},
};

use rayon::prelude::*;
use sluice_codec::container::CHUNK_ROWS;
use sluice_formats::Format;
use sluice_weights::{Weight, WeightData};

use super::{
    CpuBackend,
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

/// Dot products of a single row that are computed before they are added to the output.
const DOTS: usize = 256;

/// Tiles for each thread: few enough that a tile's fixed costs matter little, enough that no thread waits long for
/// another.
const TILES: usize = 4;

/// Least weight rows of a tile, where there are as many rows of `x`: each tile packs those anew, which takes a
/// hundredth of the time of as many weight rows' matmul.
const COLUMNS_MIN: usize = 256;

/// Least rows of `x` of a tile, where they are shared out, too: each tile dequantizes its weights anew.
const ROWS_MIN: usize = 64;

impl CpuBackend {
    /// `x · weightᵀ` into `out`, or added to it.
    pub(crate) fn gemm(&self, x: &Activation, weight: &Weight<'_>, out: &mut [f32], adds: bool) {
        // On the device's threads from here on: scratch is found by the index of the thread.
        self.run(|| self.gemm_on_this_pool(x, weight, out, adds));
    }

    /// `x · weightᵀ` into rows of `out` that begin `stride` elements apart.
    pub(crate) fn gemm_strided(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: &mut [f32],
        stride: usize,
    ) {
        self.run(|| self.gemm_tiles(x, weight, out, stride, false));
    }

    /// [`CpuBackend::gemm`] for a caller that already runs on the device's threads.
    pub(crate) fn gemm_on_this_pool(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: &mut [f32],
        adds: bool,
    ) {
        assert_eq!(out.len(), x.len() * weight.rows);
        self.gemm_tiles(x, weight, out, weight.rows, adds);
    }

    fn gemm_tiles(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: &mut [f32],
        stride: usize,
        adds: bool,
    ) {
        assert_eq!(
            x.width(),
            weight.width,
            "the widths of rows and weights differ"
        );
        if x.is_empty() || weight.rows == 0 {
            return;
        }
        // Every row ends inside, and before the next begins.
        assert!(weight.rows <= stride && (x.len() - 1) * stride + weight.rows <= out.len());
        let out = Columns {
            start: out.as_mut_ptr(),
            stride,
            columns: weight.rows,
            rows: x.len(),
            adds,
        };
        let kernel = Microkernel::best();
        let grid = Grid::new(x.len(), weight, self.device.threads(), kernel);
        // Tiles share nothing but their inputs: each thread dequantizes and packs what it needs, so that no barrier is
        // needed.
        (0..grid.len()).into_par_iter().for_each(|number| {
            let (rows, columns) = grid.tile(number);
            let part = weight.rows(columns.start, columns.end);
            // Dot products dequantize the weights anew for every row of input: two rows took 1.4 to 2.1 times as long
            // as dequantizing once (a core of an EPYC, 576 outputs of 1536, `q8_0` to `q4_k`).
            // SAFETY: the grid's tiles are disjoint.
            let own = unsafe { out.tile(rows.clone(), columns) };
            if x.len() == 1 && part.has_dot_kernel() && QuantizedGemm::of(&part).is_none() {
                return dot_tile(x, &part, own, &self.clock);
            }
            self.scratch.with(|scratch| {
                if let Some(products) = QuantizedGemm::of(&part) {
                    let x = &x.values()[rows.start * weight.width..rows.end * weight.width];
                    // SAFETY: rows and columns are inside the output and of this tile alone.
                    unsafe { products.gemm(x, &part, own.part(&rows, 0, part.rows), scratch) };
                    return;
                }
                let mut tile = Tile::new(kernel, x, own, scratch);
                tile.gemm_tile(&part, 0, &self.clock);
            });
        });
    }
}

/// How a matmul is divided into tiles.
struct Grid {
    /// Rows of `x`, and how many of them a tile has.
    rows: usize,
    tile_rows: usize,
    /// Rows of weights, and how many of them a tile has.
    columns: usize,
    tile_columns: usize,
    /// Weight rows of the first chunk that come before the first tile's, where tiles are whole chunks.
    before: usize,
}

impl Grid {
    fn new(rows: usize, weight: &Weight<'_>, threads: usize, kernel: &Microkernel) -> Self {
        // Weight rows are shared out first: each is then dequantized once in all, and only `x`, which is smaller,
        // packed several times.
        let several = weight.rows.div_ceil(threads * TILES);
        let tile_columns = several
            .max(rows.min(COLUMNS_MIN))
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
        let tiles = (before + weight.rows).div_ceil(tile_columns);
        // Where there are few weight rows, rows of `x` are shared out, too: not if decompression, which each part
        // repeats, is most of the work.
        let parts = match weight.data {
            WeightData::Compressed(_) => 1,
            _ => threads.div_ceil(tiles).min(rows / ROWS_MIN).max(1),
        };
        Self {
            rows,
            tile_rows: rows.div_ceil(parts),
            columns: weight.rows,
            tile_columns,
            before,
        }
    }

    fn len(&self) -> usize {
        self.rows.div_ceil(self.tile_rows) * self.across()
    }

    /// Tiles that the weights' rows are divided into.
    fn across(&self) -> usize {
        (self.before + self.columns).div_ceil(self.tile_columns)
    }

    /// Rows of `x` and rows of weights of a tile.
    fn tile(&self, number: usize) -> (Range<usize>, Range<usize>) {
        let across = self.across();
        let (row, column) = (
            number / across * self.tile_rows,
            number % across * self.tile_columns,
        );
        let end = column + self.tile_columns - self.before;
        (
            row..self.rows.min(row + self.tile_rows),
            column.saturating_sub(self.before)..self.columns.min(end),
        )
    }
}

/// The output matrix, of which each tile gets a part of its own.
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
    kernel: &'static Microkernel,
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
        kernel: &'static Microkernel,
        x: &'a Activation,
        out: OutputTile<'a>,
        scratch: &'a mut [f32],
    ) -> Self {
        assert!(kernel.columns * DEPTH <= PANEL_LEN);
        // Vectors that straddle cache lines take twice as long to load.
        let line = scratch.as_ptr().align_offset(LINE * size_of::<f32>());
        let (packed, scratch) = scratch[line..].split_at_mut(PACKED_LEN);
        let (panel, scratch) = scratch.split_at_mut(PANEL_LEN);
        let (widened, scratch) = scratch.split_at_mut(PANEL_LEN);
        Self {
            kernel,
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
                        let panel = &mut tile.panel[..tile.kernel.columns * depth];
                        tile.kernel.pack_inputs(inputs, output, panel);
                        let place = column + first + output - open.local.start;
                        tile.multiply_panel(from, depth, place, count);
                    }
                }
            });
        }
        self.decompressed = decoded;
    }

    /// The same for weights that are not compressed.
    fn gemm_dequantized(&mut self, weight: &Weight<'_>, column: usize) {
        self.each_span(weight.width, |tile, _| {
            for first in (0..weight.rows).step_by(tile.kernel.columns) {
                let last = weight.rows.min(first + tile.kernel.columns);
                tile.gemm_panel(&weight.rows(first, last), column + first);
            }
        });
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
        let lanes = self.kernel.packed_lanes(rows.len());
        self.kernel.pack_rows(
            MatrixRows::new(values, width, rows.len(), span.len()),
            &mut self.packed[..lanes * span.len()],
        );
        self.packs = packs;
    }

    /// Multiplies what is packed by a panel of weights.
    fn gemm_panel(&mut self, weight: &Weight<'_>, column: usize) {
        let (_, span) = self.packs.clone().expect("rows are packed first");
        // The panel stays the same while the depth goes by, so the same few rows of weights are read from front to
        // back.
        for from in span.clone().step_by(DEPTH) {
            let depth = DEPTH.min(span.end - from);
            let (format, bytes) = (weight.format, weight.bytes());
            let row_bytes = format.bytes(weight.width);
            let part = format.bytes(from)..format.bytes(from + depth);
            let widened = self.dequantized.chunks_exact_mut(depth);
            for (row, out) in bytes.chunks_exact(row_bytes).zip(widened) {
                format.dequantize(&row[part.clone()], out);
            }
            // The piece that is dequantized next is prefetched: it is a short stretch of each of many rows, a pattern
            // that the hardware does not foresee.
            // Measured with AVX2 and few rows, where dequantizing and packing are a quarter of a pass: 5 to 8 % off.
            let (ahead, next) = match from + depth < span.end {
                true => (0, from + depth),
                false => (weight.rows, span.start),
            };
            let piece = format.bytes(DEPTH.min(span.end - next));
            for row in 0..weight.rows {
                let place = (row + ahead) * row_bytes + format.bytes(next);
                prefetch(bytes.as_ptr().wrapping_add(place), piece);
            }
            let weights = MatrixRows::new(self.dequantized, depth, weight.rows, depth);
            let panel = &mut self.panel[..self.kernel.columns * depth];
            self.kernel.pack_weights(weights, panel);
            self.multiply_panel(from, depth, column, weight.rows);
        }
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

/// The single row of `x` times the tile's rows. Compressed weights are decompressed as they are added up, element by
/// element, which takes most of the time: all of it counts as decompression.
fn dot_tile(x: &Activation, tile: &Weight<'_>, out: OutputTile<'_>, clock: &PhaseClock) {
    let begun = Instant::now();
    let out = out.part(&(0..1), 0, tile.rows);
    // SAFETY: these columns are inside the only row, and no other tile's.
    let out_tile = unsafe { slice::from_raw_parts_mut(out.start, tile.rows) };
    // `dot` overwrites, so sums to add to are kept apart, in a buffer on the stack.
    if out.adds {
        let mut products = [0.0; DOTS];
        for (from, out) in (0..tile.rows).step_by(DOTS).zip(out_tile.chunks_mut(DOTS)) {
            let products = &mut products[..out.len()];
            tile.rows(from, from + out.len()).dot(x.values(), products);
            for (out, product) in out.iter_mut().zip(products) {
                *out += *product;
            }
        }
    } else {
        tile.dot(x.values(), out_tile);
    }
    if matches!(tile.data, WeightData::Compressed(_)) {
        clock.add_decompressed(begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicBool};

    use proptest::prelude::*;
    use safetensors::{Dtype, tensor::TensorView};
    use sluice_checkpoint::{
        Checkpoint, Source,
        compression::{
            CompressOptions, CompressionMethod, Container, Lossless, Scheme, TrellisTarget,
            compress,
        },
    };
    use sluice_codec::{ColumnsEncoder, container::Chunk};

    use sluice_formats::{DType, Format, noise::Noise};
    use sluice_weights::{CompressedRows, CompressedTensor};

    use super::*;
    use crate::{Ops, ROUNDED_ROWS_ERROR, device::Device, ledger::Ledger};

    /// Rows that are more than a few.
    const MANY: usize = 128;

    fn ops() -> Ops {
        Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap()
    }

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let noise = Noise::new(seed);
        (0..count)
            .map(|i| noise.uniform(0, i as u64, 0) as f32 - 0.5)
            .collect()
    }

    /// Random weights as `format` stores them, in words so that they are aligned.
    fn stored(count: usize, format: Format) -> Vec<u64> {
        let len = format.bytes(count);
        let mut words = vec![0; len.div_ceil(size_of::<u64>())];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        quantize::store(format, &numbers(count, 2), &mut bytes[..len]);
        words
    }

    fn weight(words: &[u64], rows: usize, width: usize, format: Format) -> Weight<'_> {
        Weight {
            format,
            rows,
            width,
            data: WeightData::Host(&bytemuck::cast_slice(words)[..format.bytes(rows * width)]),
            weights_version: 0,
        }
    }

    /// Against a plain sum in `f64`, for shapes around the kernel's tile sizes.
    fn check(rows: usize, width: usize, outputs: usize, format: Format) {
        let ops = ops();
        let mut x = ops.pool.take(rows, width, DType::F32).unwrap();
        x.values_mut().copy_from_slice(&numbers(rows * width, 1));
        let words = stored(outputs * width, format);
        let weight = weight(&words, outputs, width, format);
        let mut exact = vec![0.0; outputs * width];
        weight.dequantize(&mut exact);
        let out = ops.linear(&x, &weight).unwrap();
        for row in 0..rows {
            for column in 0..outputs {
                let expected: f64 = (0..width)
                    .map(|k| f64::from(x.row(row)[k]) * f64::from(exact[column * width + k]))
                    .sum();
                let found = f64::from(out.row(row)[column]);
                // Bytes of `x` are up to a 250th of the largest in a block away.
                let tolerance = if ops.rounds_rows(format) { 2e-3 } else { 1e-5 };
                assert!(
                    (found - expected).abs() <= tolerance * (width as f64).sqrt(),
                    "{} {rows}x{width}x{outputs} at {row},{column}: {found} for {expected}",
                    format.name()
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(80))]
        #[test]
        fn equals_a_plain_sum(
            rows in 1usize..40,
            width in 1usize..90,
            outputs in 1usize..150,
            format in proptest::sample::select(&Format::ALL[..]),
        ) {
            // Up to three blocks where blocks are longer than the width.
            let width = match format.block_len() {
                1 => width,
                block => block * (1 + width % 3),
            };
            check(rows, width, outputs, format);
        }
    }

    #[test]
    fn shapes_around_tiles_and_blocks_of_the_depth() {
        for rows in [11, 12, 13, 24, 25] {
            for (width, outputs) in [(DEPTH - 1, 31), (DEPTH, 33), (DEPTH + 1, 64)] {
                check(rows, width, outputs, Format::F32);
            }
        }
    }

    #[test]
    fn few_rows_and_more() {
        for format in Format::ALL {
            for rows in [ROWS_MIN, MANY + 1] {
                check(rows, 256, 70, format);
            }
        }
    }

    /// The error of matmuls in integers: no more than rounding `x` to bytes causes.
    #[test]
    fn rounded_rows_are_near_the_exact_ones() {
        const WIDTH: usize = 2048;
        const OUTPUTS: usize = 200;
        let ops = ops();
        for format in Format::ALL {
            let words = stored(OUTPUTS * WIDTH, format);
            let weight = weight(&words, OUTPUTS, WIDTH, format);
            let mut exact = vec![0.0; OUTPUTS * WIDTH];
            weight.dequantize(&mut exact);
            for rows in [1, 7, 40] {
                let mut x = ops.pool.take(rows, WIDTH, DType::F32).unwrap();
                x.values_mut().copy_from_slice(&numbers(rows * WIDTH, 1));
                let out = ops.linear(&x, &weight).unwrap();
                let (mut errors, mut squares) = (0.0, 0.0);
                for row in 0..rows {
                    for (found, weights) in out.row(row).iter().zip(exact.chunks_exact(WIDTH)) {
                        let products = x.row(row).iter().zip(weights);
                        let expected: f64 =
                            products.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                        errors += (f64::from(*found) - expected).powi(2);
                        squares += expected * expected;
                    }
                }
                let error = (errors / squares).sqrt();
                println!("{} {rows}: {error:.2e}", format.name());
                let bound = match ops.rounds_rows(format) {
                    true => ROUNDED_ROWS_ERROR,
                    false => 1e-6,
                };
                assert!(error < bound, "{} in {rows} rows: {error}", format.name());
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        let ops = ops();
        for format in Format::ALL {
            for value in [f32::NAN, f32::INFINITY] {
                let mut x = ops.pool.take(2, 256, DType::F32).unwrap();
                x.values_mut().copy_from_slice(&numbers(512, 1));
                x.row_mut(1)[77] = value;
                let words = stored(40 * 256, format);
                let out = ops.linear(&x, &weight(&words, 40, 256, format)).unwrap();
                assert!(out.row(0).iter().all(|value| value.is_finite()));
                assert!(out.row(1).iter().all(|value| !value.is_finite()));
            }
        }
    }

    #[test]
    fn more_than_one_tile() {
        check(3, 4096, 300, Format::Bf16);
        check(MANY, 4096, 300, Format::Q4K);
        // More than are packed at a time.
        for format in [Format::Bf16, Format::Q8_0] {
            check(PACKED_LEN / DEPTH + 1, 512, 20, format);
        }
    }

    #[test]
    fn a_row_does_not_depend_on_those_beside_it() {
        const WIDTH: usize = 1024;
        let ops = ops();
        let values = numbers((MANY + 1) * WIDTH, 1);
        for format in Format::ALL {
            let words = stored(50 * WIDTH, format);
            let weight = weight(&words, 50, WIDTH, format);
            let first = |rows: usize| {
                let mut x = ops.pool.take(rows, WIDTH, DType::F32).unwrap();
                x.values_mut().copy_from_slice(&values[..rows * WIDTH]);
                ops.linear(&x, &weight).unwrap().row(0).to_vec()
            };
            let alone = first(1);
            for rows in [2, 17, MANY, MANY + 1] {
                for (found, expected) in first(rows).iter().zip(&alone) {
                    assert!(
                        (found - expected).abs() <= 1e-5 * (WIDTH as f32).sqrt(),
                        "{} in {rows} rows: {found} for {expected}",
                        format.name()
                    );
                }
            }
        }
    }

    /// The tensor's name in a container: a layer's, since other tensors are not trellis-quantized.
    const NAME: &str = "layers.0.w";

    /// A matrix, in a container of its own.
    struct InContainer {
        tensor: Arc<CompressedTensor>,
        bytes: Vec<u8>,
    }

    impl InContainer {
        fn new(bytes: &[u8], shape: [usize; 2], how: CompressionMethod, tile: usize) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let tensor = TensorView::new(Dtype::BF16, shape.to_vec(), bytes).unwrap();
            let source = folder.path().join("model.safetensors");
            safetensors::serialize_to_file([(NAME, tensor)], None, &source).unwrap();
            std::fs::write(folder.path().join("config.json"), "{}").unwrap();
            let target = folder.path().join("model.sluice");
            let options = CompressOptions {
                method: how,
                tile,
                tensors: Default::default(),
                all: true,
                threads: 1,
                replace: false,
            };
            let source = Source::Folder(folder.path().to_owned());
            let never = AtomicBool::new(false);
            compress(&source, &target, &options, &never, &mut |_, _| {}).unwrap();
            let container = Container::open(&target).unwrap();
            let record = &container.header().tensors[0];
            assert_ne!(record.scheme(), Some(Scheme::Plain));
            let bytes = std::fs::read(&target).unwrap();
            let place = record.offset as usize..(record.offset + record.length) as usize;
            let checkpoint = Checkpoint::open(&Source::Folder(target)).unwrap();
            Self {
                tensor: checkpoint.compressed(NAME).unwrap(),
                bytes: bytes[place].to_vec(),
            }
        }
    }

    #[test]
    fn compressed_weights_come_to_the_same_bits() {
        let ops = ops();
        // Whole vectors in rows that tiles cross, and rows that are none; several chunks.
        for (width, outputs, tile) in [(256, 600, 512), (416, 300, 128), (200, 520, 256)] {
            let mut values = numbers(width * outputs, 3);
            // Values that the dictionary lacks, a few and many of them.
            for (at, value) in values.iter_mut().enumerate() {
                if at % 97 == 0 || at / 3000 % 5 == 1 {
                    *value *= f32::powi(2.0, at as i32 % 90 - 60);
                }
            }
            let mut plain = vec![0_u64; width * outputs / 4];
            Format::Bf16.quantize(&values, bytemuck::cast_slice_mut(&mut plain));
            let uncoded = weight(&plain, outputs, width, Format::Bf16);
            for how in [
                CompressionMethod::Lossless(Lossless::Huffman),
                CompressionMethod::Lossless(Lossless::Dictionary),
                CompressionMethod::Trellis(TrellisTarget::Bits(4.0)),
            ] {
                let bytes = bytemuck::cast_slice(&plain);
                let container = InContainer::new(bytes, [outputs, width], how, tile);
                let compressed = Weight {
                    data: WeightData::Compressed(CompressedRows {
                        tensor: &container.tensor,
                        bytes: &container.bytes,
                        base: 0,
                        first_row: 0,
                    }),
                    ..uncoded
                };
                // What it is decoded to: the same, or near it.
                let mut decoded = vec![0.0; outputs * width];
                compressed.dequantize(&mut decoded);
                let decoded = Weight {
                    format: Format::F32,
                    data: WeightData::Host(bytemuck::cast_slice(&decoded)),
                    ..uncoded
                };
                let expected = match how {
                    CompressionMethod::Lossless(_) => uncoded,
                    CompressionMethod::Trellis(_) | CompressionMethod::Mix(_) => decoded,
                };
                same_bits(&ops, &expected, &compressed);
            }
        }
    }

    /// All outputs and some of them, of one row and of many.
    fn same_bits(ops: &Ops, expected: &Weight<'_>, compressed: &Weight<'_>) {
        let width = expected.width;
        for rows in [1, 2, 17, MANY + 1] {
            let mut x = ops.pool.take(rows, width, DType::F32).unwrap();
            x.values_mut().copy_from_slice(&numbers(rows * width, 1));
            let all = [expected, compressed].map(|weight| ops.linear(&x, weight).unwrap());
            assert_eq!(all[0].values(), all[1].values(), "{rows} rows of {width}");
            let part = [expected, compressed].map(|weight| {
                let mut out = ops.linear(&x, &weight.rows(7, 290)).unwrap();
                ops.linear_add(&mut out, 0, &x, &weight.rows(9, 292))
                    .unwrap();
                out
            });
            assert_eq!(part[0].values(), part[1].values(), "{rows} rows of {width}");
        }
    }

    /// Chunks of columns with steps of their own, some of them zero.
    fn in_columns(rows: usize, width: usize) -> (CompressedTensor, Vec<u8>) {
        let values = numbers(rows * width, 4);
        let (mut chunks, mut bytes) = (Vec::new(), Vec::new());
        for first in (0..rows).step_by(CHUNK_ROWS) {
            let rows = first..rows.min(first + CHUNK_ROWS);
            let sizes = vec![1.0; rows.len()];
            let mut encoder = ColumnsEncoder::new(DType::Bf16, width, &sizes, 0.1).unwrap();
            let mut decoded = vec![0.0; rows.len()];
            for column in 0..width {
                let values: Vec<f32> = rows
                    .clone()
                    .map(|row| values[row * width + column])
                    .collect();
                let step = [0.0, 0.05, 0.1, 0.4][column % 4];
                encoder.quantize_column(column, &values, step, &mut decoded);
            }
            let encoded = encoder.finish().unwrap();
            bytes.resize(bytes.len().next_multiple_of(64), 0);
            chunks.push(Chunk {
                rows,
                offset: bytes.len() as u64,
                layout: encoded.layout,
            });
            bytes.extend(encoded.bytes);
        }
        let name = "columns".to_owned();
        let tensor = CompressedTensor::new(name, Scheme::Columns, Format::F32, width, 0, chunks);
        (tensor, bytes)
    }

    #[test]
    fn columns_come_to_the_same_bits() {
        let ops = ops();
        // Rows of whole vectors and others, of several chunks, and more of the depth than is multiplied at a time.
        for (width, outputs) in [(256, 600), (416, 300), (200, 520), (1000, 292)] {
            let (tensor, bytes) = in_columns(outputs, width);
            tensor.check(&bytes, 0, &(0..outputs)).unwrap();
            let compressed = Weight {
                format: Format::F32,
                rows: outputs,
                width,
                data: WeightData::Compressed(CompressedRows {
                    tensor: &tensor,
                    bytes: &bytes,
                    base: 0,
                    first_row: 0,
                }),
                weights_version: 0,
            };
            let mut decoded = vec![0.0; outputs * width];
            compressed.dequantize(&mut decoded);
            let expected = Weight {
                data: WeightData::Host(bytemuck::cast_slice(&decoded)),
                ..compressed
            };
            same_bits(&ops, &expected, &compressed);
            // Chunks begin in the middle of what others begin with.
            same_bits_of_rows(&ops, &expected, &compressed, 290);
        }
    }

    fn same_bits_of_rows(ops: &Ops, expected: &Weight<'_>, compressed: &Weight<'_>, end: usize) {
        for rows in [1, MANY] {
            let mut x = ops.pool.take(rows, expected.width, DType::F32).unwrap();
            x.values_mut()
                .copy_from_slice(&numbers(rows * expected.width, 1));
            for first in [1, 100, 255] {
                let some = [expected, compressed]
                    .map(|weight| ops.linear(&x, &weight.rows(first, end)).unwrap());
                assert_eq!(some[0].values(), some[1].values());
            }
        }
    }

    #[test]
    fn tiles_of_columns_are_whole_chunks() {
        let (tensor, bytes) = in_columns(1100, 32);
        let all = Weight {
            format: Format::F32,
            rows: 1100,
            width: 32,
            data: WeightData::Compressed(CompressedRows {
                tensor: &tensor,
                bytes: &bytes,
                base: 0,
                first_row: 0,
            }),
            weights_version: 0,
        };
        for (first, last) in [(0, 1100), (10, 1000), (255, 256), (256, 512)] {
            let weight = all.rows(first, last);
            let grid = Grid::new(5, &weight, 2, Microkernel::best());
            let mut end = 0;
            for number in 0..grid.len() {
                let (rows, columns) = grid.tile(number);
                assert!(rows == (0..5) && columns.start == end && !columns.is_empty());
                assert!(end == 0 || (first + end).is_multiple_of(CHUNK_ROWS));
                end = columns.end;
            }
            assert_eq!(end, weight.rows);
        }
    }
}
