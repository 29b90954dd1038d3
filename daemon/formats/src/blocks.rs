//! GGUF's block formats: small groups of weights that share scales. The same loops are compiled for any CPU and for
//! wide vectors, and the best version is chosen at run time.

mod k;
mod plain;
mod small;

use half::f16;

pub(super) use self::{
    k::{
        K_WEIGHTS, Q2_K_BYTES, Q3_K_BYTES, Q4_K_BYTES, Q5_K_BYTES, Q6_K_BYTES, decode_q2_k,
        decode_q3_k, decode_q4_k, decode_q5_k, decode_q6_k, quants_q4_k, quants_q5_k, quants_q6_k,
    },
    plain::upcast_bf16,
    small::{
        Q4_0_BYTES, Q4_1_BYTES, Q5_0_BYTES, Q5_1_BYTES, Q8_0_BYTES, SMALL_WEIGHTS, decode_q4_0,
        decode_q4_1, decode_q5_0, decode_q5_1, decode_q8_0, quants_q4_0, quants_q4_1, quants_q5_0,
        quants_q5_1, quants_q8_0,
    },
};

/// Compiles a block's loop into a function that dequantizes.
macro_rules! decoder {
    ($(#[$doc:meta])* $name:ident = $block:ident, $weights:expr, $bytes:expr) => {
        $(#[$doc])*
        ///
        /// # Panics
        /// When the bytes are not whole blocks of `out.len()` weights.
        pub(in crate) fn $name(bytes: &[u8], out: &mut [f32]) {
            #[inline(always)]
            fn all(bytes: &[u8], out: &mut [f32]) {
                let (blocks, rest) = bytes.as_chunks::<{ $bytes }>();
                let (outs, rest_out) = out.as_chunks_mut::<{ $weights }>();
                assert!(rest.is_empty() && rest_out.is_empty() && blocks.len() == outs.len());
                for (block, out) in blocks.iter().zip(outs) {
                    $block(block, out);
                }
            }
            widest!(all(bytes: &[u8], out: &mut [f32]));
        }
    };
}
use decoder;

/// Compiles a block's loop into a function that unpacks quants, scales and minima.
macro_rules! quants {
    ($name:ident = $block:ident, $weights:expr, $bytes:expr, $groups:expr) => {
        /// Unpacks quants, and each group's scale and minimum.
        ///
        /// # Panics
        /// When the bytes are not whole blocks of `out.len()` weights.
        pub(in crate) fn $name(
            bytes: &[u8],
            out: &mut [u8],
            scales: &mut [f32],
            minima: &mut [f32],
        ) {
            #[inline(always)]
            fn all(bytes: &[u8], out: &mut [u8], scales: &mut [f32], minima: &mut [f32]) {
                let (blocks, rest) = bytes.as_chunks::<{ $bytes }>();
                let (outs, rest_out) = out.as_chunks_mut::<{ $weights }>();
                assert!(rest.is_empty() && rest_out.is_empty() && blocks.len() == outs.len());
                let (scales, _) = scales.as_chunks_mut::<{ $groups }>();
                let (minima, _) = minima.as_chunks_mut::<{ $groups }>();
                assert!(scales.len() == blocks.len() && minima.len() == blocks.len());
                for (((block, out), scales), minima) in
                    blocks.iter().zip(outs).zip(scales).zip(minima)
                {
                    $block(block, out, scales, minima);
                }
            }
            widest!(all(bytes: &[u8], out: &mut [u8], scales: &mut [f32], minima: &mut [f32]));
        }
    };
}
use quants;

/// Calls a function in the version compiled for the widest vectors of this CPU.
macro_rules! widest {
    ($all:ident($($argument:ident: $type:ty),*)) => {
        #[cfg(target_arch = "x86_64")]
        {
            // `inline(always)` code is compiled anew with these features; a plain call would stay portable code.
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn widest($($argument: $type),*) {
                $all($($argument),*);
            }
            #[target_feature(enable = "avx2,fma,f16c")]
            fn wide($($argument: $type),*) {
                $all($($argument),*);
            }
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the CPU has the features that the function is compiled for.
                    return unsafe { widest($($argument),*) };
                }
                // SAFETY: as above.
                return unsafe { wide($($argument),*) };
            }
        }
        $all($($argument),*);
    };
}
pub(crate) use widest;

#[inline(always)]
fn half(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}
