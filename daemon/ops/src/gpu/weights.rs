//! Multiplying with weights as they lie on a card: as they are stored, or decoded there first, some rows at a time.

use std::ops::Range;

use sluice_cuda::{self as cuda, Gpu, Number, Span};
use sluice_formats::Format;
use sluice_machine::CardProfile;
use sluice_weights::{
    Weight,
    decoded::{Kept, ROWS, is_decoded_first, piece_rows},
};

use super::super::{Activation, Phase, clock::CardClock};
use crate::OpsError;

/// `x · weightᵀ` into `out`, whose numbers are said beside it, or added to it where those are `f32`.
pub(super) fn multiply(
    gpu: &Gpu,
    clock: &CardClock,
    card: &CardProfile,
    x: &Activation,
    weight: &Weight<'_>,
    (out, out_number): (Span, Number),
    accumulate: bool,
) -> Result<(), OpsError> {
    let number = card.number;
    let product = |weights: Span, outputs: Range<usize>| {
        let start = outputs.start * out_number.bytes();
        cuda::Product {
            out: out.part(start, out.bytes() - start),
            out_is_f32: out_number == Number::F32,
            out_stride: weight.rows,
            x: x.span(),
            weights,
            rows: x.len(),
            outputs: outputs.len(),
            width: weight.width,
            accumulate,
        }
    };
    let lies = weight.on_card();
    let kept = match lies.coded {
        None => Kept::Stored(weight.format),
        Some(coded) if coded.index.bytes() > 0 => Kept::Indexed,
        Some(_) => Kept::Coded,
    };
    let as_it_is = || match (kept, lies.coded) {
        (Kept::Indexed, Some(coded)) => {
            let rows = coded.first_row..coded.first_row + weight.rows;
            let matrix = coded.tensor.on_card(&rows, coded.base_row);
            let product = cuda::PaletteProduct {
                out,
                out_is_f32: out_number == Number::F32,
                out_stride: weight.rows,
                x: x.span(),
                rows: x.len(),
                weights: &matrix.at(lies.span),
                index: coded.index,
                index_rows: coded.base_rows,
                first_row: coded.first_row - coded.base_row,
                accumulate,
            };
            gpu.multiply_palette(number, product)
        }
        _ => {
            let product = product(lies.span, 0..weight.rows);
            gpu.multiply(number, weight.format.on_card(), product)
        }
    };
    if !is_decoded_first(card, kept, x.len()) {
        return Ok(as_it_is()?);
    }
    let row_bytes = weight.width * number.bytes();
    let decoded = lies.decoded;
    let rows = match piece_rows(weight.rows, row_bytes, decoded.bytes()) {
        Some(rows) => rows,
        // Where memory to decode into is short, they are multiplied as they are, if they can be.
        None if !is_decoded_first(card, kept, 0) => return Ok(as_it_is()?),
        // What a plan has for it could not be had: other programs have the card's memory.
        None => {
            return Err(OpsError::Card(cuda::CudaError::OutOfMemory {
                needed_bytes: (weight.rows.min(ROWS) * row_bytes) as u64,
                free_bytes: None,
            }));
        }
    };
    for start in (0..weight.rows).step_by(rows) {
        let these = start..weight.rows.min(start + rows);
        let to = decoded.part(0, these.len() * row_bytes);
        let piece = weight.rows(these.start, these.end);
        clock.within(Phase::Decode, || decode(gpu, number, &piece, to))?;
        gpu.multiply(number, Format::from(number).on_card(), product(to, these))?;
    }
    Ok(())
}

/// Decodes a weight into numbers that are computed in.
fn decode(gpu: &Gpu, number: Number, weight: &Weight<'_>, out: Span) -> Result<(), OpsError> {
    let lies = weight.on_card();
    let Some(coded) = lies.coded else {
        let (rows, width) = (weight.rows, weight.width);
        return Ok(gpu.dequantize(number, weight.format.on_card(), out, lies.span, rows, width)?);
    };
    let rows = coded.first_row..coded.first_row + weight.rows;
    let matrix = coded.tensor.on_card(&rows, coded.base_row);
    Ok(gpu.decode(number, out, &matrix.at(lies.span))?)
}
