//! Products of pairs of bf16 by AVX-512's instruction for them, in tiles of 12 × 32 as those of `f32`. A word is a pair of
//! inputs of one row, so that words are packed as `f32` are. 16 rows of bf16 weights that lie beside each other are words in
//! the order of their multiplication: they are read where they lie.
//!
//! Sums of pairs are added up from the first one of a block of the depth to its last, so that an output doesn't depend on how
//! many rows there are.

use std::{arch::x86_64::*, mem};

use sluice_machine::tiles::{Amx, COLUMNS, ROWS};

use super::{
    MatrixRows, RowPanels, TileOutput,
    avx512::{KERNEL, prefetch_output, vector, write},
    pairs::{PairKernel, PairLanes, pairs},
    tiles::{BesideTiles, TilePairs},
};

/// Lanes of a vector: rows of weights that lie beside each other, and rows of `x` in a panel.
const VECTOR: usize = 16;

/// Bytes ahead of what is multiplied that weights are prefetched: a page, at whose end the hardware's own prefetching stops.
/// Measured on Zen 5 with one thread and 4096 x 4096: a fifth off for a row, a third for eight and for 32.
const AHEAD: usize = 4096;

/// A tile for the number of rows that the function is compiled for.
type TileOf = unsafe fn(x: &[[f32; VECTOR]], weights: [&[PairLanes]; 2], out: TileOutput);

/// The kernel of AVX-512's products of bf16.
pub(super) static PAIRS: Pairs = Pairs;

/// The kernel of AMX, beside whose tiles these vectors round and add.
pub(super) static TILES: TilePairs<Amx> = TilePairs::NEW;

pub(super) struct Pairs;

impl PairKernel for Pairs {
    fn panel_rows(&self) -> usize {
        KERNEL.rows
    }

    fn panel_words(&self, depth: usize) -> usize {
        VECTOR * pairs(depth)
    }

    unsafe fn pack_rows(&self, x: MatrixRows<'_>, packed: &mut [f32], loose: &mut [f32]) {
        let words = pairs(x.depth);
        for (row, out) in loose.chunks_exact_mut(words).take(x.count).enumerate() {
            // SAFETY: as the caller says, as for all that follow.
            unsafe { round_to_pairs(x.row(row), out) };
        }
        let loose = MatrixRows::new(loose, words, x.count, words);
        KERNEL.transpose(loose, packed, VECTOR, 0);
    }

    unsafe fn round(&self, values: &[f32], words: &mut [f32]) {
        // SAFETY: see above.
        unsafe { round_to_pairs(values, words) };
    }

    unsafe fn pair_inputs(&self, inputs: MatrixRows<'_>, lane: usize, words: &mut [f32]) {
        // SAFETY: see above.
        unsafe { pair_inputs(inputs, lane, words) };
    }

    unsafe fn gemm_panel(
        &self,
        rows: &RowPanels,
        packed: &[f32],
        weights: [&[PairLanes]; 2],
        out: TileOutput,
    ) {
        // SAFETY: see above.
        unsafe { gemm_panel(rows, packed, weights, out) };
    }
}

impl BesideTiles for Amx {
    unsafe fn round(values: &[f32], words: &mut [f32]) {
        // SAFETY: as the caller says, as for all that follow; the CPU has these instructions where it has AMX.
        unsafe { round_to_pairs(values, words) };
    }

    unsafe fn round_row(values: &[f32], row: usize, panel: &mut [[[f32; VECTOR]; ROWS]]) {
        // SAFETY: see above.
        unsafe { round_row(values, row, panel) };
    }

    unsafe fn pair_inputs(inputs: MatrixRows<'_>, lane: usize, words: &mut [f32]) {
        // SAFETY: see above.
        unsafe { pair_inputs(inputs, lane, words) };
    }

    unsafe fn write(sums: &[[f32; COLUMNS]], out: TileOutput) {
        // SAFETY: see above.
        unsafe { write_sums(sums, out) };
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn round_to_pairs(values: &[f32], words: &mut [f32]) {
    assert_eq!(words.len(), pairs(values.len()));
    let (whole, rest) = values.as_chunks::<VECTOR>();
    let (words, words_left) = words.split_at_mut(VECTOR / 2 * whole.len());
    let (words, _) = words.as_chunks_mut::<{ VECTOR / 2 }>();
    for (values, words) in whole.iter().zip(words) {
        *words = rounded(values);
    }
    // What a half empty pair lacks is zero, which adds nothing.
    let mut values = [0.0; VECTOR];
    values[..rest.len()].copy_from_slice(rest);
    words_left.copy_from_slice(&rounded(&values)[..words_left.len()]);
}

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn round_row(values: &[f32], row: usize, panel: &mut [[[f32; VECTOR]; ROWS]]) {
    let (whole, rest) = values.as_chunks::<{ 2 * VECTOR }>();
    let (panel, last) = panel.split_at_mut(whole.len());
    for (values, lines) in whole.iter().zip(panel) {
        lines[row] = rounded_line(values);
    }
    if let [lines] = last {
        let mut values = [0.0; 2 * VECTOR];
        values[..rest.len()].copy_from_slice(rest);
        lines[row] = rounded_line(&values);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn rounded_line(values: &[f32; 2 * VECTOR]) -> [f32; VECTOR] {
    let (halves, _) = values.as_chunks();
    // SAFETY: as many bytes, of any bits.
    unsafe { mem::transmute([rounded(&halves[0]), rounded(&halves[1])]) }
}

/// Writes the sums of rows, or adds them.
#[target_feature(enable = "avx512f")]
unsafe fn write_sums(sums: &[[f32; COLUMNS]], out: TileOutput) {
    for (row, sums) in sums.iter().enumerate() {
        let (halves, _) = sums.as_chunks();
        let sums = [vector(&halves[0]), vector(&halves[1])];
        // SAFETY: as the caller says.
        unsafe { write(&[sums], out.at_row(row)) };
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn rounded(values: &[f32; VECTOR]) -> [f32; VECTOR / 2] {
    // SAFETY: as many bytes, of any bits.
    unsafe { mem::transmute(_mm512_cvtneps_pbh(vector(values))) }
}

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn pair_inputs(inputs: MatrixRows<'_>, lane: usize, words: &mut [f32]) {
    assert_eq!(words.len(), VECTOR * pairs(inputs.count));
    let input = |index: usize| {
        if index == inputs.count {
            return [0.0; VECTOR];
        }
        let values = &inputs.row(index)[lane..];
        values.first_chunk().copied().unwrap_or_else(|| {
            let mut padded = [0.0; VECTOR];
            padded[..values.len()].copy_from_slice(values);
            padded
        })
    };
    let (words, _) = words.as_chunks_mut::<VECTOR>();
    for (pair, words) in words.iter_mut().enumerate() {
        let halves = [2 * pair, 2 * pair + 1].map(input);
        let [low, high] = [wide(&halves[0]), wide(&halves[1])];
        let both = _mm512_or_si512(low, _mm512_slli_epi32::<16>(high));
        // SAFETY: as many bytes, of any bits.
        *words = unsafe { mem::transmute::<__m512i, [f32; VECTOR]>(both) };
    }
}

/// Numbers rounded, each in the low half of its lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn wide(values: &[f32; VECTOR]) -> __m512i {
    // SAFETY: as many bytes, of any bits.
    let halves = unsafe { mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(vector(values))) };
    _mm512_cvtepu16_epi32(halves)
}

unsafe fn gemm_panel(
    rows: &RowPanels,
    packed: &[f32],
    weights: [&[PairLanes]; 2],
    out: TileOutput,
) {
    const TILES: [TileOf; 12] = [
        tile_of::<1>,
        tile_of::<2>,
        tile_of::<3>,
        tile_of::<4>,
        tile_of::<5>,
        tile_of::<6>,
        tile_of::<7>,
        tile_of::<8>,
        tile_of::<9>,
        tile_of::<10>,
        tile_of::<11>,
        tile_of::<12>,
    ];
    let panels = packed.chunks_exact(VECTOR * weights[0].len());
    for ((first, count), x) in rows.iter().zip(panels) {
        let (x, _) = x.as_chunks();
        // SAFETY: as the caller says.
        unsafe { TILES[count - 1](x, weights, out.at_row(first)) };
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile_of<const ROWS: usize>(
    x: &[[f32; VECTOR]],
    [low, high]: [&[PairLanes]; 2],
    out: TileOutput,
) {
    prefetch_output::<ROWS>(out);
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (x, (low, high)) in x.iter().zip(low.iter().zip(high)) {
        for weights in [low, high] {
            _mm_prefetch::<_MM_HINT_T0>(weights.as_ptr().wrapping_add(AHEAD).cast());
        }
        let (low, high) = (words(low), words(high));
        for row in 0..ROWS {
            let x = _mm512_set1_epi32(x[row].to_bits().cast_signed());
            // SAFETY: as many bytes, of any bits.
            let x = unsafe { mem::transmute::<__m512i, __m512bh>(x) };
            sums[row][0] = _mm512_dpbf16_ps(sums[row][0], x, low);
            sums[row][1] = _mm512_dpbf16_ps(sums[row][1], x, high);
        }
    }
    // SAFETY: as the caller says.
    unsafe { write(&sums, out) };
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn words(words: &PairLanes) -> __m512bh {
    // SAFETY: as many bytes, of any bits.
    unsafe { mem::transmute(*words) }
}

#[cfg(test)]
mod tests {
    use sluice_machine::{InstructionSet, Instructions, tiles::Model};

    use super::*;

    /// What vectors do beside AMX's tiles, on any CPU that has them.
    #[test]
    fn vectors_beside_tiles_do_what_their_model_does() {
        if Instructions::of(InstructionSet::Avx512Bf16).is_none() {
            return;
        }
        let values: Vec<f32> = (0..83).map(|at| (at as f32 - 40.3) / 7.0).collect();
        for depth in [1, 2, 31, 32, 33, 83] {
            let mut panels = [[[[7.0; VECTOR]; ROWS]; 3]; 2];
            let [found, expected] = &mut panels;
            let steps = pairs(depth).div_ceil(VECTOR);
            // SAFETY: the CPU has the instructions.
            unsafe {
                Amx::round_row(&values[..depth], 5, &mut found[..steps]);
                Model::round_row(&values[..depth], 5, &mut expected[..steps]);
            }
            assert_eq!(found, expected);
        }
        let sums: Vec<[f32; COLUMNS]> = (0..2)
            .map(|row| std::array::from_fn(|column| values[row * COLUMNS + column]))
            .collect();
        for (columns, adds) in [(32, false), (32, true), (17, false), (3, true)] {
            let mut outs = [[1.0; 80]; 2];
            for (out, write) in outs.iter_mut().zip([Amx::write, Model::write]) {
                let target = TileOutput {
                    start: out.as_mut_ptr(),
                    stride: 40,
                    columns,
                    adds,
                };
                // SAFETY: the CPU has the instructions, and the output has these rows and columns.
                unsafe { write(&sums, target) };
            }
            assert_eq!(outs[0], outs[1]);
        }
    }
}
