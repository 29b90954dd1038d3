//! Why a checkpoint wasn't made into a container, or a container into a checkpoint.

use std::{
    io,
    path::{Path, PathBuf},
};

use sluice_codec::{EncodeError, container::ContainerError};

use crate::checkpoint::{CheckpointError, folder::FolderError};

/// Why there is no container, or no folder made of one. Nothing that looks finished is left.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    /// The source can't be read, or changed meanwhile.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The container can't be read or written.
    #[error(transparent)]
    Container(ContainerError),
    /// A source that isn't a folder of safetensors.
    #[error("{path} is a GGUF file; only folders with safetensors are coded")]
    Gguf {
        /// The source.
        path: PathBuf,
    },
    /// A source that is coded.
    #[error("{path} is a .sluice file already", path = path.display())]
    Coded {
        /// The source.
        path: PathBuf,
    },
    /// More beside the weights than belongs to a model.
    #[error("the files beside the weights in {path} take more than {max_bytes} bytes", path = path.display())]
    FilesTooLarge {
        /// The source.
        path: PathBuf,
        /// What they may take.
        max_bytes: usize,
    },
    /// Something lies where the folder is to be.
    #[error("{path} exists and is no empty folder", path = path.display())]
    TargetExists {
        /// The target.
        path: PathBuf,
    },
    /// A folder that nothing can be moved to.
    #[error("{path} is a mount point; a checkpoint needs a folder inside it", path = path.display())]
    MountPoint {
        /// The target.
        path: PathBuf,
    },
    /// Too little room, found out before any work.
    #[error("{path} needs {needed_bytes} bytes, but only {free_bytes} are free there", path = path.display())]
    NoRoom {
        /// The target.
        path: PathBuf,
        /// What it will take.
        needed_bytes: u64,
        /// What there is.
        free_bytes: u64,
    },
    /// A tensor that can't be coded.
    #[error("tensor {tensor} can't be coded: {cause}")]
    Encode {
        /// Its name.
        tensor: String,
        /// Why not.
        cause: EncodeError,
    },
    /// The system refused.
    #[error("can't {operation} {path}: {cause}", path = path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// Threads can't be had.
    #[error("can't start threads: {0}")]
    Threads(String),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl CompressError {
    pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::Io {
            operation,
            path,
            cause,
        }
    }

    /// What to do about it, where there is something.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Container(ContainerError::Exists { .. }) => {
                "give another name, or --force to replace it"
            }
            Self::Container(
                ContainerError::WrongLength { .. }
                | ContainerError::HeaderDamaged { .. }
                | ContainerError::Damaged { .. },
            ) => "make it again from the checkpoint, or copy it again from where it is whole",
            Self::Container(ContainerError::NotAContainer { .. }) => {
                "sluiced compress makes one of a checkpoint's folder"
            }
            Self::Container(
                ContainerError::Version { .. } | ContainerError::UnknownScheme { .. },
            ) => "a later version of sluiced reads it",
            Self::Container(ContainerError::Busy { .. }) => {
                "wait for that process to end, or give another name"
            }
            Self::Gguf { .. } => "its weights are coded already, and are used as they are",
            Self::Checkpoint(CheckpointError::NotACheckpoint { .. }) => {
                "give a folder with safetensors"
            }
            Self::Checkpoint(CheckpointError::Changed { .. }) => {
                "run it again when nobody writes there any more"
            }
            Self::FilesTooLarge { .. } => "move away what doesn't belong to the model",
            Self::TargetExists { .. } => "give the name of a folder that isn't there yet",
            Self::NoRoom { .. } => "make room, or name a folder on another disk",
            Self::Encode {
                cause: EncodeError::NotFinite(_),
                ..
            } => "leave it as it is with --keep NAME, or code without loss",
            _ => return None,
        })
    }
}

impl From<ContainerError> for CompressError {
    fn from(error: ContainerError) -> Self {
        match error {
            ContainerError::Cancelled => Self::Cancelled,
            other => Self::Container(other),
        }
    }
}

impl From<FolderError> for CompressError {
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
