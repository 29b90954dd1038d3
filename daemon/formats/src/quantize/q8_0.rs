//! `q8_0`: 32 weights share a scale, set by the largest magnitude.

use half::f16;

use super::{
    super::blocks::{Q8_0_BYTES, SMALL_WEIGHTS, widest},
    lanes::{clamp, low_byte, nearest},
};

/// Quantizes whole blocks.
pub(super) fn quantize(values: &[f32], bytes: &mut [u8]) {
    widest!(all(values: &[f32], bytes: &mut [u8]));
}

#[inline(always)]
pub(super) fn all(values: &[f32], bytes: &mut [u8]) {
    let (values, rest) = values.as_chunks::<SMALL_WEIGHTS>();
    let (blocks, rest_out) = bytes.as_chunks_mut::<Q8_0_BYTES>();
    assert!(rest.is_empty() && rest_out.is_empty() && values.len() == blocks.len());
    for (values, block) in values.iter().zip(blocks) {
        one(values, block);
    }
}

#[inline(always)]
fn one(values: &[f32; SMALL_WEIGHTS], block: &mut [u8; Q8_0_BYTES]) {
    // Magnitudes are compared as integers, which have a vector maximum. NaN doesn't count.
    let magnitude = |value: f32| {
        let bits = value.abs().to_bits();
        if bits > f32::INFINITY.to_bits() {
            0
        } else {
            bits
        }
    };
    let largest = (values.iter()).fold(0, |largest, &value| magnitude(value).max(largest));
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
