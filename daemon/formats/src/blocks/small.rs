//! Blocks of 32 weights with a scale, some with a minimum.

use super::{decoder, half, quants, widest};

/// Weights in a block.
pub(crate) const SMALL_WEIGHTS: usize = 32;
/// Bytes of a `q8_0` block: a scale and 32 signed bytes.
pub(crate) const Q8_0_BYTES: usize = 2 + 32;
/// Bytes of a `q5_1` block: scale, minimum, 32 high bits, 16 bytes of halves.
pub(crate) const Q5_1_BYTES: usize = 4 + 4 + 16;
/// Bytes of a `q5_0` block: scale, 32 high bits, 16 bytes of halves.
pub(crate) const Q5_0_BYTES: usize = 2 + 4 + 16;
/// Bytes of a `q4_1` block: scale, minimum, 16 bytes of halves.
pub(crate) const Q4_1_BYTES: usize = 4 + 16;
/// Bytes of a `q4_0` block: a scale and 16 bytes of halves.
pub(crate) const Q4_0_BYTES: usize = 2 + 16;

type Out = [f32; SMALL_WEIGHTS];
type Quants = [u8; SMALL_WEIGHTS];

decoder! {
    /// Dequantizes `q8_0`: a signed byte times the block's scale.
    decode_q8_0 = q8_0, SMALL_WEIGHTS, Q8_0_BYTES
}

decoder! {
    /// Dequantizes `q5_1`: five bits times the block's scale, plus its minimum.
    decode_q5_1 = q5_1, SMALL_WEIGHTS, Q5_1_BYTES
}

decoder! {
    /// Dequantizes `q5_0`: five bits around 16, times the block's scale.
    decode_q5_0 = q5_0, SMALL_WEIGHTS, Q5_0_BYTES
}

decoder! {
    /// Dequantizes `q4_1`: four bits times the block's scale, plus its minimum.
    decode_q4_1 = q4_1, SMALL_WEIGHTS, Q4_1_BYTES
}

decoder! {
    /// Dequantizes `q4_0`: four bits around 8, times the block's scale.
    decode_q4_0 = q4_0, SMALL_WEIGHTS, Q4_0_BYTES
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
        // Signed to unsigned: the integer kernels multiply unsigned weights by signed inputs.
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
    *out = five_bits(&block[8..], &block[4..8]);
}

#[inline(always)]
fn q5_0_quants(
    block: &[u8; Q5_0_BYTES],
    out: &mut Quants,
    scales: &mut [f32; 1],
    minima: &mut [f32; 1],
) {
    let scale = half([block[0], block[1]]);
    // Stored without a sign, 16 above the weight. As a minimum, the offset looks to integer kernels like that of
    // `q5_1`.
    (scales[0], minima[0]) = (scale, -16.0 * scale);
    *out = five_bits(&block[6..], &block[2..6]);
}

#[inline(always)]
fn q4_1_quants(
    block: &[u8; Q4_1_BYTES],
    out: &mut Quants,
    scales: &mut [f32; 1],
    minima: &mut [f32; 1],
) {
    (scales[0], minima[0]) = (half([block[0], block[1]]), half([block[2], block[3]]));
    *out = four_bits(&block[4..]);
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
    *out = four_bits(&block[2..]);
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
    for (out, quant) in out.iter_mut().zip(five_bits(&block[8..], &block[4..8])) {
        *out = f32::from(quant) * scale + minimum;
    }
}

#[inline(always)]
fn q5_0(block: &[u8; Q5_0_BYTES], out: &mut Out) {
    let scale = half([block[0], block[1]]);
    for (out, quant) in out.iter_mut().zip(five_bits(&block[6..], &block[2..6])) {
        *out = f32::from(i16::from(quant) - 16) * scale;
    }
}

#[inline(always)]
fn q4_1(block: &[u8; Q4_1_BYTES], out: &mut Out) {
    let (scale, minimum) = (half([block[0], block[1]]), half([block[2], block[3]]));
    for (out, quant) in out.iter_mut().zip(four_bits(&block[4..])) {
        *out = f32::from(quant) * scale + minimum;
    }
}

#[inline(always)]
fn q4_0(block: &[u8; Q4_0_BYTES], out: &mut Out) {
    let scale = half([block[0], block[1]]);
    // From an array of its own, since the compiler makes vectors of these loops only then.
    let halves: [u8; SMALL_WEIGHTS / 2] = std::array::from_fn(|at| block[2 + at]);
    let (low, high) = out.split_at_mut(SMALL_WEIGHTS / 2);
    for (out, half) in low.iter_mut().zip(halves) {
        *out = (f32::from(half & 15) - 8.0) * scale;
    }
    for (out, half) in high.iter_mut().zip(halves) {
        *out = (f32::from(half >> 4) - 8.0) * scale;
    }
}

/// Unpacks nibbles: the low halves of 16 bytes are the first weights, the high halves the others. Eight bytes are
/// processed at a time, because loops over so few bytes aren't vectorized and took seven to ten times as long.
#[inline(always)]
fn four_bits(halves: &[u8]) -> Quants {
    const LOW: u64 = u64::from_ne_bytes([15; 8]);
    let mut quants = [0; SMALL_WEIGHTS];
    let (low, high) = quants.split_at_mut(SMALL_WEIGHTS / 2);
    let quants_of = low.as_chunks_mut().0.iter_mut().zip(high.as_chunks_mut().0);
    for ((low, high), halves) in quants_of.zip(halves.as_chunks().0) {
        let halves = u64::from_le_bytes(*halves);
        *low = (halves & LOW).to_le_bytes();
        *high = (halves >> 4 & LOW).to_le_bytes();
    }
    quants
}

/// As [`four_bits`], with the weights' highest bits in four bytes, lowest bit first.
#[inline(always)]
fn five_bits(halves: &[u8], bits: &[u8]) -> Quants {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    // In byte i of a word, bit i.
    const PLACES: u64 = 0x8040_2010_0804_0201;
    let mut quants = four_bits(halves);
    for (quants, &bits) in quants.as_chunks_mut::<8>().0.iter_mut().zip(bits) {
        // Copies the byte to all eight, keeps bit i of byte i, and carries it to the top bit by adding 0x7f.
        let placed = (u64::from(bits) * ONES) & PLACES;
        let high = (((placed + 0x7f * ONES) >> 7) & ONES) << 4;
        *quants = (u64::from_le_bytes(*quants) | high).to_le_bytes();
    }
    quants
}
