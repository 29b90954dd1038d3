//! Checkpoints in one coded file: a Hugging Face folder made into a `.sluice` container, and back, bit for bit.
//!
//! What a container is, and how numbers are coded, is `sluice-codec`'s; here are the folders, the order of tensors, and the
//! threads. Memory stays at some chunks of a matrix, whatever its size.

mod compress;
mod decompress;
mod error;
mod files;

pub use sluice_codec::{
    Lossless, Scheme, Target,
    container::{
        Container, ContainerError, Damage, Glob, Hash, Header, TensorRecord, journal_of, partial_of,
    },
    layout::TILES,
};

pub use self::{
    compress::{Compressed, Compression, How, compress},
    decompress::{Decompressed, decompress},
    error::CompressError,
};

/// Is told the bytes of weights that are done, as they are or will be in a folder, and those in all.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// Bytes of rows that are read, coded by all threads, and written, in turn.
const BATCH_BYTES: usize = 32 << 20;

/// The threads that code or decode; 0: one a core.
fn pool(threads: usize) -> Result<rayon::ThreadPool, CompressError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("sluice-codec-{index}"))
        .build()
        .map_err(|error| CompressError::Threads(error.to_string()))
}

/// Stops when somebody said so; relaxed, since nothing is read on its account.
fn stop_if(cancel: &std::sync::atomic::AtomicBool) -> Result<(), CompressError> {
    match cancel.load(std::sync::atomic::Ordering::Relaxed) {
        true => Err(CompressError::Cancelled),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
