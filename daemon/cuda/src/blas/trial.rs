//! Checks that a cuBLAS which opened can compute on this GPU. One that is too old or too new for it says so only when
//! it is used.

use super::{Blas, Matmul};
use sluice_formats::DType;

use crate::{
    context::{Context, Stream},
    error::CudaError,
    memory::DeviceAllocation,
};

/// Rows, columns and depth of the matrices.
const SIDE: usize = 64;
/// Every byte of the factors: a small number in each dtype.
const BYTE: u8 = 0x3C;
/// Relative tolerance for the rounding of sums of 64 products.
const TOLERANCE: f32 = 1e-3;

/// Multiplies in every dtype of the GPU, with results in both dtypes, and checks the `f32` ones.
pub(super) fn check_gemm(
    blas: &Blas,
    context: Context,
    stream: &Stream,
    has_bf16: bool,
) -> Result<(), CudaError> {
    let bytes = SIDE * SIDE * size_of::<f32>();
    let memory = DeviceAllocation::allocate(context, 2 * bytes)?;
    let (factors, out) = (memory.span.part(0, bytes), memory.span.part(bytes, bytes));
    stream.fill(factors, BYTE)?;
    for number in DType::ALL {
        // Turing has no bf16, which is no reason to do without cuBLAS in f16.
        if number == DType::Bf16 && !has_bf16 {
            continue;
        }
        for out_is_f32 in [true, false] {
            blas.gemm(
                number,
                Matmul {
                    out,
                    out_is_f32,
                    x: factors,
                    weights: factors,
                    rows: SIDE,
                    outputs: SIDE,
                    out_stride: SIDE,
                    width: SIDE,
                    accumulate: false,
                },
            )?;
            // For the short dtype it is enough that the call isn't refused.
            if !out_is_f32 {
                continue;
            }
            let mut found = vec![0; bytes];
            stream.download(out, &mut found)?;
            let expected = SIDE as f32 * value(number).powi(2);
            let mut found = found
                .chunks_exact(4)
                .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
            if !found.all(|sum| (sum - expected).abs() <= TOLERANCE * expected) {
                return Err(CudaError::Blas {
                    what: "multiply",
                    name: format!("wrong GEMM results in {}", number.name()),
                });
            }
        }
    }
    // Results in the short dtype were not read back: if one of them failed, it is told only now.
    stream.wait()
}

/// The number that elements of such bytes are.
fn value(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => f32::from_le_bytes([BYTE; 4]),
        // 1.00111100b.
        DType::F16 => 1.0 + f32::from(BYTE) / 1024.0,
        DType::Bf16 => f32::from_le_bytes([0, 0, BYTE, BYTE]),
    }
}
