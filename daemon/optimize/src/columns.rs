//! WaterSIC (arXiv 2603.04956) with a trellis: a step for each column, in proportion to 1/C_jj, entropy-coded levels,
//! and error feedback from the last column to the first.
//!
//! In the paper scalar levels stay within a quarter of a bit of the information limit for any second moments; the
//! trellis (`sluice_codec`) takes most of that quarter. Rows don't depend on each other, so chunks of 256 rows are
//! quantized in parallel. Without correlations known, C is diagonal and steps follow importance alone; without any
//! statistics H = I and all columns have one step.

mod coder;
mod rate;

use thiserror::Error;

use sluice_codec::{ColumnsEncoder, EncodeError, Encoded};
use sluice_formats::DType;

use crate::feedback::{Importance, MatrixError};
use rate::RateSearch;

/// Rows that are coded together.
pub const CHUNK_ROWS: usize = 256;

/// What a quantization aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QuantizeTarget {
    /// Bits per weight, everything included; found from a sample of the rows, to about half a percent.
    Bits(f64),
    /// The scale c of the steps: column j has the step c / C_jj, with C_jj = √H_jj where there is no feedback.
    Step(f64),
}

/// How to quantize a matrix.
#[derive(Clone, Copy, Debug)]
pub struct ColumnsOptions {
    /// The dtype that the weights had.
    pub dtype: DType,
    /// Bits per weight, or a step.
    pub target: QuantizeTarget,
    /// Whether errors are fed back into columns to come, where correlations are known.
    pub feedback: bool,
}

/// A quantized matrix, with its size and error.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedColumns {
    /// One for each [`CHUNK_ROWS`] rows; the last may have fewer.
    pub chunks: Vec<Encoded>,
    /// The scale c of the steps, as in [`QuantizeTarget::Step`].
    pub step: f64,
    /// Bits per weight, everything included.
    pub bits: f64,
    /// tr(E H Eᵀ), summed over outputs, for a mean input position.
    pub error: f64,
    /// tr(W H Wᵀ), the power of the outputs.
    pub power: f64,
}

impl QuantizedColumns {
    /// Error beside the outputs' power; 0 where these are zero.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        if self.power > 0. {
            self.error / self.power
        } else {
            0.
        }
    }
}

/// Why a matrix can't be quantized.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ColumnsError {
    /// The matrix or its statistics can't be used.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// The target isn't finite and above zero.
    #[error("bits or step must be finite and above zero, not {0}")]
    Target(f64),
    /// Coding failed.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Quantizes a matrix of rows of `width` weights.
///
/// # Errors
/// When sizes differ, something isn't finite, the target can't be one, or coding fails.
pub fn quantize(
    width: usize,
    values: &[f32],
    importance: Importance<'_>,
    options: ColumnsOptions,
) -> Result<QuantizedColumns, ColumnsError> {
    let new = |row_sizes: &[f32], step| ColumnsEncoder::new(options.dtype, width, row_sizes, step);
    let search = RateSearch::new(width, values, importance, options.feedback, &new)?;
    let (step, outcome) = search.quantize(options.target)?;
    Ok(QuantizedColumns {
        chunks: outcome.chunks,
        step,
        bits: outcome.bits,
        error: outcome.error,
        power: search.power(),
    })
}

#[cfg(test)]
mod tests;
