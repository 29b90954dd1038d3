//! Storing a tensor in another format on its way from the file, a few rows at a time: there is never a second copy of a
//! tensor, let alone of the model. Of compressed tensors one chunk is held besides.

use std::{
    cell::RefCell,
    convert::Infallible,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use rayon::prelude::*;
use sluice_checkpoint::CheckpointError;
use sluice_codec::{DecompressError, Scheme};
use sluice_formats::interleaved;
use sluice_machine::Workers;
use sluice_weights::{OpenRows, TensorPlan};

/// Elements that a thread converts at once, or a row where that is longer: 128 KiB of `f32` and half of that in bf16
/// source, which stay in its core's own cache.
const PIECE_ELEMENTS: usize = 1 << 15;
/// Pieces for each thread between two rests: about half a millisecond.
const BATCH_PIECES: usize = 4;

thread_local! {
    /// Source bytes and `f32` elements of a piece, kept for the next one: fresh memory would have every page cleared
    /// first.
    static SCRATCH: RefCell<(Vec<u8>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Reads rows of a plan's tensor by `read`, which fills bytes from a range of the stored tensor, and stores them in the
/// plan's format; false when cancelled.
pub(super) fn convert(
    workers: &Workers,
    tensor: &TensorPlan,
    read: impl Fn(Range<u64>, &mut [u8]) -> Result<(), CheckpointError> + Sync,
    out: &mut [u8],
    cancel: &AtomicBool,
) -> Result<bool, CheckpointError> {
    let (from, to) = (tensor.source, tensor.storage.format());
    let width = tensor.width;
    let (stride, source_stride) = (to.bytes(width), from.bytes(width));
    let rows = piece_rows(width);
    in_pieces(workers, out, rows, stride, cancel, |rows, out| {
        SCRATCH.with_borrow_mut(|(source, numbers)| {
            let start = ((tensor.first_row + rows.start) * source_stride) as u64;
            source.resize(rows.len() * source_stride, 0);
            read(start..start + source.len() as u64, source)?;
            numbers.resize(rows.len() * width, 0.0);
            // By way of `f32`, the only type that quantizers take.
            from.dequantize(source, numbers);
            to.quantize(numbers, out);
            Ok(())
        })
    })
}

/// Makes rows of a plan's tensor lie beside each other; false when cancelled.
pub(super) fn interleave(
    workers: &Workers,
    tensor: &TensorPlan,
    bytes: &mut [u8],
    cancel: &AtomicBool,
) -> bool {
    let (format, width) = (tensor.storage.format(), tensor.width);
    // Those that lie beside each other are in one piece.
    let rows = piece_rows(width).next_multiple_of(interleaved::ROWS);
    let done = in_pieces(
        workers,
        bytes,
        rows,
        format.bytes(width),
        cancel,
        |_, piece| {
            SCRATCH.with_borrow_mut(|(scratch, _)| {
                interleaved::interleave(format, width, piece, scratch);
            });
            Ok::<(), Infallible>(())
        },
    );
    let Ok(done) = done;
    done
}

/// Decompresses rows of a chunk, which belong to a plan's tensor, and stores them in the plan's format.
pub(super) fn decompress(
    workers: &Workers,
    tensor: &TensorPlan,
    open: &OpenRows<'_>,
    out: &mut [u8],
) -> Result<(), DecompressError> {
    let to = tensor.storage.format();
    let width = tensor.width;
    // A chunk is short: whoever reads the next one checks for a cancel.
    let never = AtomicBool::new(false);
    if open.matrix.layout().scheme() == Scheme::Columns {
        // Any rows take as long as all rows of a chunk, so they are not shared out.
        let mut result = Ok(());
        workers.run_beside(|busy| {
            result = busy.during(|| decompress_rows(tensor, open, open.local.clone(), out));
        });
        return result;
    }
    let rows = piece_rows(width);
    in_pieces(workers, out, rows, to.bytes(width), &never, |rows, out| {
        let local = open.local.start + rows.start..open.local.start + rows.end;
        decompress_rows(tensor, open, local, out)
    })
    .map(drop)
}

/// Decompresses some rows of a chunk to the format that they are stored in.
fn decompress_rows(
    tensor: &TensorPlan,
    open: &OpenRows<'_>,
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<(), DecompressError> {
    let to = tensor.storage.format();
    if to == tensor.source {
        return open.decompress(rows, out);
    }
    SCRATCH.with_borrow_mut(|(_, numbers)| {
        numbers.resize(rows.len() * tensor.width, 0.0);
        open.matrix.decompress_rows_f32(rows, numbers)?;
        to.quantize(numbers, out);
        Ok(())
    })
}

/// Rows of this width that a thread converts at once.
fn piece_rows(width: usize) -> usize {
    (PIECE_ELEMENTS / width).max(1)
}

/// Makes rows of `stride` bytes, a piece of `rows` a thread at a time, and gives way to passes. False when cancelled.
fn in_pieces<E: Send>(
    workers: &Workers,
    out: &mut [u8],
    rows: usize,
    stride: usize,
    cancel: &AtomicBool,
    make: impl Fn(Range<usize>, &mut [u8]) -> Result<(), E> + Sync,
) -> Result<bool, E> {
    let threads = workers.threads().max(1);
    // A batch is what all threads do between two rests, so the pass beside waits for at most one.
    let batch_rows = rows * BATCH_PIECES * threads;
    let mut result = Ok(());
    for (batch, out) in out.chunks_mut(batch_rows * stride).enumerate() {
        if cancel.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let first_row = batch * batch_rows;
        // Each thread's busy time is summed: the rest after a batch is a multiple of what it really took of the cores.
        workers.run_beside(|busy| {
            let pieces = out.par_chunks_mut(rows * stride).enumerate();
            result = pieces.try_for_each(|(piece, out)| {
                let start = first_row + piece * rows;
                busy.during(|| make(start..start + out.len() / stride, out))
            });
        });
        std::mem::replace(&mut result, Ok(()))?;
    }
    Ok(!cancel.load(Ordering::Relaxed))
}
