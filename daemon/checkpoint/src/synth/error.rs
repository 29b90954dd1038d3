//! Why a checkpoint wasn't written.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{CheckpointError, folder::FolderError};

/// Why a checkpoint wasn't written. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// A shape that the engine would refuse to load.
    #[error("a checkpoint of this shape could not be loaded: {0}")]
    Shape(#[from] CheckpointError),
    /// Something lies there already.
    #[error("{path} exists and is not an empty folder", path = path.display())]
    TargetExists {
        /// The target.
        path: PathBuf,
    },
    /// A folder that nothing can be moved to.
    #[error("{path} is a mount point; name a folder inside it", path = path.display())]
    MountPoint {
        /// The target.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {operation} {path}: {cause}", path = path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// The system refused weights, as it does when the disk is full.
    #[error("cannot write {path} after {done_bytes} of {total_bytes} bytes: {cause}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Bytes of weights written so far, in all files.
        done_bytes: u64,
        /// Those in all.
        total_bytes: u64,
        /// The system's words.
        cause: io::Error,
    },
    /// Threads can't be had.
    #[error("cannot start threads: {0}")]
    Threads(String),
    /// It was cancelled.
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
