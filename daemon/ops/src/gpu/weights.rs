//! Matmuls with weights as they lie on a GPU: as they are stored, or decompressed there first, some rows at a time. The
//! matmul with a weight as it is takes them in a plain format alone.

use std::ops::Range;

use sluice_cuda::{self as cuda, Gpu, GpuSpan};
use sluice_formats::{DType, Format};
use sluice_machine::GpuProfile;
use sluice_weights::{
    Weight,
    decompressed::{GpuStorage, ROWS, is_decompressed_first, piece_rows},
};

use super::super::{Phase, clock::GpuClock};
use crate::OpsError;

/// `x · weightᵀ` of so many rows into `out`, whose dtype is given beside it, or added to it where that is `f32`.
pub(super) fn matmul(
    gpu: &Gpu,
    clock: &GpuClock,
    card: &GpuProfile,
    (x, rows): (GpuSpan, usize),
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
            x,
            weights,
            rows,
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
            let these = compressed.first_row..compressed.first_row + weight.rows;
            let matrix = compressed.tensor.on_gpu(&these, compressed.base_row);
            let product = cuda::DictionaryMatmul {
                out,
                out_is_f32: out_number == DType::F32,
                out_stride: weight.rows,
                x,
                rows,
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
    if !is_decompressed_first(card, kept, rows) {
        return Ok(as_it_is()?);
    }
    // Where memory to decompress into is short, they are multiplied as they are, if they can be.
    if pieces(weight, number).is_none() && !is_decompressed_first(card, kept, 0) {
        return Ok(as_it_is()?);
    }
    each_piece(gpu, clock, weight, number, |these, piece| {
        Ok(gpu.matmul(number, Format::from(number), product(piece, these))?)
    })
}

/// Weights in a plain format.
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    pub(super) span: GpuSpan,
    pub(super) format: Format,
    pub(super) rows: usize,
}

/// Hands on a weight in a plain format, with the first row of each piece: all of it as it lies, or decompressed pieces.
pub(super) fn each_plain(
    gpu: &Gpu,
    clock: &GpuClock,
    card: &GpuProfile,
    weight: &Weight<'_>,
    mut take: impl FnMut(usize, Plain) -> Result<(), OpsError>,
) -> Result<(), OpsError> {
    let lies = weight.on_gpu();
    if lies.compressed.is_none() && weight.format.block_len() == 1 {
        let all = Plain {
            span: lies.span,
            format: weight.format,
            rows: weight.rows,
        };
        return take(0, all);
    }
    each_piece(gpu, clock, weight, card.dtype, |rows, span| {
        let piece = Plain {
            span,
            format: card.dtype.into(),
            rows: rows.len(),
        };
        take(rows.start, piece)
    })
}

/// Rows of the pieces in which a weight is decompressed; `None` where there is too little memory for one.
fn pieces(weight: &Weight<'_>, dtype: DType) -> Option<usize> {
    let bytes = weight.on_gpu().decompressed.bytes();
    piece_rows(weight.rows, weight.width * dtype.bytes(), bytes)
}

/// Decompresses a weight and hands on its pieces: as many rows as the plan's decompression memory holds. The stream orders
/// what is sent for one before the next overwrites it.
fn each_piece(
    gpu: &Gpu,
    clock: &GpuClock,
    weight: &Weight<'_>,
    dtype: DType,
    mut take: impl FnMut(Range<usize>, GpuSpan) -> Result<(), OpsError>,
) -> Result<(), OpsError> {
    let row_bytes = weight.width * dtype.bytes();
    // The plan's decompression memory could not be allocated: other programs hold the GPU's memory.
    let rows = pieces(weight, dtype).ok_or(cuda::CudaError::OutOfMemory {
        needed_bytes: (weight.rows.min(ROWS) * row_bytes) as u64,
        free_bytes: None,
    })?;
    for start in (0..weight.rows).step_by(rows) {
        let these = start..weight.rows.min(start + rows);
        let to = weight
            .on_gpu()
            .decompressed
            .part(0, these.len() * row_bytes);
        let piece = weight.rows(these.start, these.end);
        clock.within(Phase::Decompress, || decompress(gpu, dtype, &piece, to))?;
        take(these, to)?;
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
