//! Block formats as GGUF has them: small groups of weights that share scales. A block is decoded to `f32` alone; where
//! the CPU has wide vectors the same loops are compiled for them and chosen when the program runs.

use half::f16;

/// Weights in a `q8_0` block.
pub(super) const Q8_0_WEIGHTS: usize = 32;
/// Bytes of a `q8_0` block: a scale and 32 signed bytes.
pub(super) const Q8_0_BYTES: usize = 2 + 32;
/// Weights in a block of the k formats.
pub(super) const K_WEIGHTS: usize = 256;
/// Bytes of a `q6_k` block: 128 bytes of low halves, 64 of high pairs, 16 scales, one scale above them.
pub(super) const Q6_K_BYTES: usize = 128 + 64 + 16 + 2;
/// Bytes of a `q4_k` block: scale and minimum above, 12 bytes of 6-bit scales and minima, 128 bytes of halves.
pub(super) const Q4_K_BYTES: usize = 4 + 12 + 128;

/// Compiles a decoder twice, for any CPU and for AVX2, and calls the better one.
macro_rules! decoder {
    ($(#[$doc:meta])* $name:ident = $block:ident, $weights:expr, $bytes:expr) => {
        $(#[$doc])*
        ///
        /// # Panics
        /// When the bytes are not whole blocks of `out.len()` weights.
        pub(super) fn $name(bytes: &[u8], out: &mut [f32]) {
            #[inline(always)]
            fn all(bytes: &[u8], out: &mut [f32]) {
                let (blocks, rest) = bytes.as_chunks::<{ $bytes }>();
                let (outs, rest_out) = out.as_chunks_mut::<{ $weights }>();
                assert!(rest.is_empty() && rest_out.is_empty() && blocks.len() == outs.len());
                for (block, out) in blocks.iter().zip(outs) {
                    $block(block, out);
                }
            }
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn wide(bytes: &[u8], out: &mut [f32]) {
                    all(bytes, out);
                }
                if is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                {
                    // SAFETY: the CPU has the features that the function is compiled for.
                    return unsafe { wide(bytes, out) };
                }
            }
            all(bytes, out);
        }
    };
}

decoder! {
    /// Decodes `q8_0`: each weight is a signed byte times its block's scale.
    decode_q8_0 = q8_0, Q8_0_WEIGHTS, Q8_0_BYTES
}

decoder! {
    /// Decodes `q6_k`: six bits around 32, times one of 16 scales, times the block's.
    decode_q6_k = q6_k, K_WEIGHTS, Q6_K_BYTES
}

decoder! {
    /// Decodes `q4_k`: four bits times one of 8 scales, less one of 8 minima.
    decode_q4_k = q4_k, K_WEIGHTS, Q4_K_BYTES
}

#[inline(always)]
fn half(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

#[inline(always)]
fn q8_0(block: &[u8; Q8_0_BYTES], out: &mut [f32; Q8_0_WEIGHTS]) {
    let scale = half([block[0], block[1]]);
    for (out, &quant) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(quant.cast_signed()) * scale;
    }
}

#[inline(always)]
fn q6_k(block: &[u8; Q6_K_BYTES], out: &mut [f32; K_WEIGHTS]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, above) = rest.split_at(16);
    let above = half([above[0], above[1]]);
    let scales: [f32; 16] =
        std::array::from_fn(|index| above * f32::from(scales[index].cast_signed()));
    for part in 0..2 {
        let (low, high) = (&low[64 * part..][..64], &high[32 * part..][..32]);
        let scales = &scales[8 * part..][..8];
        let out = &mut out[128 * part..][..128];
        for quarter in 0..4 {
            // The quarters take the low halves of 64 bytes, then their high halves.
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
fn q4_k(block: &[u8; Q4_K_BYTES], out: &mut [f32; K_WEIGHTS]) {
    let above = half([block[0], block[1]]);
    let minimum_above = half([block[2], block[3]]);
    let packed = &block[4..16];
    let quants = &block[16..];
    for part in 0..4 {
        let quants = &quants[32 * part..][..32];
        let (low, high) = out[64 * part..][..64].split_at_mut(32);
        let (scale, minimum) = scale_and_minimum(packed, 2 * part);
        let (scale, minimum) = (above * scale, minimum_above * minimum);
        for (out, quant) in low.iter_mut().zip(quants) {
            *out = scale * f32::from(quant & 15) - minimum;
        }
        let (scale, minimum) = scale_and_minimum(packed, 2 * part + 1);
        let (scale, minimum) = (above * scale, minimum_above * minimum);
        for (out, quant) in high.iter_mut().zip(quants) {
            *out = scale * f32::from(quant >> 4) - minimum;
        }
    }
}

/// The 6-bit scale and minimum of a group: the first four lie in six bits of a byte each, the others in the halves of a
/// byte and the two bits that the first four leave.
#[inline(always)]
fn scale_and_minimum(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, minimum) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        (
            (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4),
            (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4),
        )
    };
    (f32::from(scale), f32::from(minimum))
}
