//! Matmuls with weights as they lie on a GPU: as they are stored, or decompressed there first, some rows at a time.

use std::ops::Range;

use sluice_cuda::{self as cuda, Gpu, GpuSpan};
use sluice_formats::{DType, Format};
use sluice_machine::GpuProfile;
use sluice_weights::{
    Weight,
    decompressed::{GpuStorage, ROWS, is_decompressed_first, piece_rows},
};

use super::super::{Activation, Phase, clock::GpuClock};
use crate::OpsError;

/// `x · weightᵀ` into `out`, whose dtype is given beside it, or added to it where that is `f32`.
pub(super) fn matmul(
    gpu: &Gpu,
    clock: &GpuClock,
    card: &GpuProfile,
    x: &Activation,
    weight: &Weight<'_>,
    (out, out_number): (GpuSpan, DType),
    accumulate: bool,
) -> Result<(), OpsError> {
    let number = card.dtype;
    let product = |weights: GpuSpan, outputs: Range<usize>| {
        let start = outputs.start * out_number.bytes();
        cuda::Matmul {
            out: out.part(start, out.bytes() - start),
            out_is_f32: out_number == DType::F32,
            // Pieces of the weight fill some columns of each row, so the stride stays that of the whole output.
            out_stride: weight.rows,
            x: x.span(),
            weights,
            rows: x.len(),
            outputs: outputs.len(),
            width: weight.width,
            accumulate,
        }
    };
    let lies = weight.on_gpu();
    let kept = match lies.compressed {
        None => GpuStorage::Plain(weight.format),
        // Dictionary-compressed weights with an index may be multiplied as they are; others must be decompressed first.
        Some(compressed) if compressed.index.bytes() > 0 => GpuStorage::DictionaryIndexed,
        Some(_) => GpuStorage::Compressed,
    };
    let as_it_is = || match (kept, lies.compressed) {
        (GpuStorage::DictionaryIndexed, Some(compressed)) => {
            let rows = compressed.first_row..compressed.first_row + weight.rows;
            let matrix = compressed.tensor.on_gpu(&rows, compressed.base_row);
            let product = cuda::DictionaryMatmul {
                out,
                out_is_f32: out_number == DType::F32,
                out_stride: weight.rows,
                x: x.span(),
                rows: x.len(),
                weights: &matrix.at(lies.span),
                index: compressed.index,
                index_rows: compressed.base_rows,
                first_row: compressed.first_row - compressed.base_row,
                accumulate,
            };
            gpu.matmul_dictionary(number, product)
        }
        _ => {
            let product = product(lies.span, 0..weight.rows);
            gpu.matmul(number, weight.format, product)
        }
    };
    // The rule is shared with the plan, which predicts time and memory by it.
    if !is_decompressed_first(card, kept, x.len()) {
        return Ok(as_it_is()?);
    }
    let row_bytes = weight.width * number.bytes();
    let decoded = lies.decompressed;
    let rows = match piece_rows(weight.rows, row_bytes, decoded.bytes()) {
        // Pieces of as many rows as the plan's decompression memory holds; the stream orders each matmul before the
        // next piece overwrites it.
        Some(rows) => rows,
        // Where memory to decompress into is short, they are multiplied as they are, if they can be.
        None if !is_decompressed_first(card, kept, 0) => return Ok(as_it_is()?),
        // The plan's decompression memory could not be allocated: other programs hold the GPU's memory.
        None => {
            return Err(OpsError::Gpu(cuda::CudaError::OutOfMemory {
                needed_bytes: (weight.rows.min(ROWS) * row_bytes) as u64,
                free_bytes: None,
            }));
        }
    };
    for start in (0..weight.rows).step_by(rows) {
        let these = start..weight.rows.min(start + rows);
        let to = decoded.part(0, these.len() * row_bytes);
        let piece = weight.rows(these.start, these.end);
        clock.within(Phase::Decompress, || decompress(gpu, number, &piece, to))?;
        gpu.matmul(number, Format::from(number), product(to, these))?;
    }
    Ok(())
}

/// Decompresses or dequantizes a weight into the dtype that is computed in.
fn decompress(gpu: &Gpu, dtype: DType, weight: &Weight<'_>, out: GpuSpan) -> Result<(), OpsError> {
    let lies = weight.on_gpu();
    let Some(compressed) = lies.compressed else {
        let (rows, width) = (weight.rows, weight.width);
        return Ok(gpu.dequantize(dtype, weight.format, out, lies.span, rows, width)?);
    };
    let rows = compressed.first_row..compressed.first_row + weight.rows;
    let matrix = compressed.tensor.on_gpu(&rows, compressed.base_row);
    Ok(gpu.decompress(dtype, out, &matrix.at(lies.span))?)
}
