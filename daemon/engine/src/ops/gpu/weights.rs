//! Multiplying with weights as they lie on a card: as they are stored, or decoded there first, some rows at a time.

use std::ops::Range;

use sluice_cuda::{self as cuda, Gpu, Number, Span};

use super::super::Activation;
use crate::{
    device::CardProfile,
    error::EngineError,
    format::Format,
    plan::decoded::{is_decoded_first, piece_rows},
    residency::Weight,
};

/// `x · weightᵀ` into `out`, whose numbers are said beside it, or added to it where those are `f32`.
pub(super) fn multiply(
    gpu: &Gpu,
    card: &CardProfile,
    x: &Activation,
    weight: &Weight<'_>,
    (out, out_number): (Span, Number),
    accumulate: bool,
) -> Result<(), EngineError> {
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
    if !is_decoded_first(card, weight.format, lies.coded.is_some(), x.len()) {
        let product = product(lies.span, 0..weight.rows);
        return Ok(gpu.multiply(number, weight.format.on_card(), product)?);
    }
    let row_bytes = weight.width * number.bytes();
    let decoded = lies.decoded;
    let rows = match piece_rows(weight.rows, row_bytes, decoded.bytes()) {
        Some(rows) => rows,
        // Where memory to decode blocks into is short, they are multiplied as they are, if they can be.
        None if lies.coded.is_none() && weight.format.is_multiplied_on_cards() => {
            let product = product(lies.span, 0..weight.rows);
            return Ok(gpu.multiply(number, weight.format.on_card(), product)?);
        }
        None => unreachable!("a plan has room for what it decodes"),
    };
    for start in (0..weight.rows).step_by(rows) {
        let these = start..weight.rows.min(start + rows);
        let to = decoded.part(0, these.len() * row_bytes);
        decode(gpu, number, &weight.rows(these.start, these.end), to)?;
        gpu.multiply(number, plain(number), product(to, these))?;
    }
    Ok(())
}

/// Decodes a weight into numbers that are computed in.
fn decode(gpu: &Gpu, number: Number, weight: &Weight<'_>, out: Span) -> Result<(), EngineError> {
    let lies = weight.on_card();
    let Some(coded) = lies.coded else {
        let (rows, width) = (weight.rows, weight.width);
        return Ok(gpu.dequantize(number, weight.format.on_card(), out, lies.span, rows, width)?);
    };
    let rows = coded.first_row..coded.first_row + weight.rows;
    let chunks = coded.tensor.chunks_on_card(&rows, coded.base_row);
    let matrix = cuda::CodedMatrix {
        coding: (coded.tensor.coding_on_card()).expect("what is kept coded has a scheme"),
        source: match weight.format {
            Format::F32 => Number::F32,
            Format::F16 => Number::F16,
            _ => Number::Bf16,
        },
        width: weight.width,
        tile: coded.tensor.tile(),
        bytes: lies.span,
        chunks: &chunks,
    };
    Ok(gpu.decode(number, out, &matrix)?)
}

/// The format of numbers that are computed in.
fn plain(number: Number) -> cuda::Format {
    match number {
        Number::F32 => cuda::Format::F32,
        Number::F16 => cuda::Format::F16,
        Number::Bf16 => cuda::Format::Bf16,
    }
}
