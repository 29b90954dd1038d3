//! Tiles of 6 × 32 by AVX-512's byte dot products (VNNI): 12 sums, and as many integer sums of the present group.

use std::{arch::x86_64::*, mem};

use super::{
    BLOCK, ByteKernel, Tile, TileOutput,
    microkernel::avx512::{KERNEL as WORDS, write},
};

const VECTOR: usize = 16;
const LANES: usize = super::ROWS;
const COLUMNS: usize = 2 * VECTOR;

pub(super) static KERNEL: ByteKernel = ByteKernel {
    lanes: LANES,
    columns: COLUMNS,
    words: &WORDS,
    round,
    wide_bits: None,
    tiles: |groups| match groups.len {
        16 => &TILES_OF_16,
        _ => &TILES_OF_32,
    },
};

/// For one row and more, where groups are 16 weights, four words.
static TILES_OF_16: [Tile; super::ROWS] = [
    tile::<1, 4>,
    tile::<2, 4>,
    tile::<3, 4>,
    tile::<4, 4>,
    tile::<5, 4>,
    tile::<6, 4>,
];

/// The same for groups of 32.
static TILES_OF_32: [Tile; super::ROWS] = [
    tile::<1, 8>,
    tile::<2, 8>,
    tile::<3, 8>,
    tile::<4, 8>,
    tile::<5, 8>,
    tile::<6, 8>,
];

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn tile<const ROWS: usize, const STEPS: usize>(
    x: &[f32],
    elements: &[f32],
    panel: &[f32],
    scales: &[f32],
    out: TileOutput,
) {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    let x = x.as_chunks::<LANES>().0.as_chunks::<STEPS>().0;
    let numbers = elements.as_chunks::<LANES>().0.as_chunks::<2>().0;
    let panel = panel.as_chunks::<COLUMNS>().0.as_chunks::<STEPS>().0;
    let (scales, minima) = scales.split_at(scales.len() / 2);
    let (scales, _) = scales.as_chunks::<COLUMNS>();
    let (minima, _) = minima.as_chunks::<COLUMNS>();
    let groups = x.iter().zip(panel).zip(numbers);
    for (((x, weights), [x_scales, x_sums]), (scales, minima)) in
        groups.zip(scales.iter().zip(minima))
    {
        let mut whole = [[_mm512_setzero_si512(); 2]; ROWS];
        for (x, weights) in x.iter().zip(weights) {
            let weights = halves(weights).map(|half| _mm512_castps_si512(half));
            for row in 0..ROWS {
                let x = _mm512_set1_epi32(x[row].to_bits().cast_signed());
                // `dpbusd` takes unsigned by signed bytes: weights are stored without sign, with a minimum, so they are
                // the first operand. It adds in 32 bits, without the saturation that AVX2's form has.
                whole[row][0] = _mm512_dpbusd_epi32(whole[row][0], weights[0], x);
                whole[row][1] = _mm512_dpbusd_epi32(whole[row][1], weights[1], x);
            }
        }
        let (scales, minima) = (halves(scales), halves(minima));
        // w = scale · q + minimum, so a group adds scale · x_scale · Σ q·x and minimum · (x_scale · Σ x).
        for row in 0..ROWS {
            let scale = _mm512_set1_ps(x_scales[row]);
            let sum = _mm512_set1_ps(x_sums[row]);
            for half in 0..2 {
                let both = _mm512_mul_ps(scale, scales[half]);
                let products = _mm512_cvtepi32_ps(whole[row][half]);
                let so_far = _mm512_fmadd_ps(sum, minima[half], sums[row][half]);
                sums[row][half] = _mm512_fmadd_ps(products, both, so_far);
            }
        }
    }
    // SAFETY: as the caller says.
    unsafe { write(&sums, out) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn halves(values: &[f32; COLUMNS]) -> [__m512; 2] {
    // SAFETY: two vectors are elements beside each other, of any bits.
    unsafe { mem::transmute(*values) }
}

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn round(
    x: &[f32],
    bytes: &mut [i8],
    elements: &mut [f32],
    row: usize,
    lanes: usize,
    group: usize,
) {
    let (x, _) = x.as_chunks::<BLOCK>();
    let (bytes, _) = bytes.as_chunks_mut::<BLOCK>();
    let per_block = 2 * lanes * BLOCK / group;
    for ((x, bytes), numbers) in x
        .iter()
        .zip(bytes)
        .zip(elements.chunks_exact_mut(per_block))
    {
        let x = halves(x);
        let size = _mm512_max_ps(_mm512_abs_ps(x[0]), _mm512_abs_ps(x[1]));
        let odd = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x[0], x[1]);
        // NaN must stay NaN: `max` would return the other operand and hide it.
        let size = match odd {
            0 => _mm512_reduce_max_ps(size),
            _ => f32::NAN,
        };
        let scale = size / 127.0;
        // False for NaN, too: the bytes are zero then, and the scale carries the NaN into the result.
        let inverse = match scale > 0.0 {
            true => _mm512_set1_ps(127.0 / size),
            false => _mm512_setzero_ps(),
        };
        let mut sums = [0; 2];
        for half in 0..2 {
            let whole = _mm512_cvtps_epi32(_mm512_mul_ps(x[half], inverse));
            sums[half] = _mm512_reduce_add_epi32(whole);
            // SAFETY: a vector of bytes is as many bytes.
            let narrow: [i8; VECTOR] = unsafe { mem::transmute(_mm512_cvtepi32_epi8(whole)) };
            bytes[VECTOR * half..][..VECTOR].copy_from_slice(&narrow);
        }
        // Rows share a scale in groups of 32; where weights have a scale for each 16, so do the sums.
        if group == BLOCK {
            sums[0] = sums[0].wrapping_add(sums[1]);
        }
        for (numbers, sum) in numbers.chunks_exact_mut(2 * lanes).zip(sums) {
            numbers[row] = scale;
            numbers[lanes + row] = scale * sum as f32;
        }
    }
}
