//! Compresses a Hugging Face folder to a `.sluice` container, and decompresses it again, bit for bit.
//!
//! The container and its coders are `sluice-codec`'s; this module deals with folders, the order of tensors, and
//! threads. Memory is bounded by a batch of chunks, whatever the tensor's size.

mod compress;
mod decompress;
mod error;
mod files;
mod identity;
mod options;
mod prune_error;
mod tensor;
mod verify;

use std::{fs, path::Path};

use rustix::fs::statvfs;
pub use sluice_codec::{
    EncodeError, Lossless, Scheme, TrellisTarget,
    container::{
        Container, ContainerError, Damage, Glob, Hash, Header, TensorFilter, TensorRecord,
        journal_of, partial_of,
    },
    layout::TILES,
};

pub use self::{
    compress::{CompressResult, SourceCheck, compress, compress_checked},
    decompress::{DecompressResult, decompress, remove_abandoned},
    error::CompressError,
    options::{CompressOptions, CompressionMethod},
    prune_error::PruneError,
    verify::verify,
};
pub(crate) use self::{
    compress::{check_target, in_order},
    files::ModelFiles,
    tensor::{dtype_name, read_pieces},
};
use super::{
    Source,
    find::{is_container, weight_files},
};

/// Progress callback: the name of the current tensor, and how much is done.
pub type Progress<'a> = &'a mut (dyn FnMut(&str, ProgressBytes) + Send);

/// Progress in bytes of uncompressed weights; when a container is verified, in bytes of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgressBytes {
    /// Bytes that are done.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// Bytes of rows that are read, compressed by all threads, and written in turn.
const BATCH_BYTES: usize = 32 << 20;

/// Opens a container.
///
/// # Errors
/// When it cannot be read, or is no valid container.
pub fn open(path: &Path) -> Result<Container, CompressError> {
    // Opening a pipe would block until somebody writes to it, and could not be cancelled.
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(ContainerError::NotAContainer {
            path: path.display().to_string(),
        }
        .into()),
        // If it cannot be examined, the error appears when it is opened.
        _ => Ok(Container::open(path)?),
    }
}

/// The container at a source, if the source is one.
///
/// # Errors
/// When there is no checkpoint, or what is there cannot be read.
pub fn container_of(source: &Source) -> Result<Option<Container>, CompressError> {
    let (folder, names) = weight_files(source)?;
    match (folder, &names[..]) {
        (Source::Folder(folder), [name]) if is_container(name) => {
            Ok(Some(open(&folder.join(name))?))
        }
        _ => Ok(None),
    }
}

/// A pool of threads for compression; 0 for one per core. A pool of its own, because its size is the user's to choose.
pub(crate) fn pool(threads: usize) -> Result<rayon::ThreadPool, CompressError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("sluice-codec-{index}"))
        .build()
        .map_err(|error| CompressError::Threads(error.to_string()))
}

/// Checks free space before minutes of work.
pub(crate) fn check_free_space(target: &Path, needed_bytes: u64) -> Result<(), CompressError> {
    // If the folder cannot be examined, the error appears when it is written to.
    let absolute = std::path::absolute(target).ok();
    let folder = absolute.as_deref().and_then(Path::parent);
    let Some(free) = folder.and_then(|folder| statvfs(folder).ok()) else {
        return Ok(());
    };
    let free_bytes = free.f_bavail.saturating_mul(free.f_frsize);
    match free_bytes < needed_bytes {
        true => Err(CompressError::NoSpace {
            path: target.to_owned(),
            needed_bytes,
            free_bytes,
        }),
        false => Ok(()),
    }
}

/// Returns an error if the flag is set. Relaxed ordering suffices: no other data depends on the flag.
pub(crate) fn stop_if(cancel: &std::sync::atomic::AtomicBool) -> Result<(), CompressError> {
    match cancel.load(std::sync::atomic::Ordering::Relaxed) {
        true => Err(CompressError::Cancelled),
        false => Ok(()),
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
