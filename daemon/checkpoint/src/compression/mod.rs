//! Checkpoints in one coded file: a Hugging Face folder made into a `.sluice` container, and back, bit for bit.
//!
//! What a container is, and how numbers are coded, is `sluice-codec`'s; here are the folders, the order of tensors, and the
//! threads. Memory stays at some chunks of a matrix, whatever its size.

mod compress;
mod decompress;
mod error;
mod files;
mod verify;

use std::{fs, path::Path};

use rustix::fs::statvfs;
pub use sluice_codec::{
    EncodeError, Lossless, Scheme, TrellisTarget,
    container::{
        Container, ContainerError, Damage, Glob, Hash, Header, TensorRecord, journal_of, partial_of,
    },
    layout::TILES,
};

pub use self::{
    compress::{CompressOptions, CompressResult, CompressionMethod, compress},
    decompress::{DecompressResult, decompress},
    error::CompressError,
    verify::verify,
};
use super::{
    Source,
    find::{is_container, weight_files},
};

/// Is told the name of the tensor that is at work, and how much is done.
pub type Progress<'a> = &'a mut (dyn FnMut(&str, ProgressBytes) + Send);

/// Bytes of weights, as they are or will be in a folder; of a container that is verified, its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgressBytes {
    /// Those that are done.
    pub done_bytes: u64,
    /// All of them.
    pub total_bytes: u64,
}

/// Bytes of rows that are read, coded by all threads, and written, in turn.
const BATCH_BYTES: usize = 32 << 20;

/// Opens a container for as long as it takes to work on it.
///
/// # Errors
/// Says what is wrong with it.
pub fn open(path: &Path) -> Result<Container, CompressError> {
    // Opening a pipe waits for a writer, and nothing could cancel that.
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(ContainerError::NotAContainer {
            path: path.display().to_string(),
        }
        .into()),
        // What can't be looked at is told when it is opened.
        _ => Ok(Container::open(path)?),
    }
}

/// The container that a checkpoint is, where it is one.
///
/// # Errors
/// When there is no checkpoint, or what is there can't be read.
pub fn container_of(source: &Source) -> Result<Option<Container>, CompressError> {
    let (folder, names) = weight_files(source)?;
    match (folder, &names[..]) {
        (Source::Folder(folder), [name]) if is_container(name) => {
            Ok(Some(open(&folder.join(name))?))
        }
        _ => Ok(None),
    }
}

/// The threads that code or decode; 0: one a core.
fn pool(threads: usize) -> Result<rayon::ThreadPool, CompressError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("sluice-codec-{index}"))
        .build()
        .map_err(|error| CompressError::Threads(error.to_string()))
}

/// Found out before minutes of work.
fn check_free_space(target: &Path, needed_bytes: u64) -> Result<(), CompressError> {
    // What is wrong with the folder is told when it is written to.
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

/// Stops when somebody said so; relaxed, since nothing is read on its account.
fn stop_if(cancel: &std::sync::atomic::AtomicBool) -> Result<(), CompressError> {
    match cancel.load(std::sync::atomic::Ordering::Relaxed) {
        true => Err(CompressError::Cancelled),
        false => Ok(()),
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
