//! Errors of compression and decompression.

use std::{
    io,
    path::{Path, PathBuf},
};

use sluice_codec::{EncodeError, container::ContainerError};
use sluice_shared::{compression::DAMAGED_HINT, mix::MixId};

use super::PruneError;
use crate::{CheckpointError, folder::FolderError};

/// Why compression or decompression failed. Nothing that looks finished is left.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    /// The source cannot be read, or changed meanwhile.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The container cannot be read or written.
    #[error(transparent)]
    Container(ContainerError),
    /// The source is a GGUF file.
    #[error("{path} is a GGUF file; only folders with safetensors can be compressed")]
    Gguf {
        /// Path of the source.
        path: PathBuf,
    },
    /// The source is compressed already.
    #[error("{path} is already a .sluice file", path = path.display())]
    AlreadyCompressed {
        /// Path of the source.
        path: PathBuf,
    },
    /// None of the tensors has a name that is to be compressed.
    #[error("no tensor is named like {patterns}; there are {names}")]
    NoSuchTensor {
        /// The patterns, quoted.
        patterns: String,
        /// Names of some tensors, quoted.
        names: String,
    },
    /// There is no such mix of the checkpoint.
    #[error("there is no mix {mix} of this checkpoint")]
    NoMix {
        /// Its name.
        mix: MixId,
    },
    /// The files beside the weights are too large for a model's.
    #[error("the files other than weights in {path} exceed the limit of {max_bytes} bytes", path = path.display())]
    FilesTooLarge {
        /// Path of the source folder.
        path: PathBuf,
        /// The limit for all files together.
        max_bytes: usize,
    },
    /// The target folder exists and isn't empty.
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
    /// The disk has too little free space; found before any work.
    #[error("{path} needs at least {needed_bytes} bytes, but only {free_bytes} are free there", path = path.display())]
    NoSpace {
        /// Path of the target.
        path: PathBuf,
        /// Bytes that are needed at least.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// A tensor cannot be compressed.
    #[error("cannot compress tensor {tensor}: {cause}")]
    Encode {
        /// Name of the tensor.
        tensor: String,
        /// Why it cannot be compressed.
        cause: EncodeError,
    },
    /// The model cannot be pruned as it was asked for.
    #[error(transparent)]
    Prune(#[from] PruneError),
    /// The container has no headers of weight files: its tensors are not those of the files that it was made from.
    #[error(
        "{path} cannot be decompressed: it is a pruned model, whose tensors are not those of the files that it was made from"
    )]
    NoOriginal {
        /// Path of the container.
        path: String,
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
    /// Threads could not be started; the text is the system's.
    #[error("cannot start threads: {0}")]
    Threads(String),
    /// The caller set the cancel flag.
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

    /// What the user can do about it, if anything: for `sluiced compress` as for a job of the daemon.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Container(error) => return container_hint(error),
            Self::Io { cause, .. } => io_hint(cause),
            Self::NoSuchTensor { .. } => {
                "--only takes whole names, in which * stands for any characters, such as --only '*.mlp.*'"
            }
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
            Self::Prune(error) => error.hint(),
            Self::NoOriginal { .. } => "load the .sluice file itself; the original is not in it",
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

/// Hint for a file operation that failed.
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
