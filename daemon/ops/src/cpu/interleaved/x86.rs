//! The kernels, compiled for each instruction set.

use super::Interleaved;

/// Compiles the kernels for an instruction set.
macro_rules! kernels {
    ($name:ident = $module:ident, $lanes:ident, $features:literal) => {
        pub(super) static $name: Interleaved = Interleaved {
            multiply_quants: $module::multiply_quants,
            multiply_elements: $module::multiply_elements,
            unpack: $module::unpack,
            dequantize: $module::dequantize,
        };

        mod $module {
            use sluice_formats::Format;

            use super::super::{
                Dequantize, FEW_ROWS, MultiplyElements, MultiplyQuants, PanelLanes, RoundedRows,
                Unpack,
                formats::{
                    Bf16, Elements, F16, F32, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Quants,
                },
                kernels,
            };
            use crate::cpu::{lanes::$lanes, microkernel::TileOutput};

            pub(super) fn multiply_quants(format: Format) -> [MultiplyQuants; FEW_ROWS] {
                const fn rows<Q: Quants<STEPS>, const STEPS: usize>() -> [MultiplyQuants; FEW_ROWS]
                {
                    [
                        quants::<Q, STEPS, 1>,
                        quants::<Q, STEPS, 2>,
                        quants::<Q, STEPS, 3>,
                        quants::<Q, STEPS, 4>,
                    ]
                }
                match format {
                    Format::Q8_0 => rows::<Q8_0, 8>(),
                    Format::Q6K => rows::<Q6K, 4>(),
                    Format::Q5K => rows::<Q5K, 8>(),
                    Format::Q5_1 => rows::<Q5_1, 8>(),
                    Format::Q5_0 => rows::<Q5_0, 8>(),
                    Format::Q4K => rows::<Q4K, 8>(),
                    Format::Q4_1 => rows::<Q4_1, 8>(),
                    Format::Q4_0 => rows::<Q4_0, 8>(),
                    _ => unreachable!("formats without groups are dequantized"),
                }
            }

            pub(super) fn multiply_elements(format: Format) -> [MultiplyElements; FEW_ROWS] {
                const fn rows<E: Elements<COUNT>, const COUNT: usize>()
                -> [MultiplyElements; FEW_ROWS] {
                    [
                        elements::<E, COUNT, 1>,
                        elements::<E, COUNT, 2>,
                        elements::<E, COUNT, 3>,
                        elements::<E, COUNT, 4>,
                    ]
                }
                match format {
                    Format::F32 => rows::<F32, 1>(),
                    Format::F16 => rows::<F16, 1>(),
                    Format::Bf16 => rows::<Bf16, 2>(),
                    _ => unreachable!("other formats are multiplied in integers"),
                }
            }

            pub(super) fn unpack(format: Format) -> Unpack {
                match format {
                    Format::Q8_0 => to_bytes::<Q8_0, 8>,
                    Format::Q6K => to_bytes::<Q6K, 4>,
                    Format::Q5K => to_bytes::<Q5K, 8>,
                    Format::Q5_1 => to_bytes::<Q5_1, 8>,
                    Format::Q5_0 => to_bytes::<Q5_0, 8>,
                    Format::Q4K => to_bytes::<Q4K, 8>,
                    Format::Q4_1 => to_bytes::<Q4_1, 8>,
                    Format::Q4_0 => to_bytes::<Q4_0, 8>,
                    _ => unreachable!("formats without groups are dequantized"),
                }
            }

            pub(super) fn dequantize(format: Format) -> Dequantize {
                match format {
                    Format::F32 => to_numbers::<F32, 1>,
                    Format::F16 => to_numbers::<F16, 1>,
                    Format::Bf16 => to_numbers::<Bf16, 2>,
                    _ => unreachable!("other formats are multiplied in integers"),
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn quants<Q: Quants<STEPS>, const STEPS: usize, const ROWS: usize>(
                x: RoundedRows<'_>,
                weights: &[u8],
                out: TileOutput,
            ) {
                // SAFETY: as the caller says.
                unsafe { kernels::multiply_quants::<$lanes, Q, STEPS, ROWS>(x, weights, out) };
            }

            #[target_feature(enable = $features)]
            unsafe fn elements<E: Elements<COUNT>, const COUNT: usize, const ROWS: usize>(
                x: &[f32],
                weights: &[u8],
                out: TileOutput,
            ) {
                // SAFETY: as the caller says.
                unsafe { kernels::multiply_elements::<$lanes, E, COUNT, ROWS>(x, weights, out) };
            }

            #[target_feature(enable = $features)]
            unsafe fn to_bytes<Q: Quants<STEPS>, const STEPS: usize>(
                weights: &[u8],
                panel: PanelLanes<'_>,
            ) {
                // SAFETY: as the caller says.
                unsafe { kernels::unpack::<$lanes, Q, STEPS>(weights, panel) };
            }

            #[target_feature(enable = $features)]
            unsafe fn to_numbers<E: Elements<COUNT>, const COUNT: usize>(
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

kernels! { AVX512_VNNI = avx512_vnni, Avx512Vnni, "avx512f,avx512bw,avx512vnni,avx2,fma,f16c" }
kernels! { AVX_VNNI = avx_vnni, AvxVnni, "avx2,fma,f16c" }
kernels! { AVX2 = avx2, Avx2, "avx2,fma,f16c" }
