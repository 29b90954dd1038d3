//! GGUF's block formats, quantized by importance: llama.cpp's weighted search of scales (ggml-quants.c), and GPTQ's
//! error feedback (arXiv 2210.17323) within scales that are fixed beforehand.
//!
//! The bytes are ordinary blocks, which every reader of GGUF dequantizes. Weight w of input j counts
//! E\[x_j²\] · √(σ² + w²) in the search, with σ² the block's mean square: important inputs, and large weights a bit
//! more. Without statistics all count the same, and the result is never worse than that of
//! [`Format::quantize`](sluice_formats::Format::quantize).

mod layout;
mod rounding;
mod scales;
mod search;

use rayon::prelude::*;
use thiserror::Error;

use sluice_formats::Format;

use crate::feedback::{Importance, MatrixError, columns_of};
use rounding::Grid;

/// Rows that a thread takes at a time.
const ROWS: usize = 256;

/// A quantized matrix, with its error.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedBlocks {
    /// Blocks of the format, row by row.
    pub bytes: Vec<u8>,
    /// tr(E H Eᵀ), summed over outputs, for a mean input position.
    pub error: f64,
    /// tr(W H Wᵀ), the power of the outputs.
    pub power: f64,
}

impl QuantizedBlocks {
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

/// Why a matrix can't be quantized to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BlocksError {
    /// Only `q8_0`, `q6_k`, `q4_k` and `q4_0` are supported.
    #[error("weights can't be quantized to {} by importance", .0.name())]
    Format(Format),
    /// Rows are not whole blocks.
    #[error("rows of {width} are not whole blocks of {}", .format.name())]
    Width {
        /// The format.
        format: Format,
        /// Weights of a row.
        width: usize,
    },
    /// The matrix or its statistics can't be used.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
}

/// Quantizes a matrix of rows of `width` weights to blocks. With `feedback` and [`Importance::Full`], each row takes
/// levels that make up for the errors of others, unless plain rounding happens to lose less in that row.
///
/// # Errors
/// When the format isn't supported, sizes differ, or something isn't finite.
pub fn quantize(
    format: Format,
    width: usize,
    values: &[f32],
    importance: Importance<'_>,
    feedback: bool,
) -> Result<QuantizedBlocks, BlocksError> {
    if !matches!(
        format,
        Format::Q8_0 | Format::Q6K | Format::Q4K | Format::Q4_0
    ) {
        return Err(BlocksError::Format(format));
    }
    importance.check(width, values)?;
    if !format.fits(width) {
        return Err(BlocksError::Width { format, width });
    }
    let feedback = feedback && matches!(importance, Importance::Full(_));
    let mut bytes = vec![0; format.bytes(values.len())];
    let results: Vec<(f64, f64)> = values
        .par_chunks(ROWS * width)
        .zip(bytes.par_chunks_mut(format.bytes(ROWS * width)))
        .map(|(values, bytes)| some_rows(format, width, values, importance, feedback, bytes))
        .collect();
    // Added in the order of chunks, so the sums don't depend on threads.
    Ok(QuantizedBlocks {
        bytes,
        error: results.iter().map(|(error, _)| error).sum(),
        power: results.iter().map(|(_, power)| power).sum(),
    })
}

/// Quantizes some rows, and returns their error and power.
fn some_rows(
    format: Format,
    width: usize,
    values: &[f32],
    importance: Importance<'_>,
    feedback: bool,
    bytes: &mut [u8],
) -> (f64, f64) {
    let row_bytes = format.bytes(width);
    for (values, bytes) in values
        .chunks_exact(width)
        .zip(bytes.chunks_exact_mut(row_bytes))
    {
        rounding::row(format, values, importance.mean_squares(), bytes);
    }
    let rows: Vec<usize> = (0..values.len() / width).collect();
    let weights = columns_of(values, width, &rows);
    let mut decoded = vec![0.; values.len()];
    format.dequantize(bytes, &mut decoded);
    let decoded = columns_of(&decoded, width, &rows);
    let power = importance.row_powers(&weights, rows.len()).iter().sum();
    let mut errors = importance.quantize(&weights, rows.len(), false, |column, _, out| {
        out.copy_from_slice(&decoded[column * rows.len()..][..rows.len()]);
    });
    if feedback {
        let mut grid = Grid::new(format, width, bytes);
        let fed_back = importance.quantize(&weights, rows.len(), true, |column, target, out| {
            grid.round(column, target, out);
        });
        for row in rows {
            if fed_back[row] < errors[row] {
                errors[row] = fed_back[row];
                grid.put_row(row, &mut bytes[row * row_bytes..][..row_bytes]);
            }
        }
    }
    (errors.iter().sum(), power)
}

#[cfg(test)]
mod tests;
