//! Products in whole numbers, for formats whose weights are bytes in groups: rows of `x` are rounded to 8 bits in groups of
//! 32, as llama.cpp rounds them, and what is added up within a group is exact. Weights stay bytes in a thread's scratch, so
//! that little is written and read there, and an instruction multiplies four times as many as of `f32`. Every
//! number of rows is rounded alike, so that a row depends on those beside it by the order of sums alone.

#[cfg(target_arch = "x86_64")]
mod vnni;

use super::kernel::{Kernel, Output, Rows};
use crate::{
    format::Format,
    residency::{Data, Weight},
};

/// Numbers of the depth that are multiplied at a time: 20 KiB of a panel of weights.
const DEPTH: usize = 512;
/// Numbers that share a scale in rows of `x`.
const BLOCK: usize = 32;
/// Bytes in a word of four that are multiplied together.
const BYTES: usize = 4;
/// Words of a packed row's place in a panel of rows.
const LANES: usize = 16;
/// Rows of `x` that a tile of the output has, at most.
const ROWS: usize = 6;
/// Weight rows in a panel.
const COLUMNS: usize = 32;

/// Words that packed rows take at a time.
const PACKED_LEN: usize = 1 << 18;
/// Words of a panel's bytes, and of its scales and minima where groups are the smallest.
const PANEL_LEN: usize = COLUMNS * DEPTH / BYTES;
const SCALES_LEN: usize = 2 * COLUMNS * DEPTH / GROUP_MIN;
const GROUP_MIN: usize = 16;
/// Words of the rows of a panel as they are rounded, in the order of `x`.
const ROUNDED_LEN: usize = ROWS * DEPTH / BYTES;
const LINE: usize = 16;

/// How a format's weights are multiplied so.
pub(super) struct Products {
    kernel: &'static Kernel,
    group: usize,
}

/// Whether rows are rounded to be multiplied with weights of this format: it has whole numbers, and the CPU instructions for
/// their products.
pub(in crate::ops) fn rounds_rows(format: Format) -> bool {
    #[cfg(target_arch = "x86_64")]
    let able = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni");
    #[cfg(not(target_arch = "x86_64"))]
    let able = false;
    able && format.group_len().is_some()
}

impl Products {
    /// Those of a format that has some, where the CPU has instructions for it.
    pub(super) fn of(weight: &Weight<'_>) -> Option<Self> {
        let group = weight.format.group_len()?;
        (rounds_rows(weight.format) && matches!(weight.data, Data::Host(_))).then(|| Self {
            kernel: Kernel::best(),
            group,
        })
    }

    /// Products of rows of `x`, which lie together, and these weights.
    ///
    /// # Safety
    /// The output's columns of all rows are nobody else's.
    pub(super) unsafe fn multiply(
        &self,
        x: &[f32],
        weight: &Weight<'_>,
        out: Output,
        scratch: &mut [f32],
    ) {
        let width = weight.width;
        if x.len() == width {
            // SAFETY: as the caller says.
            return unsafe { self.dot(x, weight, out, scratch) };
        }
        let line = scratch.as_ptr().align_offset(LINE * size_of::<f32>());
        let (packed, scratch) = scratch[line..].split_at_mut(PACKED_LEN);
        let (panel, scratch) = scratch.split_at_mut(PANEL_LEN);
        let (scales, scratch) = scratch.split_at_mut(SCALES_LEN);
        let (loose_scales, scratch) = scratch.split_at_mut(SCALES_LEN);
        let (loose, scratch) = scratch.split_at_mut(PANEL_LEN);
        let rounded = &mut scratch[..ROUNDED_LEN];
        // Of a panel of rows: bytes, and two numbers for each group.
        let words = |depth: usize| LANES * (depth / BYTES + 2 * depth / self.group);
        let rows_max = PACKED_LEN / words(DEPTH) * ROWS;
        let count = x.len() / width;
        for first in (0..count).step_by(rows_max) {
            let rows = rows_max.min(count - first);
            let x = &x[first * width..][..rows * width];
            let panels = rows.div_ceil(ROWS);
            let blocks = (PACKED_LEN / (panels * words(DEPTH))).max(1);
            let place = |panel: usize| {
                let from = panel * rows / panels;
                (from, (panel + 1) * rows / panels - from)
            };
            for from in (0..width).step_by(blocks * DEPTH) {
                let span = from..width.min(from + blocks * DEPTH);
                // Block after block, panel after panel.
                let mut rest = &mut packed[..];
                for from in span.clone().step_by(DEPTH) {
                    let depth = DEPTH.min(span.end - from);
                    for panel in 0..panels {
                        let (row, rows) = place(panel);
                        let (target, after) = rest.split_at_mut(words(depth));
                        rest = after;
                        let x = Rows::new(&x[row * width + from..], width, rows, depth);
                        self.pack(x, rounded, target);
                    }
                }
                for column in (0..weight.rows).step_by(COLUMNS) {
                    let columns = COLUMNS.min(weight.rows - column);
                    let weight = weight.rows(column, column + columns);
                    let mut rest = &packed[..];
                    for from in span.clone().step_by(DEPTH) {
                        let depth = DEPTH.min(span.end - from);
                        let groups = depth / self.group;
                        let scales = &mut scales[..2 * COLUMNS * groups];
                        let panel = &mut panel[..COLUMNS * depth / BYTES];
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
                            let out = Output {
                                start: out.start.wrapping_add((first + row) * out.stride + column),
                                columns,
                                adds: out.adds || from > 0,
                                ..out
                            };
                            let (x, numbers) = x.split_at(LANES * depth / BYTES);
                            // SAFETY: `of` made sure of the instructions; these are some of the caller's rows and columns.
                            unsafe {
                                self.tile(rows, x, numbers, panel, scales, out);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Products of a single row and these weights, each of them by itself: packing would take longer than multiplying.
    ///
    /// # Safety
    /// The output's columns are nobody else's.
    #[cfg(target_arch = "x86_64")]
    unsafe fn dot(&self, x: &[f32], weight: &Weight<'_>, out: Output, scratch: &mut [f32]) {
        // Whole blocks of the depth: what is beyond the row is zero.
        let padded = x.len().next_multiple_of(DEPTH);
        let groups = padded / self.group;
        let line = scratch.as_ptr().align_offset(LINE * size_of::<f32>());
        let (bytes, rest) = scratch[line..].split_at_mut(padded / BYTES);
        let (numbers, rest) = rest.split_at_mut(2 * groups);
        let both = &mut rest[..2 * groups];
        bytes.fill(0.0);
        both.fill(0.0);
        let bytes = bytemuck::cast_slice_mut(bytes);
        // SAFETY: `of` made sure of the instructions.
        unsafe { vnni::round(x, bytes, both, 0, 1, self.group) };
        let (scales, sums) = numbers.split_at_mut(groups);
        for (group, both) in both.as_chunks::<2>().0.iter().enumerate() {
            [scales[group], sums[group]] = *both;
        }
        let x = vnni::Row {
            bytes,
            scales,
            others: sums,
        };
        let format = weight.format;
        let dot = match self.group {
            16 => vnni::dot::<4>,
            _ => vnni::dot::<2>,
        };
        // Whole rows are unpacked before they are multiplied: what was stored a moment ago, in shorter pieces, is slow to load.
        let (loose, rest) = rest[2 * groups..].split_at_mut(padded / BYTES);
        let (scales, rest) = rest.split_at_mut(groups);
        let minima = &mut rest[..groups];
        loose.fill(0.0);
        scales.fill(0.0);
        minima.fill(0.0);
        let loose: &mut [u8] = bytemuck::cast_slice_mut(loose);
        let held = weight.width / self.group;
        let stride = format.bytes(weight.width);
        for (column, bytes) in weight.bytes().chunks_exact(stride).enumerate() {
            let target = &mut loose[..weight.width];
            format.quants(bytes, target, &mut scales[..held], &mut minima[..held]);
            let row = vnni::Row {
                bytes: &*loose,
                scales: &*scales,
                others: &*minima,
            };
            // SAFETY: `of` made sure of the instructions.
            let mut sum = unsafe { dot(&row, &x) };
            let place = out.start.wrapping_add(column);
            // SAFETY: as the caller says.
            unsafe {
                if out.adds {
                    sum += *place;
                }
                *place = sum;
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn dot(&self, _: &[f32], _: &Weight<'_>, _: Output, _: &mut [f32]) {
        unreachable!("no products of this kind here");
    }

    /// Rounds and packs rows of `x`.
    fn pack(&self, x: Rows<'_>, rounded: &mut [f32], target: &mut [f32]) {
        let (rows, depth) = (x.count(), x.depth());
        let (bytes, numbers) = target.split_at_mut(LANES * depth / BYTES);
        let words = depth / BYTES;
        for row in 0..rows {
            let rounded = bytemuck::cast_slice_mut(&mut rounded[row * words..][..words]);
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `of` made sure of the instructions.
            unsafe {
                vnni::round(x.row(row), rounded, numbers, row, LANES, self.group);
            }
        }
        let rounded = Rows::new(rounded, words, rows, words);
        self.kernel.transpose(rounded, bytes, LANES);
    }

    /// Unpacks bytes of weights and packs them anew, with their scales and minima.
    fn pack_weights(
        &self,
        source: &Source<'_>,
        loose: &mut [f32],
        loose_scales: &mut [f32],
        panel: &mut [f32],
        scales: &mut [f32],
    ) {
        let (weight, depth) = (source.weight, source.depth);
        let (format, groups, words) = (weight.format, depth / self.group, depth / BYTES);
        let stride = format.bytes(weight.width);
        let part = format.bytes(source.from)..format.bytes(source.from + depth);
        for row in 0..weight.rows {
            let bytes = &weight.bytes()[row * stride..][part.clone()];
            let out = bytemuck::cast_slice_mut(&mut loose[row * words..][..words]);
            let both = &mut loose_scales[row * 2 * groups..][..2 * groups];
            let (scales, minima) = both.split_at_mut(groups);
            format.quants(bytes, out, scales, minima);
        }
        let bytes = Rows::new(loose, words, weight.rows, words);
        self.kernel.transpose(bytes, panel, COLUMNS);
        let both = Rows::new(loose_scales, 2 * groups, weight.rows, 2 * groups);
        self.kernel.transpose(both, scales, COLUMNS);
    }

    /// # Safety
    /// The CPU has the instructions, and the output's columns of these rows are nobody else's.
    #[cfg(target_arch = "x86_64")]
    unsafe fn tile(
        &self,
        rows: usize,
        x: &[f32],
        numbers: &[f32],
        panel: &[f32],
        scales: &[f32],
        out: Output,
    ) {
        let tiles = match self.group {
            16 => &vnni::TILES_OF_16,
            _ => &vnni::TILES_OF_32,
        };
        // SAFETY: as the caller says.
        unsafe { (tiles[rows - 1])(x, numbers, panel, scales, out) };
    }

    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn tile(&self, _: usize, _: &[f32], _: &[f32], _: &[f32], _: &[f32], _: Output) {
        unreachable!("no products of this kind here");
    }
}

/// A part of the depth of a panel's weights.
struct Source<'a> {
    weight: &'a Weight<'a>,
    from: usize,
    depth: usize,
}
