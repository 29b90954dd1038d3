//! `q4_0` and `q5_0`: 32 weights share a scale, set by the one of the largest magnitude, which becomes the least quant.

use half::f16;

use super::{
    super::blocks::{Q4_0_BYTES, Q5_0_BYTES, SMALL_WEIGHTS, widest},
    lanes::{clamp, low_byte},
    small::{each_small_block, largest_magnitude, magnitude},
};

/// Quantizes whole blocks to `q4_0`.
pub(super) fn quantize_q4_0(values: &[f32], bytes: &mut [u8]) {
    widest!(all_q4_0(values: &[f32], bytes: &mut [u8]));
}

/// Quantizes whole blocks to `q5_0`.
pub(super) fn quantize_q5_0(values: &[f32], bytes: &mut [u8]) {
    widest!(all_q5_0(values: &[f32], bytes: &mut [u8]));
}

#[inline(always)]
pub(super) fn all_q4_0(values: &[f32], bytes: &mut [u8]) {
    each_small_block(values, bytes, one_q4_0);
}

#[inline(always)]
pub(super) fn all_q5_0(values: &[f32], bytes: &mut [u8]) {
    each_small_block(values, bytes, one_q5_0);
}

#[inline(always)]
fn one_q4_0(values: &[f32; SMALL_WEIGHTS], block: &mut [u8; Q4_0_BYTES]) {
    let (scale, quants) = quants(values, 8.0);
    block[..2].copy_from_slice(&scale);
    put_nibbles(&quants, &mut block[2..]);
}

#[inline(always)]
fn one_q5_0(values: &[f32; SMALL_WEIGHTS], block: &mut [u8; Q5_0_BYTES]) {
    let (scale, quants) = quants(values, 16.0);
    let bits =
        (quants.iter().enumerate()).fold(0, |bits, (at, quant)| bits | u32::from(quant >> 4) << at);
    block[..2].copy_from_slice(&scale);
    block[2..6].copy_from_slice(&bits.to_le_bytes());
    put_nibbles(&quants.map(|quant| quant & 15), &mut block[6..]);
}

/// The scale as it is stored, and quants from 0 to `2 * half - 1`, of which `half` stands for zero.
#[inline(always)]
fn quants(values: &[f32; SMALL_WEIGHTS], half: f32) -> ([u8; 2], [u8; SMALL_WEIGHTS]) {
    let largest = largest_magnitude(values);
    // Of equal magnitudes the first one's sign, as in ggml. A block of zeros has none.
    let first = (values.iter()).find(|&&value| largest > 0 && magnitude(value) == largest);
    let scale = first.copied().unwrap_or(0.0) / -half;
    let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
    // Half to the nearest integer, half to the integer that stands for zero.
    let quant = |value: f32| (value * inverse + (half + 0.5)).trunc();
    let quants = values.map(|value| low_byte(clamp(quant(value), 0.0, 2.0 * half - 1.0)));
    (f16::from_f32(scale).to_le_bytes(), quants)
}

/// The low halves of 16 bytes are the first weights, the high halves the others.
#[inline(always)]
fn put_nibbles(quants: &[u8; SMALL_WEIGHTS], nibbles: &mut [u8]) {
    let (low, high) = quants.split_at(SMALL_WEIGHTS / 2);
    for (out, (low, high)) in nibbles.iter_mut().zip(low.iter().zip(high)) {
        *out = low | high << 4;
    }
}
