//! Stored weights become numbers that are computed in, for formats that aren't multiplied as they are, and for cuBLAS.

use super::{address, holds, holds_weights, size_64};
use sluice_formats::{DType, Format};

use crate::{error::CudaError, gpu::Gpu, span::GpuSpan};

/// Weights that a thread decodes.
const RUN: usize = 16;

impl Gpu {
    /// Rows of weights in blocks, as numbers: those that [`Gpu::embed`] gives, narrowed as [`Gpu::convert`] does.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
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
        /// Threads of a block: enough for its runs' bytes to share sectors, few enough for small matrices to have many blocks.
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
        let runs = count / RUN;
        self.send(
            &format!("dequantize_{}_{}", dtype.name(), format.name()),
            [runs.div_ceil(THREADS as usize), 1],
            THREADS,
            &[address(out), address(weights), size_64(runs)],
        )
    }
}
