//! Matmuls in integers, for formats whose weights are bytes in groups: rows of `x` are rounded to 8 bits in groups of
//! 32, as llama.cpp rounds them, and sums within a group are exact. Weights stay bytes in a thread's scratch, so that
//! little is written and read there, and an instruction multiplies four times as many as of `f32`. Rows are rounded
//! alike whatever their number, so that a row depends on those beside it by the order of sums alone.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
mod vnni;

use sluice_formats::{Format, QuantGroups, interleaved::ROWS as ROWS_BESIDE};
#[cfg(target_arch = "x86_64")]
use sluice_machine::InstructionSet;
use sluice_machine::Instructions;
use sluice_weights::{PIECE, Weight, WeightData};

use super::{
    interleaved::{FEW_ROWS, Interleaved, PanelLanes, RoundedRows, beside},
    linear::rows_of_panel,
    microkernel::{self, COLUMNS_MAX, MatrixRows, Microkernel, TileOutput},
};

/// How much of the depth is multiplied at a time: 20 KiB of a panel of 32 weight rows.
pub(super) const DEPTH: usize = 512;
/// Elements of a row of `x` that share a scale.
const BLOCK: usize = 32;
/// Bytes in a word: those that one lane multiplies and adds together.
const BYTES: usize = 4;
/// Most rows of `x` that a tile of the output has.
const ROWS: usize = 6;

/// Words of packed rows that the scratch holds at a time.
const PACKED_LEN: usize = 1 << 18;
/// Words of a panel's bytes, and below of its scales and minima for the smallest groups.
const PANEL_LEN: usize = COLUMNS_MAX * DEPTH / BYTES;
const SCALES_LEN: usize = 2 * COLUMNS_MAX * DEPTH / GROUP_MIN;
const GROUP_MIN: usize = 16;
/// Words of the rows of a panel after rounding, in the order of `x`.
const ROUNDED_LEN: usize = ROWS * DEPTH / BYTES;
const LINE: usize = 16;

/// The kernel of one instruction set.
struct ByteKernel {
    /// Words from one word of a packed panel of rows to the next.
    lanes: usize,
    /// Weight rows in a panel: columns of a tile.
    columns: usize,
    /// The `f32` kernel that transposes words for this one.
    words: &'static Microkernel,
    /// Most bits of a weight for which this kernel is faster than dequantizing to `f32`.
    bits_max: u32,
    round: Round,
    /// Tiles of one row up to [`ROWS`].
    tiles: fn(QuantGroups) -> &'static [Tile; ROWS],
}

/// Rounds a row to bytes, and writes of each group its scale, and its sum times the scale, to the row's lane of
/// `numbers`.
///
/// # Safety
/// The CPU has the kernel's instructions.
type Round = unsafe fn(
    x: &[f32],
    bytes: &mut [i8],
    numbers: &mut [f32],
    row: usize,
    lanes: usize,
    group: usize,
);

/// Multiplies a packed panel of rows, with scales and sums of their groups in `numbers`, by one of weights with scales
/// and minima.
///
/// # Safety
/// The CPU has the kernel's instructions, and the output's columns of the tile's rows are nobody else's.
type Tile = unsafe fn(x: &[f32], numbers: &[f32], panel: &[f32], scales: &[f32], out: TileOutput);

impl ByteKernel {
    /// The best one of these instructions, if they have one.
    fn of(instructions: Instructions) -> Option<&'static Self> {
        #[cfg(target_arch = "x86_64")]
        {
            if instructions.has(InstructionSet::Avx512Vnni) {
                return Some(&vnni::KERNEL);
            }
            if instructions.has(InstructionSet::AvxVnni) {
                return Some(&avx2::VNNI_KERNEL);
            }
            if instructions.has(InstructionSet::Avx2) {
                return Some(&avx2::KERNEL);
            }
        }
        let _ = instructions;
        None
    }

    /// All that this CPU can run.
    #[cfg(test)]
    fn all() -> Vec<&'static Self> {
        let all = Instructions::all().iter();
        let mut all: Vec<_> = all
            .filter_map(|&instructions| Self::of(instructions))
            .collect();
        all.dedup_by(|a, b| std::ptr::eq(*a, *b));
        all
    }
}

/// Whether rows are rounded to be multiplied with weights of this format: it stores integers, and these are instructions for
/// them.
pub(crate) fn rounds_rows(instructions: Instructions, format: Format) -> bool {
    kernel_for(instructions, format).is_some()
}

/// The kernel that multiplies weights of this format, and how they are grouped. It is the same for any number of rows.
fn kernel_for(
    instructions: Instructions,
    format: Format,
) -> Option<(&'static ByteKernel, QuantGroups)> {
    let (kernel, groups) = (ByteKernel::of(instructions)?, format.groups()?);
    (groups.bits <= kernel.bits_max).then_some((kernel, groups))
}

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

    /// Multiplies rows of `x`, which are contiguous, by these weights.
    ///
    /// # Safety
    /// The output's columns of all rows are nobody else's.
    pub(super) unsafe fn gemm(
        &self,
        x: &[f32],
        weight: &Weight<'_>,
        out: TileOutput,
        scratch: &mut [f32],
    ) {
        let width = weight.width;
        let done = match x.len() / width {
            // SAFETY: as the caller says.
            1..=FEW_ROWS => unsafe { self.gemm_few(x, weight, out, scratch) },
            _ => 0,
        };
        if done == weight.rows {
            return;
        }
        let (weight, out) = (&weight.rows(done, weight.rows), out.at_column(done));
        let (lanes, tile_columns) = (self.kernel.lanes, self.kernel.columns);
        // As in `linear`: vectors that straddle cache lines take twice as long to load.
        let line = scratch.as_ptr().align_offset(LINE * size_of::<f32>());
        let (packed, scratch) = scratch[line..].split_at_mut(PACKED_LEN);
        let (panel, scratch) = scratch.split_at_mut(PANEL_LEN);
        let (scales, scratch) = scratch.split_at_mut(SCALES_LEN);
        let (loose_scales, scratch) = scratch.split_at_mut(SCALES_LEN);
        let (loose, scratch) = scratch.split_at_mut(PANEL_LEN);
        let rounded = &mut scratch[..ROUNDED_LEN];
        // Words of a panel of rows: bytes, and two values for each group.
        let words = |depth: usize| lanes * (depth / BYTES + 2 * depth / self.groups.len);
        let tiles = (self.kernel.tiles)(self.groups);
        let rows_max = PACKED_LEN / words(DEPTH) * ROWS;
        let count = x.len() / width;
        for first in (0..count).step_by(rows_max) {
            let rows = rows_max.min(count - first);
            let x = &x[first * width..][..rows * width];
            let panels = rows.div_ceil(ROWS);
            // As many blocks of the depth as fit: each row of weights is then read in a long stretch.
            let blocks = (PACKED_LEN / (panels * words(DEPTH))).max(1);
            // Panels of nearly equal size, as in the `f32` kernel.
            let place = |panel: usize| {
                let from = panel * rows / panels;
                (from, (panel + 1) * rows / panels - from)
            };
            for from in (0..width).step_by(blocks * DEPTH) {
                let span = from..width.min(from + blocks * DEPTH);
                // Block after block, panel after panel: the order in which the loops below read them.
                let mut rest = &mut packed[..];
                for from in span.clone().step_by(DEPTH) {
                    let depth = DEPTH.min(span.end - from);
                    for panel in 0..panels {
                        let (row, rows) = place(panel);
                        let (target, after) = rest.split_at_mut(words(depth));
                        rest = after;
                        let x = MatrixRows::new(&x[row * width + from..], width, rows, depth);
                        self.pack(x, rounded, target);
                    }
                }
                // Weights outside, rows inside: a panel's bytes are unpacked once and stay in L1 while all packed rows
                // go past.
                for column in (0..weight.rows).step_by(tile_columns) {
                    let columns = tile_columns.min(weight.rows - column);
                    let weight = weight.rows(column, column + columns);
                    let mut rest = &packed[..];
                    for from in span.clone().step_by(DEPTH) {
                        let depth = DEPTH.min(span.end - from);
                        let groups = depth / self.groups.len;
                        let scales = &mut scales[..2 * tile_columns * groups];
                        let panel = &mut panel[..tile_columns * depth / BYTES];
                        let source = Source {
                            weight: &weight,
                            from,
                            depth,
                        };
                        self.pack_weights(&source, loose, loose_scales, panel, scales);
                        for number in 0..panels {
                            let (row, rows) = place(number);
                            let (x, after) = rest.split_at(words(depth));
                            rest = after;
                            let out = TileOutput {
                                start: out.start.wrapping_add((first + row) * out.stride + column),
                                columns,
                                adds: out.adds || from > 0,
                                ..out
                            };
                            let (x, numbers) = x.split_at(lanes * depth / BYTES);
                            // SAFETY: `of` made sure of the instructions; these are some of the caller's rows and columns.
                            unsafe { tiles[rows - 1](x, numbers, panel, scales, out) };
                        }
                    }
                }
            }
        }
    }

    /// Multiplies few rows by those weights at the beginning whose rows lie beside each other, and returns how many weight
    /// rows those were.
    ///
    /// # Safety
    /// As [`QuantizedGemm::gemm`].
    unsafe fn gemm_few(
        &self,
        x: &[f32],
        weight: &Weight<'_>,
        out: TileOutput,
        scratch: &mut [f32],
    ) -> usize {
        let Some(kernels) = self.interleaved else {
            return 0;
        };
        let mut groups = beside(weight).peekable();
        if groups.peek().is_none() {
            return 0;
        }
        let (words, scratch) = scratch.split_at_mut(x.len() / BYTES);
        let numbers = &mut scratch[..2 * x.len() / self.groups.len];
        // As one row: groups don't straddle rows.
        // SAFETY: `of` made sure of the instructions.
        unsafe {
            let bytes = bytemuck::cast_slice_mut(words);
            (self.kernel.round)(x, bytes, numbers, 0, 1, self.groups.len);
        }
        let kernel = (kernels.multiply_quants)(weight.format)[x.len() / weight.width - 1];
        let rows = RoundedRows { words, numbers };
        let mut done = 0;
        for bytes in groups {
            // SAFETY: `of` made sure of the instructions; the caller vouches for the output.
            unsafe { kernel(rows, bytes, out.at_column(done)) };
            done += ROWS_BESIDE;
        }
        done
    }

    /// Rounds rows of `x` and packs them.
    fn pack(&self, x: MatrixRows<'_>, rounded: &mut [f32], target: &mut [f32]) {
        let (rows, depth, lanes) = (x.count(), x.depth(), self.kernel.lanes);
        let (bytes, numbers) = target.split_at_mut(lanes * depth / BYTES);
        let words = depth / BYTES;
        for row in 0..rows {
            let rounded = bytemuck::cast_slice_mut(&mut rounded[row * words..][..words]);
            // SAFETY: `of` made sure of the instructions.
            unsafe {
                (self.kernel.round)(x.row(row), rounded, numbers, row, lanes, self.groups.len);
            }
        }
        let rounded = MatrixRows::new(rounded, words, rows, words);
        // Words of four bytes are transposed as if they were `f32`, which only moves bits: the lanes of a vector are
        // then the rows.
        self.kernel.words.transpose(rounded, bytes, lanes, 0);
    }

    /// Unpacks the weights' bytes and packs them with their scales and minima.
    fn pack_weights(
        &self,
        source: &Source<'_>,
        loose: &mut [f32],
        loose_scales: &mut [f32],
        panel: &mut [f32],
        scales: &mut [f32],
    ) {
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
        unsafe { (kernels.unpack)(format)(bytes, panel) };
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

/// A part of the depth of a panel's weights.
struct Source<'a> {
    weight: &'a Weight<'a>,
    from: usize,
    depth: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_formats::noise::Noise;

    /// Words that a product of these tests takes of scratch.
    const SCRATCH_LEN: usize = 1 << 20;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let noise = Noise::new(seed);
        (0..count)
            .map(|i| noise.uniform(0, i as u64, 0) as f32 - 0.5)
            .collect()
    }

    fn stored(values: &[f32], format: Format) -> Vec<u8> {
        let mut bytes = vec![0; format.bytes(values.len())];
        quantize::store(format, values, &mut bytes);
        bytes
    }

    /// A row's bytes, and its blocks' scales, as every kernel rounds them.
    fn rounded(row: &[f32]) -> (Vec<i8>, Vec<f32>) {
        let (mut bytes, mut scales) = (Vec::new(), Vec::new());
        for block in row.chunks_exact(BLOCK) {
            let size = block.iter().fold(0.0, |size: f32, x| size.max(x.abs()));
            let inverse = if size > 0.0 { 127.0 / size } else { 0.0 };
            bytes.extend(block.iter().map(|x| (x * inverse).round_ties_even() as i8));
            scales.push(size / 127.0);
        }
        (bytes, scales)
    }

    /// Products of rounded rows, by every kernel that runs here, beside plain sums.
    fn check(x: &[f32], bytes: &[u8], width: usize, format: Format) {
        let groups = format.groups().expect("formats with groups are asked for");
        let rows = x.len() / width;
        let columns = bytes.len() / format.bytes(width);
        let weight = Weight {
            format,
            rows: columns,
            width,
            data: WeightData::Host(bytes),
            weights_version: 0,
        };
        let mut widened = vec![0.0; columns * width];
        format.dequantize(bytes, &mut widened);
        let x_rounded: Vec<f64> = (x.chunks_exact(width))
            .flat_map(|row| {
                let (bytes, scales) = rounded(row);
                let numbers = bytes.into_iter().enumerate();
                let numbers =
                    numbers.map(|(k, byte)| f64::from(byte) * f64::from(scales[k / BLOCK]));
                numbers.collect::<Vec<_>>()
            })
            .collect();
        let stride = columns + 3;
        let mut scratch = vec![0.0; SCRATCH_LEN];
        let kernels = ByteKernel::all().into_iter();
        for kernel in kernels.filter(|kernel| groups.bits <= kernel.bits_max) {
            for adds in [false, true] {
                let mut out = vec![1.0; rows * stride];
                let target = TileOutput {
                    start: out.as_mut_ptr(),
                    stride,
                    columns,
                    adds,
                };
                let products = QuantizedGemm {
                    kernel,
                    groups,
                    interleaved: None,
                };
                // SAFETY: the output has all rows and columns, and nobody else has it.
                unsafe { products.gemm(x, &weight, target, &mut scratch) };
                for (index, found) in out.into_iter().enumerate() {
                    let (row, column) = (index / stride, index % stride);
                    if column >= columns {
                        assert!(found == 1.0, "written beyond the columns");
                        continue;
                    }
                    let x = &x_rounded[row * width..][..width];
                    let products = x.iter().zip(&widened[column * width..][..width]);
                    let products = products.map(|(x, w)| x * f64::from(*w));
                    let (sum, sizes) = products.fold((0.0, 0.0), |(sum, sizes), product| {
                        (sum + product, sizes + product.abs())
                    });
                    let expected = sum + f64::from(u8::from(adds));
                    assert!(
                        (f64::from(found) - expected).abs() <= 3e-6 * (sizes + 1.0),
                        "{} of {rows} rows at {row}, {column}: {found} for {expected}",
                        format.name()
                    );
                }
            }
        }
    }

    fn formats() -> impl Iterator<Item = Format> {
        (Format::ALL.into_iter()).filter(|format| format.groups().is_some())
    }

    /// For every tile, some beside each other, parts of panels, and more than a block of the depth.
    #[test]
    fn kernels_equal_a_plain_sum() {
        for format in formats() {
            for rows in 1..=2 * ROWS + 1 {
                for (blocks, columns) in [(1, 1), (1, 33), (3, COLUMNS_MAX + 13)] {
                    let width = 256 * blocks;
                    let weights = stored(&numbers(columns * width, 2), format);
                    check(&numbers(rows * width, 1), &weights, width, format);
                }
            }
        }
    }

    /// Blocks that end before a block of the depth does.
    #[test]
    fn kernels_equal_a_plain_sum_of_few_groups() {
        for format in formats().filter(|format| format.block_len() == BLOCK) {
            for rows in [1, 5] {
                let weights = stored(&numbers(20 * 3 * BLOCK, 2), format);
                check(&numbers(rows * 3 * BLOCK, 1), &weights, 3 * BLOCK, format);
            }
        }
    }

    /// What is added up in 16 bits fits there even so.
    #[test]
    fn the_largest_products_fit() {
        const WIDTH: usize = 512;
        const COLUMNS: usize = 17;
        for format in formats() {
            let group = format.groups().map_or(1, |groups| groups.len);
            // One at the other end, for scales and minima to span.
            let weights: Vec<f32> = (0..COLUMNS * WIDTH)
                .map(|k| if k % group == 0 { -1.0 } else { 1.0 })
                .collect();
            let mut weights = stored(&weights, format);
            if format == Format::Q8_0 {
                for block in weights.chunks_exact_mut(format.block_bytes()) {
                    // -128, which rounding never comes to.
                    block[2..].fill(0x80);
                }
            }
            for x in [1.0, -1.0] {
                for rows in [1, ROWS] {
                    check(&vec![x; rows * WIDTH], &weights, WIDTH, format);
                }
            }
        }
    }

    #[test]
    fn rows_are_rounded_alike() {
        let mut x = numbers(4 * BLOCK, 3);
        x[BLOCK..2 * BLOCK].fill(0.0);
        // Halves, which are rounded to even.
        let halves = (0..BLOCK).map(|k| k as f32 - 15.5);
        x.splice(2 * BLOCK..3 * BLOCK, halves);
        x[2 * BLOCK] = 127.0;
        let (expected, expected_scales) = rounded(&x);
        for kernel in ByteKernel::all() {
            for group in [16, BLOCK] {
                let groups = x.len() / group;
                let mut bytes = vec![0; x.len()];
                let mut numbers = vec![0.0; 2 * groups * kernel.lanes];
                // SAFETY: the CPU runs the kernel.
                unsafe { (kernel.round)(&x, &mut bytes, &mut numbers, 1, kernel.lanes, group) };
                assert_eq!(bytes, expected);
                for (index, numbers) in numbers.chunks_exact(2 * kernel.lanes).enumerate() {
                    let scale = expected_scales[index * group / BLOCK];
                    let sum: i32 = (expected[index * group..][..group].iter())
                        .map(|&byte| i32::from(byte))
                        .sum();
                    assert_eq!(numbers[1], scale);
                    assert_eq!(numbers[kernel.lanes + 1], scale * sum as f32);
                }
            }
        }
    }
}
