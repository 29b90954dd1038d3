//! Products of pairs of bf16 by AVX-512's instruction for them, in tiles of 12 × 32 as those of `f32`. A word is a pair of
//! inputs of one row, so that words are packed as `f32` are. 16 rows of bf16 weights that lie beside each other are words in
//! the order of their multiplication: they are read where they lie.
//!
//! Sums of pairs are added up from the first one of a block of the depth to its last, so that an output doesn't depend on how
//! many rows there are.

use std::{arch::x86_64::*, mem};

use super::{
    MatrixRows, RowPanels, TileOutput,
    avx512::{prefetch_output, vector, write},
    pairs::{PairKernel, PairLanes, pairs},
};

/// Lanes of a vector: rows of weights that lie beside each other, and rows of `x` in a panel.
const VECTOR: usize = 16;

/// Bytes ahead of what is multiplied that weights are prefetched: a page, at whose end the hardware's own prefetching stops.
/// Measured on Zen 5 with one thread and 4096 x 4096: a fifth off for a row, a third for eight and for 32.
const AHEAD: usize = 4096;

/// A tile for the number of rows that the function is compiled for.
type TileOf = unsafe fn(x: &[[f32; VECTOR]], weights: [&[PairLanes]; 2], out: TileOutput);

pub(super) static PAIRS: PairKernel = PairKernel {
    round: round_to_pairs,
    pair_inputs,
    gemm_panel,
};

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
