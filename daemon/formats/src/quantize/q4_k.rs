//! `q4_k`: scales and minima of 8 groups of 32, found as ggml's `make_qkx1_quants` does: at most five rounds of
//! rounding the weights and fitting a line to them.

use half::f16;

use super::{
    super::blocks::{K_WEIGHTS, Q4_K_BYTES, widest},
    lanes::{Groups, any, beside, clamp, low_byte, mask, nearest, pick},
};

/// Weights in a group.
const LEN: usize = 32;
/// Groups in a block.
const GROUPS: usize = K_WEIGHTS / LEN;
/// Blocks whose groups are searched at once: enough lanes to hide the latency of sums.
const BLOCKS: usize = 4;
/// The largest quant, and the largest scale: four and six bits.
const QUANT_MAX: f32 = 15.0;
const SCALE_MAX: f32 = 63.0;

/// Quantizes whole blocks.
pub(super) fn quantize(values: &[f32], bytes: &mut [u8]) {
    widest!(all(values: &[f32], bytes: &mut [u8]));
}

#[inline(always)]
pub(super) fn all(values: &[f32], bytes: &mut [u8]) {
    let (several, rest) = values.as_chunks::<{ BLOCKS * K_WEIGHTS }>();
    let (several_out, rest_out) = bytes.as_chunks_mut::<{ BLOCKS * Q4_K_BYTES }>();
    for (values, bytes) in several.iter().zip(several_out) {
        some::<{ BLOCKS * GROUPS }>(values, bytes);
    }
    let (values, rest) = rest.as_chunks::<K_WEIGHTS>();
    let (blocks, rest_out) = rest_out.as_chunks_mut::<Q4_K_BYTES>();
    assert!(rest.is_empty() && rest_out.is_empty() && values.len() == blocks.len());
    for (values, block) in values.iter().zip(blocks) {
        some::<GROUPS>(values, block);
    }
}

/// Quantizes blocks with `LANES` groups in all.
#[inline(always)]
fn some<const LANES: usize>(values: &[f32], bytes: &mut [u8]) {
    let (scales, minima) = search::<LANES>(&beside(values));
    let blocks = bytes.as_chunks_mut().0.iter_mut();
    let scales = scales.as_chunks().0.iter().zip(minima.as_chunks().0);
    for ((block, values), (scales, minima)) in blocks.zip(values.as_chunks().0).zip(scales) {
        write(block, values, scales, minima);
    }
}

/// Each group's scale, and its minimum's distance below zero.
#[inline(always)]
fn search<const LANES: usize>(x: &Groups<LANES, LEN>) -> ([f32; LANES], [f32; LANES]) {
    // Compared in the total order of floats, which decides what becomes of NaN.
    let (mut lowest, mut highest) = ([i32::MAX; LANES], [i32::MIN; LANES]);
    for x in x {
        for lane in 0..LANES {
            let key = key(x[lane]);
            lowest[lane] = lowest[lane].min(key);
            highest[lane] = highest[lane].max(key);
        }
    }
    let (mut scale, mut min, mut inverse) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    let mut is_done = [0; LANES];
    for lane in 0..LANES {
        let (low, high) = (from_key(lowest[lane]), from_key(highest[lane]));
        // A group of equal weights gets scale and minimum 0, as in ggml.
        is_done[lane] = mask(low == high);
        let low = if low < 0.0 { low } else { 0.0 };
        min[lane] = pick(is_done[lane], 0.0, low);
        inverse[lane] = QUANT_MAX / (high - low);
    }
    let mut quants = [[0.0f32; LANES]; LEN];
    // Groups that have converged are kept by masks; the loop ends when all have.
    for _ in 0..5 {
        let mut is_changed = [0; LANES];
        let (mut products, mut squares) = ([0.0; LANES], [0.0; LANES]);
        for (x, quants) in x.iter().zip(&mut quants) {
            for lane in 0..LANES {
                let offset = x[lane] - min[lane];
                let quant = clamp(nearest(inverse[lane] * offset), 0.0, QUANT_MAX);
                is_changed[lane] |= quant.to_bits() ^ quants[lane].to_bits();
                quants[lane] = quant;
                products[lane] += offset * quant;
                squares[lane] += quant * quant;
            }
        }
        let mut fitted = [0.0; LANES];
        for lane in 0..LANES {
            fitted[lane] = products[lane] / squares[lane];
        }
        // Negative zero is the neutral element of float addition: Rust's `sum` begins with it, and the bits must be
        // candle's.
        let mut rest = [-0.0; LANES];
        for (x, quants) in x.iter().zip(&quants) {
            for lane in 0..LANES {
                rest[lane] += x[lane] - fitted[lane] * quants[lane];
            }
        }
        let mut goes_on = [0; LANES];
        for lane in 0..LANES {
            // A minimum above zero isn't representable, since blocks store its negative without a sign.
            let fitted_min = rest[lane] / LEN as f32;
            let fitted_min = if fitted_min > 0.0 { 0.0 } else { fitted_min };
            scale[lane] = pick(is_done[lane], scale[lane], fitted[lane]);
            min[lane] = pick(is_done[lane], min[lane], fitted_min);
            inverse[lane] = 1.0 / fitted[lane];
            is_done[lane] |= mask(is_changed[lane] == 0);
            goes_on[lane] = !is_done[lane];
        }
        if !any(&goes_on) {
            break;
        }
    }
    (scale, min.map(|min| -min))
}

/// Writes a block: scales and minima in six bits, and weights quantized by the rounded ones.
#[inline(always)]
fn write(
    block: &mut [u8; Q4_K_BYTES],
    values: &[f32; K_WEIGHTS],
    scales: &[f32; GROUPS],
    minima: &[f32; GROUPS],
) {
    // `f32::max` may return either of two zeros; this never returns a negative one.
    let larger = |max: f32, &value: &f32| if value > max { value } else { max };
    let largest = |values: &[f32]| values.iter().fold(0.0, larger);
    let (scale_max, minimum_max) = (largest(scales), largest(minima));
    let inverse_of = |max: f32| if max > 0.0 { SCALE_MAX / max } else { 0.0 };
    let round = |value: f32, inverse: f32| ((inverse * value).round() as i32).min(63) as u8;
    let (inverse, minimum_inverse) = (inverse_of(scale_max), inverse_of(minimum_max));
    let scales = scales.map(|scale| round(scale, inverse));
    let minima = minima.map(|minimum| round(minimum, minimum_inverse));
    let above = f16::from_f32(scale_max / SCALE_MAX);
    let minimum_above = f16::from_f32(minimum_max / SCALE_MAX);

    let (heads, nibbles) = block.split_at_mut(16);
    heads[..2].copy_from_slice(&above.to_le_bytes());
    heads[2..4].copy_from_slice(&minimum_above.to_le_bytes());
    let packed = &mut heads[4..];
    // The reverse of `scales_and_minima`: six bits each for four groups, the others split into four and two bits.
    for group in 0..4 {
        let (scale, minimum) = (scales[group + 4], minima[group + 4]);
        packed[group] = scales[group] | scale >> 4 << 6;
        packed[group + 4] = minima[group] | minimum >> 4 << 6;
        packed[group + 8] = scale & 15 | minimum << 4;
    }

    // As a reader will see them: weights are quantized by the rounded scales.
    let (above, minimum_above) = (above.to_f32(), minimum_above.to_f32());
    let mut quants = [[0u8; LEN]; GROUPS];
    for (group, values) in values.as_chunks::<LEN>().0.iter().enumerate() {
        let scale = above * f32::from(scales[group] & 63);
        if scale != 0.0 {
            let minimum = minimum_above * f32::from(minima[group] & 63);
            for (quant, &value) in quants[group].iter_mut().zip(values) {
                *quant = low_byte(clamp(nearest((value + minimum) / scale), 0.0, QUANT_MAX));
            }
        }
    }
    for (nibbles, quants) in nibbles
        .as_chunks_mut::<LEN>()
        .0
        .iter_mut()
        .zip(quants.as_chunks().0)
    {
        let [low, high]: &[[u8; LEN]; 2] = quants;
        for (out, (low, high)) in nibbles.iter_mut().zip(low.iter().zip(high)) {
            *out = low | high << 4;
        }
    }
}

/// An integer that orders as [`f32::total_cmp`] orders floats. The function is its own inverse.
#[inline(always)]
fn key(value: f32) -> i32 {
    reorder(value.to_bits().cast_signed())
}

#[inline(always)]
fn from_key(key: i32) -> f32 {
    f32::from_bits(reorder(key).cast_unsigned())
}

/// Flips all bits but the sign of negative numbers.
#[inline(always)]
fn reorder(bits: i32) -> i32 {
    bits ^ ((bits >> 31).cast_unsigned() >> 1).cast_signed()
}
