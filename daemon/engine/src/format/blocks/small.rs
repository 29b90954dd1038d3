//! Blocks of 32 weights with a scale, and in some a minimum.

use super::{LANES, add, decoder, dots, half, quants, widest};

/// Weights in a block.
pub(in crate::format) const SMALL_WEIGHTS: usize = 32;
/// Bytes of a `q8_0` block: a scale and 32 signed bytes.
pub(in crate::format) const Q8_0_BYTES: usize = 2 + 32;
/// Bytes of a `q5_1` block: scale, minimum, 32 high bits, 16 bytes of halves.
pub(in crate::format) const Q5_1_BYTES: usize = 4 + 4 + 16;
/// Bytes of a `q5_0` block: scale, 32 high bits, 16 bytes of halves.
pub(in crate::format) const Q5_0_BYTES: usize = 2 + 4 + 16;
/// Bytes of a `q4_1` block: scale, minimum, 16 bytes of halves.
pub(in crate::format) const Q4_1_BYTES: usize = 4 + 16;
/// Bytes of a `q4_0` block: a scale and 16 bytes of halves.
pub(in crate::format) const Q4_0_BYTES: usize = 2 + 16;

type Out = [f32; SMALL_WEIGHTS];
type Quants = [u8; SMALL_WEIGHTS];

decoder! {
    /// Decodes `q8_0`: each weight is a signed byte times its block's scale.
    decode_q8_0, dot_q8_0 = q8_0, SMALL_WEIGHTS, Q8_0_BYTES
}

decoder! {
    /// Decodes `q5_1`: five bits times the block's scale, and its minimum.
    decode_q5_1, dot_q5_1 = q5_1, SMALL_WEIGHTS, Q5_1_BYTES
}

decoder! {
    /// Decodes `q5_0`: five bits around 16, times the block's scale.
    decode_q5_0, dot_q5_0 = q5_0, SMALL_WEIGHTS, Q5_0_BYTES
}

decoder! {
    /// Decodes `q4_1`: four bits times the block's scale, and its minimum.
    decode_q4_1, dot_q4_1 = q4_1, SMALL_WEIGHTS, Q4_1_BYTES
}

decoder! {
    /// Decodes `q4_0`: four bits around 8, times the block's scale.
    decode_q4_0, dot_q4_0 = q4_0, SMALL_WEIGHTS, Q4_0_BYTES
}

quants! { quants_q8_0 = q8_0_quants, SMALL_WEIGHTS, Q8_0_BYTES, 1 }
quants! { quants_q5_1 = q5_1_quants, SMALL_WEIGHTS, Q5_1_BYTES, 1 }
quants! { quants_q5_0 = q5_0_quants, SMALL_WEIGHTS, Q5_0_BYTES, 1 }
quants! { quants_q4_1 = q4_1_quants, SMALL_WEIGHTS, Q4_1_BYTES, 1 }
quants! { quants_q4_0 = q4_0_quants, SMALL_WEIGHTS, Q4_0_BYTES, 1 }

#[inline(always)]
fn q8_0_quants(
    block: &[u8; Q8_0_BYTES],
    out: &mut Quants,
    scales: &mut [f32; 1],
    minima: &mut [f32; 1],
) {
    let scale = half([block[0], block[1]]);
    (scales[0], minima[0]) = (scale, -128.0 * scale);
    for (out, &quant) in out.iter_mut().zip(&block[2..]) {
        *out = quant ^ 128;
    }
}

#[inline(always)]
fn q5_1_quants(
    block: &[u8; Q5_1_BYTES],
    out: &mut Quants,
    scales: &mut [f32; 1],
    minima: &mut [f32; 1],
) {
    (scales[0], minima[0]) = (half([block[0], block[1]]), half([block[2], block[3]]));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    five_bits(&block[8..], high, out, |quant| quant);
}

#[inline(always)]
fn q5_0_quants(
    block: &[u8; Q5_0_BYTES],
    out: &mut Quants,
    scales: &mut [f32; 1],
    minima: &mut [f32; 1],
) {
    let scale = half([block[0], block[1]]);
    (scales[0], minima[0]) = (scale, -16.0 * scale);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    five_bits(&block[6..], high, out, |quant| quant);
}

#[inline(always)]
fn q4_1_quants(
    block: &[u8; Q4_1_BYTES],
    out: &mut Quants,
    scales: &mut [f32; 1],
    minima: &mut [f32; 1],
) {
    (scales[0], minima[0]) = (half([block[0], block[1]]), half([block[2], block[3]]));
    four_bits(&block[4..], out, |quant| quant);
}

#[inline(always)]
fn q4_0_quants(
    block: &[u8; Q4_0_BYTES],
    out: &mut Quants,
    scales: &mut [f32; 1],
    minima: &mut [f32; 1],
) {
    let scale = half([block[0], block[1]]);
    (scales[0], minima[0]) = (scale, -8.0 * scale);
    four_bits(&block[2..], out, |quant| quant);
}

#[inline(always)]
fn q8_0(block: &[u8; Q8_0_BYTES], out: &mut Out) {
    let scale = half([block[0], block[1]]);
    for (out, &quant) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(quant.cast_signed()) * scale;
    }
}

#[inline(always)]
fn q5_1(block: &[u8; Q5_1_BYTES], out: &mut Out) {
    let (scale, minimum) = (half([block[0], block[1]]), half([block[2], block[3]]));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    five_bits(&block[8..], high, out, |quant| {
        f32::from(quant) * scale + minimum
    });
}

#[inline(always)]
fn q5_0(block: &[u8; Q5_0_BYTES], out: &mut Out) {
    let scale = half([block[0], block[1]]);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    five_bits(&block[6..], high, out, |quant| {
        f32::from(i16::from(quant) - 16) * scale
    });
}

#[inline(always)]
fn q4_1(block: &[u8; Q4_1_BYTES], out: &mut Out) {
    let (scale, minimum) = (half([block[0], block[1]]), half([block[2], block[3]]));
    four_bits(&block[4..], out, |quant| f32::from(quant) * scale + minimum);
}

#[inline(always)]
fn q4_0(block: &[u8; Q4_0_BYTES], out: &mut Out) {
    let scale = half([block[0], block[1]]);
    four_bits(&block[2..], out, |quant| {
        f32::from(i16::from(quant) - 8) * scale
    });
}

/// The low halves of 16 bytes are the first weights, the high halves the others.
#[inline(always)]
fn four_bits<T>(halves: &[u8], out: &mut [T; SMALL_WEIGHTS], number: impl Fn(u8) -> T) {
    let (low, high) = out.split_at_mut(SMALL_WEIGHTS / 2);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(halves) {
        *low = number(byte & 15);
        *high = number(byte >> 4);
    }
}

/// As [`four_bits`], with the weights' highest bits in one word, the first weight's lowest.
#[inline(always)]
fn five_bits<T>(halves: &[u8], bits: u32, out: &mut [T; SMALL_WEIGHTS], number: impl Fn(u8) -> T) {
    let (low, high) = out.split_at_mut(SMALL_WEIGHTS / 2);
    for (lane, ((low, high), byte)) in low.iter_mut().zip(high).zip(halves).enumerate() {
        let low_bit = (bits >> lane & 1) as u8;
        let high_bit = (bits >> (lane + SMALL_WEIGHTS / 2) & 1) as u8;
        *low = number(byte & 15 | low_bit << 4);
        *high = number(byte >> 4 | high_bit << 4);
    }
}
