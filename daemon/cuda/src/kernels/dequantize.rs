//! Dequantizes stored weights to the compute dtype, for formats without a matmul kernel, and for cuBLAS.

use super::{address, holds, holds_weights, size_64};
use sluice_formats::{DType, Format};

use crate::{error::CudaError, gpu::Gpu, span::GpuSpan};

/// Weights that a thread dequantizes.
const RUN: usize = 16;

impl Gpu {
    /// Dequantizes rows of a block format: to the values that [`Gpu::embed`] gives, rounded as by [`Gpu::convert`].
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, the format has no blocks, the width is not whole ones, or `out` isn't aligned to 16 bytes.
    pub fn dequantize(
        &self,
        dtype: DType,
        format: Format,
        out: GpuSpan,
        weights: GpuSpan,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        /// Threads of a block: enough that their loads share memory sectors, and few enough that small matrices have
        /// many blocks.
        const THREADS: u32 = 128;
        assert!(format.block_len() > 1, "{} has no blocks", format.name());
        assert!(
            width.is_multiple_of(format.block_len()),
            "rows of {width} weights are not whole blocks"
        );
        let count = rows * width;
        holds("out", out, count, dtype.bytes());
        assert!(
            out.address().is_multiple_of(16),
            "out is written in 16 bytes"
        );
        holds_weights(weights, format, count);
        if count == 0 {
            return Ok(());
        }
        // Nothing is left over: blocks have 32 or 256 weights.
        let runs = count / RUN;
        // Rows are whole blocks, so that all weights are one sequence of runs: the kernel needs no shape.
        self.send(
            &format!("dequantize_{}_{}", dtype.name(), format.name()),
            [runs.div_ceil(THREADS as usize), 1],
            THREADS,
            &[address(out), address(weights), size_64(runs)],
        )
    }
}
