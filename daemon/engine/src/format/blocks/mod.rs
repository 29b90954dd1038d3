//! Block formats as GGUF has them: small groups of weights that share scales. A block is decoded to `f32` alone; where
//! the CPU has wide vectors the same loops are compiled for them and chosen when the program runs.

mod k;
mod small;

use half::f16;

pub(super) use self::{
    k::{
        K_WEIGHTS, Q2_K_BYTES, Q3_K_BYTES, Q4_K_BYTES, Q5_K_BYTES, Q6_K_BYTES, decode_q2_k,
        decode_q3_k, decode_q4_k, decode_q5_k, decode_q6_k,
    },
    small::{
        Q4_0_BYTES, Q4_1_BYTES, Q5_0_BYTES, Q5_1_BYTES, Q8_0_BYTES, SMALL_WEIGHTS, decode_q4_0,
        decode_q4_1, decode_q5_0, decode_q5_1, decode_q8_0,
    },
};

/// Compiles a decoder twice, for any CPU and for AVX2, and calls the better one.
macro_rules! decoder {
    ($(#[$doc:meta])* $name:ident = $block:ident, $weights:expr, $bytes:expr) => {
        $(#[$doc])*
        ///
        /// # Panics
        /// When the bytes are not whole blocks of `out.len()` weights.
        pub(in crate::format) fn $name(bytes: &[u8], out: &mut [f32]) {
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
use decoder;

#[inline(always)]
fn half(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}
