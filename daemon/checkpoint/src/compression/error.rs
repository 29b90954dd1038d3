//! Why a checkpoint wasn't made into a container, or a container into a checkpoint.

use std::{
    io,
    path::{Path, PathBuf},
};

use sluice_codec::{EncodeError, container::ContainerError};
use sluice_shared::compression::DAMAGED_HINT;

use crate::{CheckpointError, folder::FolderError};

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
    #[error("{path} is a GGUF file; only folders with safetensors can be compressed")]
    Gguf {
        /// The source.
        path: PathBuf,
    },
    /// A source that is coded.
    #[error("{path} is already a .sluice file", path = path.display())]
    AlreadyCompressed {
        /// The source.
        path: PathBuf,
    },
    /// More beside the weights than belongs to a model.
    #[error("the files other than weights in {path} exceed the limit of {max_bytes} bytes", path = path.display())]
    FilesTooLarge {
        /// The source.
        path: PathBuf,
        /// What they may take.
        max_bytes: usize,
    },
    /// Something lies where the folder is to be.
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
    /// Too little room, found out before any work.
    #[error("{path} needs at least {needed_bytes} bytes, but only {free_bytes} are free there", path = path.display())]
    NoSpace {
        /// The target.
        path: PathBuf,
        /// What it will take.
        needed_bytes: u64,
        /// What there is.
        free_bytes: u64,
    },
    /// A tensor that can't be coded.
    #[error("cannot compress tensor {tensor}: {cause}")]
    Encode {
        /// Its name.
        tensor: String,
        /// Why not.
        cause: EncodeError,
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
    /// Threads can't be had.
    #[error("cannot start threads: {0}")]
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

    /// What to do about it, where there is something: for the program alone as for a job of the daemon.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Container(error) => return container_hint(error),
            Self::Io { cause, .. } => io_hint(cause),
            Self::Gguf { .. } => "GGUF weights are already quantized and are used as they are",
            Self::Checkpoint(CheckpointError::NotACheckpoint { .. }) => {
                "give a folder with safetensors"
            }
            Self::Checkpoint(CheckpointError::Changed { .. }) => {
                "run it again when no other process writes there"
            }
            Self::FilesTooLarge { .. } => {
                "move files that do not belong to the model out of the folder"
            }
            Self::TargetExists { .. } => "name a folder that does not exist yet",
            Self::NoSpace { .. } => NO_SPACE_HINT,
            Self::Encode {
                cause: EncodeError::NotFinite(_),
                ..
            } => "exclude it with --keep NAME, or use --lossless",
            Self::Threads(_) => "the system refused to start threads; try a smaller --threads",
            _ => return None,
        })
    }
}

const NO_SPACE_HINT: &str = "free space on that disk, or name an output path on another one";

fn container_hint(error: &ContainerError) -> Option<&'static str> {
    Some(match error {
        ContainerError::Io { cause, .. } => io_hint(cause),
        ContainerError::NotAContainer { .. } => "name a .sluice file; `sluice compress` makes one",
        ContainerError::Version { .. } | ContainerError::UnknownScheme { .. } => {
            "a later version of sluiced reads it"
        }
        ContainerError::WrongLength { .. }
        | ContainerError::HeaderDamaged { .. }
        | ContainerError::Damaged { .. }
        | ContainerError::Malformed { .. }
        | ContainerError::Missing { .. } => DAMAGED_HINT,
        ContainerError::Exists { .. } => {
            "choose another name, or delete the existing file first (sluiced compress: --force)"
        }
        ContainerError::Busy { .. } => "wait for that process to finish, or choose another name",
        ContainerError::Cancelled => return None,
    })
}

/// What the system refused, of files that somebody named.
fn io_hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::NotFound => "check the path; the folder of the output must exist",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "the daemon runs as its own user, which needs permission to read and write there; `sluiced compress`, `decompress` \
             and `verify` run as you"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => NO_SPACE_HINT,
        _ => "the disk or the file system reported an error; see the system log",
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
