//! The kernels, compiled for each instruction set.

use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_set1_ps, _mm512_setzero_ps};

use sluice_formats::interleaved::ROWS as LANES;

use super::{Interleaved, MultiplyTile, formats::Elements};
use crate::cpu::{
    lanes::{Avx512Vnni, Lanes},
    microkernel::{TileOutput, avx512},
};

/// Compiles the kernels for an instruction set: for these numbers of rows of `x`, and used for as few rows as it says.
macro_rules! kernels {
    (
        $name:ident = $module:ident, $lanes:ident, $features:literal, [$($rows:literal),*],
        few: $few_for_quants:literal, $few_for_elements:literal,
        tiles: $tiles:ident
    ) => {
        pub(super) static $name: Interleaved = Interleaved {
            few_for_quants: $few_for_quants,
            few_for_elements: $few_for_elements,
            quants: $module::quants,
            elements: $module::elements,
        };

        mod $module {
            use sluice_formats::Format;

            use super::super::{
                ElementKernels, PanelLanes, QuantKernels, RoundedRows,
                formats::{
                    Bf16, Elements, F16, F32, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Quants,
                },
                kernels,
            };
            use crate::cpu::{lanes::$lanes, microkernel::TileOutput};

            pub(super) fn quants(format: Format) -> QuantKernels {
                match format {
                    Format::Q8_0 => quants_of::<Q8_0, 8>(),
                    Format::Q6K => quants_of::<Q6K, 4>(),
                    Format::Q5K => quants_of::<Q5K, 8>(),
                    Format::Q5_1 => quants_of::<Q5_1, 8>(),
                    Format::Q5_0 => quants_of::<Q5_0, 8>(),
                    Format::Q4K => quants_of::<Q4K, 8>(),
                    Format::Q4_1 => quants_of::<Q4_1, 8>(),
                    Format::Q4_0 => quants_of::<Q4_0, 8>(),
                    _ => unreachable!("formats without groups are dequantized"),
                }
            }

            const fn quants_of<Q: Quants<STEPS>, const STEPS: usize>() -> QuantKernels {
                QuantKernels {
                    multiply: &[$(multiply_quants::<Q, STEPS, $rows>),*],
                    unpack: unpack::<Q, STEPS>,
                }
            }

            pub(super) fn elements(format: Format) -> ElementKernels {
                match format {
                    Format::F32 => elements_of::<F32, 1>(),
                    Format::F16 => elements_of::<F16, 1>(),
                    Format::Bf16 => elements_of::<Bf16, 2>(),
                    _ => unreachable!("other formats are multiplied in integers"),
                }
            }

            const fn elements_of<E: Elements<COUNT>, const COUNT: usize>() -> ElementKernels {
                ElementKernels {
                    multiply: &[$(multiply_elements::<E, COUNT, $rows>),*],
                    tiles: super::$tiles::<E, COUNT>(),
                    dequantize: dequantize::<E, COUNT>,
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn multiply_quants<Q: Quants<STEPS>, const STEPS: usize, const ROWS: usize>(
                x: RoundedRows<'_>,
                weights: &[u8],
                out: TileOutput,
            ) {
                // SAFETY: as the caller says.
                unsafe { kernels::multiply_quants::<$lanes, Q, STEPS, ROWS>(x, weights, out) };
            }

            #[target_feature(enable = $features)]
            unsafe fn multiply_elements<
                E: Elements<COUNT>,
                const COUNT: usize,
                const ROWS: usize,
            >(
                x: &[f32],
                weights: &[u8],
                out: TileOutput,
            ) {
                // SAFETY: as the caller says.
                unsafe { kernels::multiply_elements::<$lanes, E, COUNT, ROWS>(x, weights, out) };
            }

            #[target_feature(enable = $features)]
            unsafe fn unpack<Q: Quants<STEPS>, const STEPS: usize>(
                weights: &[u8],
                panel: PanelLanes<'_>,
            ) {
                // SAFETY: as the caller says.
                unsafe { kernels::unpack::<$lanes, Q, STEPS>(weights, panel) };
            }

            #[target_feature(enable = $features)]
            unsafe fn dequantize<E: Elements<COUNT>, const COUNT: usize>(
                weights: &[u8],
                out: &mut [f32],
                step: usize,
            ) {
                // SAFETY: as the caller says.
                unsafe { kernels::dequantize::<$lanes, E, COUNT>(weights, out, step) };
            }
        }
    };
}

kernels! {
    AVX512_VNNI = avx512_vnni, Avx512Vnni, "avx512f,avx512bw,avx512vnni,avx2,fma,f16c", [1, 2, 3, 4, 5, 6, 7, 8],
    few: 16, 16,
    tiles: avx512_tiles
}
// Sums of more rows would not fit in 16 registers, and panels are faster than quants that are unpacked twice.
kernels! { AVX_VNNI = avx_vnni, AvxVnni, "avx2,fma,f16c", [1, 2, 3, 4, 5], few: 5, 10, tiles: no_tiles }
kernels! { AVX2 = avx2, Avx2, "avx2,fma,f16c", [1, 2, 3, 4, 5], few: 5, 10, tiles: no_tiles }

/// Tiles of up to 12 × 32 elements.
const fn avx512_tiles<E: Elements<COUNT>, const COUNT: usize>() -> &'static [MultiplyTile] {
    &[
        avx512_tile::<E, COUNT, 1>,
        avx512_tile::<E, COUNT, 2>,
        avx512_tile::<E, COUNT, 3>,
        avx512_tile::<E, COUNT, 4>,
        avx512_tile::<E, COUNT, 5>,
        avx512_tile::<E, COUNT, 6>,
        avx512_tile::<E, COUNT, 7>,
        avx512_tile::<E, COUNT, 8>,
        avx512_tile::<E, COUNT, 9>,
        avx512_tile::<E, COUNT, 10>,
        avx512_tile::<E, COUNT, 11>,
        avx512_tile::<E, COUNT, 12>,
    ]
}

/// AVX2's 16 registers hold the sums of a tile and a panel's elements, but not also the words that these come from: tiles of
/// 6 × 16 came to 60 % of the peak, where panels that are unpacked first come to 90 %.
const fn no_tiles<E: Elements<COUNT>, const COUNT: usize>() -> &'static [MultiplyTile] {
    &[]
}

/// Multiplies `ROWS` packed rows of `x`, `step` elements from one of the depth to the next, by twice 16 rows of weights.
///
/// # Safety
/// As [`MultiplyTile`].
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
unsafe fn avx512_tile<E: Elements<COUNT>, const COUNT: usize, const ROWS: usize>(
    x: &[f32],
    step: usize,
    weights: [&[u8]; 2],
    out: TileOutput,
) {
    let depth = x.len() / step;
    let bytes = LANES * E::FORMAT.bytes(depth);
    assert!(ROWS <= step && weights.iter().all(|group| group.len() == bytes));
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    let mut elements = [[_mm512_setzero_ps(); COUNT]; 2];
    for index in 0..depth / COUNT {
        // No closures: they would not be compiled for the instructions.
        for (elements, group) in elements.iter_mut().zip(weights) {
            // SAFETY: the lengths were compared, and all else is as the caller says.
            unsafe { *elements = E::read::<Avx512Vnni>(group.as_ptr(), index) };
            // A panel goes on with the piece behind this one.
            let piece =
                index * const { COUNT * LANES * E::FORMAT.block_bytes() / E::FORMAT.block_len() };
            let ahead = group.as_ptr().wrapping_add(group.len() + piece);
            // SAFETY: a prefetch never faults.
            unsafe { Avx512Vnni::prefetch(ahead) };
        }
        let x = x[COUNT * step * index..].chunks_exact(step);
        for (offset, x) in x.take(COUNT).enumerate() {
            let x: &[f32; ROWS] = x.first_chunk().expect("a step is as long, as was compared");
            for (x, sums) in x.iter().zip(&mut sums) {
                let x = _mm512_set1_ps(*x);
                for (sum, elements) in sums.iter_mut().zip(&elements) {
                    *sum = _mm512_fmadd_ps(x, elements[offset], *sum);
                }
            }
        }
    }
    // SAFETY: as the caller says.
    unsafe { avx512::write(&sums, out) };
}
