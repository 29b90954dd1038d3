//! Errors of writing a synthetic checkpoint.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{CheckpointError, folder::FolderError};

/// Why a checkpoint could not be written. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// The engine could not load a checkpoint of this shape.
    #[error("a checkpoint of this shape could not be loaded: {0}")]
    Shape(#[from] CheckpointError),
    /// The target exists and isn't an empty folder.
    #[error("{path} exists and is not an empty folder", path = path.display())]
    TargetExists {
        /// Path of the target.
        path: PathBuf,
    },
    /// The target is a mount point, which no folder can be renamed to.
    #[error("{path} is a mount point; name a folder inside it", path = path.display())]
    MountPoint {
        /// Path of the target.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {operation} {path}: {cause}", path = path.display())]
    Io {
        /// The operation, as a verb.
        operation: &'static str,
        /// The path that it failed on.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// Weights could not be written, e.g. because the disk is full.
    #[error("cannot write {path} after {done_bytes} of {total_bytes} bytes: {cause}", path = path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Bytes of weights written so far, in all files.
        done_bytes: u64,
        /// Bytes of weights in all files when they are complete.
        total_bytes: u64,
        /// The system's error.
        cause: io::Error,
    },
    /// Threads could not be started; the text is the system's.
    #[error("cannot start threads: {0}")]
    Threads(String),
    /// The caller set the cancel flag.
    #[error("cancelled")]
    Cancelled,
}

impl SynthError {
    pub(super) fn io(operation: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io {
            operation,
            path: path.to_owned(),
            cause,
        }
    }
}

impl From<FolderError> for SynthError {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::Exists { path } => Self::TargetExists { path },
            FolderError::MountPoint { path } => Self::MountPoint { path },
            FolderError::Io {
                operation,
                path,
                cause,
            } => Self::Io {
                operation,
                path,
                cause,
            },
        }
    }
}
