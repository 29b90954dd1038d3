//! `q8_0`: 32 weights share a scale, set by the largest magnitude.

use half::f16;

use super::{
    super::blocks::{Q8_0_BYTES, SMALL_WEIGHTS, widest},
    lanes::{clamp, low_byte, nearest},
    small::{each_small_block, largest_magnitude},
};

/// Quantizes whole blocks.
pub(super) fn quantize(values: &[f32], bytes: &mut [u8]) {
    widest!(all(values: &[f32], bytes: &mut [u8]));
}

#[inline(always)]
pub(super) fn all(values: &[f32], bytes: &mut [u8]) {
    each_small_block(values, bytes, one);
}

#[inline(always)]
fn one(values: &[f32; SMALL_WEIGHTS], block: &mut [u8; Q8_0_BYTES]) {
    let largest = largest_magnitude(values);
    // 127 and not 128, as in ggml: the range is the same on both sides of zero.
    let scale = f32::from_bits(largest) / 127.0;
    // A block of zeros has scale 0 and quants 0, rather than NaN.
    let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
    let (above, quants) = block.split_at_mut(2);
    above.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (out, &value) in quants.iter_mut().zip(values) {
        *out = low_byte(clamp(nearest(value * inverse), -128.0, 127.0));
    }
}
