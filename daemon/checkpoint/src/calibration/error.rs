//! Errors of calibration files.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::ModelIdentity;
use crate::CheckpointError;

/// Why a calibration can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The file can't be read, or isn't a safetensors file.
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// The file isn't what a calibration writes.
    #[error("{path} is damaged, or no calibration: {cause}", path = path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The file is of another model.
    #[error("{path} is the calibration of {calibrated}, not of {expected}", path = path.display())]
    AnotherModel {
        /// Path of the file.
        path: PathBuf,
        /// The model that it is of.
        calibrated: Box<ModelIdentity>,
        /// The model that it should be of.
        expected: Box<ModelIdentity>,
    },
    /// There are too few positions for statistics.
    #[error("{what} has {positions} positions; a calibration needs at least {needed}")]
    TooLittle {
        /// The file, or the text.
        what: String,
        /// How many there are.
        positions: u64,
        /// How many are needed.
        needed: u64,
    },
    /// A file of that name is there.
    #[error("{path} exists", path = path.display())]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// The disk has too little free space; found before any work.
    #[error("{path} needs {needed_bytes} bytes, but only {free_bytes} are free there", path = path.display())]
    NoSpace {
        /// Path of the file.
        path: PathBuf,
        /// Bytes of the file.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
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
}

impl CalibrationError {
    pub(super) fn io(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |cause| Self::Io {
            operation,
            path: path.to_owned(),
            cause,
        }
    }

    /// What the user can do about it, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::File(_) => return None,
            Self::Damaged { .. } => "make it again with sluice calibrate",
            Self::AnotherModel { .. } => "load that model, or calibrate this one: sluice calibrate",
            Self::TooLittle { .. } => "give more text, or leave it out for the built-in one",
            Self::Exists { .. } => "name a file that does not exist yet, or add --replace",
            Self::NoSpace { .. } => {
                "free space on that disk, name a file on another one with -o, or add --diagonal"
            }
            Self::Io { cause, .. } if cause.kind() == io::ErrorKind::StorageFull => {
                "free space on that disk, or name a file on another one with -o"
            }
            Self::Io { .. } => "name a file in a folder where sluiced may write, with -o",
        })
    }
}
