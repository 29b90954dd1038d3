//! The K formats: blocks of 256 weights, in groups with scales of a few bits, some with minima.

use super::{decoder, half, quants, widest};

/// Weights in a block.
pub(crate) const K_WEIGHTS: usize = 256;
/// Bytes of a `q6_k` block: 128 bytes of low halves, 64 of high pairs, 16 scales, one scale above them.
pub(crate) const Q6_K_BYTES: usize = 128 + 64 + 16 + 2;
/// Bytes of a `q5_k` block: scale and minimum above, 12 bytes of 6-bit scales and minima, 32 bytes of high bits, 128 bytes
/// of halves.
pub(crate) const Q5_K_BYTES: usize = 4 + 12 + 32 + 128;
/// Bytes of a `q4_k` block: scale and minimum above, 12 bytes of 6-bit scales and minima, 128 bytes of halves.
pub(crate) const Q4_K_BYTES: usize = 4 + 12 + 128;
/// Bytes of a `q3_k` block: 32 bytes of high bits, 64 of pairs, 12 of 6-bit scales, one scale above them.
pub(crate) const Q3_K_BYTES: usize = 32 + 64 + 12 + 2;
/// Bytes of a `q2_k` block: 16 bytes of 4-bit scales and minima, 64 of pairs, scale and minimum above.
pub(crate) const Q2_K_BYTES: usize = 16 + 64 + 4;

type Out = [f32; K_WEIGHTS];

decoder! {
    /// Dequantizes `q6_k`: six bits around 32, times one of 16 scales, times the block's.
    decode_q6_k = q6_k, K_WEIGHTS, Q6_K_BYTES
}

decoder! {
    /// Dequantizes `q5_k`: five bits times one of 8 scales, minus one of 8 minima.
    decode_q5_k = q5_k, K_WEIGHTS, Q5_K_BYTES
}

decoder! {
    /// Dequantizes `q4_k`: four bits times one of 8 scales, minus one of 8 minima.
    decode_q4_k = q4_k, K_WEIGHTS, Q4_K_BYTES
}

decoder! {
    /// Dequantizes `q3_k`: three bits around 4, times one of 16 scales around 32, times the block's.
    decode_q3_k = q3_k, K_WEIGHTS, Q3_K_BYTES
}

decoder! {
    /// Dequantizes `q2_k`: two bits times one of 16 scales, minus one of 16 minima.
    decode_q2_k = q2_k, K_WEIGHTS, Q2_K_BYTES
}

quants! { quants_q6_k = q6_k_quants, K_WEIGHTS, Q6_K_BYTES, 16 }
quants! { quants_q5_k = q5_k_quants, K_WEIGHTS, Q5_K_BYTES, 8 }
quants! { quants_q4_k = q4_k_quants, K_WEIGHTS, Q4_K_BYTES, 8 }

#[inline(always)]
fn q6_k_quants(
    block: &[u8; Q6_K_BYTES],
    out: &mut [u8; K_WEIGHTS],
    scales: &mut [f32; 16],
    minima: &mut [f32; 16],
) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (packed, above) = rest.split_at(16);
    let above = half([above[0], above[1]]);
    for ((scale, minimum), packed) in scales.iter_mut().zip(minima).zip(packed) {
        *scale = above * f32::from(packed.cast_signed());
        // Quants are stored with an offset of 32, which becomes a minimum.
        *minimum = -32.0 * *scale;
    }
    for part in 0..2 {
        let (low, high) = (&low[64 * part..][..64], &high[32 * part..][..32]);
        for quarter in 0..4 {
            let low = &low[32 * (quarter % 2)..][..32];
            let out = &mut out[128 * part + 32 * quarter..][..32];
            for lane in 0..32 {
                let half = low[lane] >> (4 * (quarter / 2)) & 15;
                out[lane] = half | (high[lane] >> (2 * quarter) & 3) << 4;
            }
        }
    }
}

#[inline(always)]
fn q5_k_quants(
    block: &[u8; Q5_K_BYTES],
    out: &mut [u8; K_WEIGHTS],
    scales: &mut [f32; 8],
    minima: &mut [f32; 8],
) {
    let below;
    (*scales, below) = scales_and_minima(&block[..16]);
    // GGUF subtracts minima; `Format::quants` adds them.
    *minima = below.map(|minimum| -minimum);
    let (bits, halves) = block[16..].split_at(32);
    for part in 0..4 {
        let halves = &halves[32 * part..][..32];
        let (low, high) = out[64 * part..][..64].split_at_mut(32);
        let outs = low.iter_mut().zip(high);
        for ((low, high), (byte, bits)) in outs.zip(halves.iter().zip(bits)) {
            *low = byte & 15 | (bits >> (2 * part) & 1) << 4;
            *high = byte >> 4 | (bits >> (2 * part + 1) & 1) << 4;
        }
    }
}

#[inline(always)]
fn q4_k_quants(
    block: &[u8; Q4_K_BYTES],
    out: &mut [u8; K_WEIGHTS],
    scales: &mut [f32; 8],
    minima: &mut [f32; 8],
) {
    let below;
    (*scales, below) = scales_and_minima(&block[..16]);
    *minima = below.map(|minimum| -minimum);
    for part in 0..4 {
        let halves = &block[16 + 32 * part..][..32];
        let (low, high) = out[64 * part..][..64].split_at_mut(32);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(halves) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
}

#[inline(always)]
fn q6_k(block: &[u8; Q6_K_BYTES], out: &mut Out) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, above) = rest.split_at(16);
    let above = half([above[0], above[1]]);
    // Products with the block's scale are taken once for each group, not for each weight.
    let scales: [f32; 16] =
        std::array::from_fn(|index| above * f32::from(scales[index].cast_signed()));
    for part in 0..2 {
        let (low, high) = (&low[64 * part..][..64], &high[32 * part..][..32]);
        let scales = &scales[8 * part..][..8];
        let out = &mut out[128 * part..][..128];
        for quarter in 0..4 {
            // Quarters 0 and 1 are the low halves of 64 bytes, quarters 2 and 3 their high halves.
            let low = &low[32 * (quarter % 2)..][..32];
            let out = &mut out[32 * quarter..][..32];
            for lane in 0..32 {
                let half = if quarter < 2 {
                    low[lane] & 15
                } else {
                    low[lane] >> 4
                };
                let pair = (high[lane] >> (2 * quarter)) & 3;
                let quant = i32::from(half | (pair << 4)) - 32;
                out[lane] = scales[2 * quarter + lane / 16] * quant as f32;
            }
        }
    }
}

#[inline(always)]
fn q5_k(block: &[u8; Q5_K_BYTES], out: &mut Out) {
    let (bits, halves) = block[16..].split_at(32);
    let (scales, minima) = scales_and_minima(&block[..16]);
    for part in 0..4 {
        let halves = &halves[32 * part..][..32];
        let (low, high) = out[64 * part..][..64].split_at_mut(32);
        let (scale, minimum) = (scales[2 * part], minima[2 * part]);
        for ((out, half), bits) in low.iter_mut().zip(halves).zip(bits) {
            // A byte of high bits serves eight groups: two bits for each part, for low halves and high halves.
            let quant = half & 15 | (bits >> (2 * part) & 1) << 4;
            *out = scale * f32::from(quant) - minimum;
        }
        let (scale, minimum) = (scales[2 * part + 1], minima[2 * part + 1]);
        for ((out, half), bits) in high.iter_mut().zip(halves).zip(bits) {
            let quant = half >> 4 | (bits >> (2 * part + 1) & 1) << 4;
            *out = scale * f32::from(quant) - minimum;
        }
    }
}

#[inline(always)]
fn q4_k(block: &[u8; Q4_K_BYTES], out: &mut Out) {
    let halves = &block[16..];
    let (scales, minima) = scales_and_minima(&block[..16]);
    for part in 0..4 {
        let halves = &halves[32 * part..][..32];
        let (low, high) = out[64 * part..][..64].split_at_mut(32);
        let (scale, minimum) = (scales[2 * part], minima[2 * part]);
        for (out, quant) in low.iter_mut().zip(halves) {
            *out = scale * f32::from(quant & 15) - minimum;
        }
        let (scale, minimum) = (scales[2 * part + 1], minima[2 * part + 1]);
        for (out, quant) in high.iter_mut().zip(halves) {
            *out = scale * f32::from(quant >> 4) - minimum;
        }
    }
}

/// Scales and minima of the eight groups, from the block's two and 12 bytes of six-bit values: those of the first four
/// groups are the low six bits of a byte; those of the others are split into a half byte and the two high bits that the
/// first four leave. Four bytes are processed at a time.
#[inline(always)]
fn scales_and_minima(head: &[u8]) -> ([f32; 8], [f32; 8]) {
    let (above, minimum_above) = (half([head[0], head[1]]), half([head[2], head[3]]));
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (first, second, third) = (word(4), word(8), word(12));
    // Each byte of a word is a group; the masks keep bits from crossing into the next one.
    let high = |word: u32| (word >> 6 & 0x0303_0303) << 4;
    let both = |low: u32, high: u32, above: f32| {
        let (low, high) = (low.to_le_bytes(), high.to_le_bytes());
        [
            low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
        ]
        .map(|bits| above * f32::from(bits))
    };
    (
        both(
            first & 0x3f3f_3f3f,
            third & 0x0f0f_0f0f | high(first),
            above,
        ),
        both(
            second & 0x3f3f_3f3f,
            third >> 4 & 0x0f0f_0f0f | high(second),
            minimum_above,
        ),
    )
}

#[inline(always)]
fn q3_k(block: &[u8; Q3_K_BYTES], out: &mut Out) {
    let (bits, rest) = block.split_at(32);
    let (pairs, rest) = rest.split_at(64);
    let (packed, above) = rest.split_at(12);
    let above = half([above[0], above[1]]);
    // Low four bits in halves of eight bytes, high two bits in four more bytes.
    let scales: [f32; 16] = std::array::from_fn(|group| {
        let low = packed[group % 8] >> (4 * (group / 8)) & 15;
        let high = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
        above * f32::from(i16::from(low | high << 4) - 32)
    });
    for run in 0..8 {
        let (pairs, shift) = (&pairs[32 * (run / 4)..][..32], 2 * (run % 4));
        let out = &mut out[32 * run..][..32];
        for lane in 0..32 {
            // Where the high bit isn't set, four is subtracted.
            let quant = i32::from(pairs[lane] >> shift & 3 | (bits[lane] >> run & 1) << 2) - 4;
            out[lane] = scales[2 * run + lane / 16] * quant as f32;
        }
    }
}

#[inline(always)]
fn q2_k(block: &[u8; Q2_K_BYTES], out: &mut Out) {
    let (packed, rest) = block.split_at(16);
    let (pairs, above) = rest.split_at(64);
    let (above, minimum_above) = (half([above[0], above[1]]), half([above[2], above[3]]));
    for run in 0..8 {
        let (pairs, shift) = (&pairs[32 * (run / 4)..][..32], 2 * (run % 4));
        let out = &mut out[32 * run..][..32];
        for lane in 0..32 {
            let packed = packed[2 * run + lane / 16];
            let (scale, minimum) = (packed & 15, packed >> 4);
            let quant = f32::from(pairs[lane] >> shift & 3);
            out[lane] = above * f32::from(scale) * quant - minimum_above * f32::from(minimum);
        }
    }
}
