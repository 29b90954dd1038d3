//! Storing a tensor in another format on its way from the file, a few rows at a time: there is never a second copy of
//! a tensor, let alone of the model. Of what is coded there is one chunk besides.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use rayon::prelude::*;
use sluice_codec::DecodeError;

use crate::{
    checkpoint::{CheckpointError, OpenRows},
    device::Device,
    error::EngineError,
    plan::TensorPlan,
};

/// Numbers that a thread converts at once, or a row where that is more: half a MiB of `f32`s and what they are made from.
const PIECE_NUMBERS: usize = 1 << 17;

/// Reads the rows of a plan's tensor by `read`, which fills bytes from a range of the stored tensor, and stores them as
/// the plan says; false when cancelled.
pub(super) fn convert(
    device: &Device,
    tensor: &TensorPlan,
    read: impl Fn(Range<u64>, &mut [u8]) -> Result<(), CheckpointError> + Sync,
    out: &mut [u8],
    cancel: &AtomicBool,
) -> Result<bool, EngineError> {
    let (from, to) = (tensor.source, tensor.storage.format());
    let width = tensor.width;
    let rows = (PIECE_NUMBERS / width).max(1);
    let source_stride = from.bytes(width);
    let mut result = Ok(());
    device.run(|| {
        result = out
            .par_chunks_mut(rows * to.bytes(width))
            .enumerate()
            .try_for_each(|(index, out)| {
                if cancel.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let count = out.len() / to.bytes(width);
                let start = ((tensor.first_row + index * rows) * source_stride) as u64;
                let mut source = vec![0; count * source_stride];
                read(start..start + source.len() as u64, &mut source)?;
                let mut numbers = vec![0.0; count * width];
                from.widen(&source, &mut numbers);
                to.store(&numbers, out);
                Ok(())
            });
    });
    result.map_err(EngineError::Checkpoint)?;
    Ok(!cancel.load(Ordering::Relaxed))
}

/// Decodes rows of a plan's tensor, and stores them as the plan says, on the device's threads.
pub(super) fn decode(
    device: &Device,
    tensor: &TensorPlan,
    open: &OpenRows<'_>,
    out: &mut [u8],
) -> Result<(), DecodeError> {
    let to = tensor.storage.format();
    let width = tensor.width;
    let rows = (PIECE_NUMBERS / width).max(1);
    let stride = to.bytes(width);
    let mut result = Ok(());
    device.run(|| {
        let pieces = out.par_chunks_mut(rows * stride).enumerate();
        result = pieces.try_for_each(|(index, out)| {
            let start = open.local.start + index * rows;
            let local = start..start + out.len() / stride;
            if to == tensor.source {
                return open.decode(local, out);
            }
            let mut numbers = vec![0.0; local.len() * width];
            open.coded.widen_rows(local, &mut numbers)?;
            to.store(&numbers, out);
            Ok(())
        });
    });
    result
}
