//! What can be wrong with a container, or with writing one: each names the file, and in it what and where.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::VERSION;

/// Why a container can't be read or written.
#[derive(Debug, Error)]
pub enum ContainerError {
    /// The system refused.
    #[error("cannot {operation} {path}: {cause}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: String,
        /// The system's words.
        cause: io::Error,
    },
    /// The first bytes are another file's.
    #[error("{path} is not a .sluice file, or was never finished: it lacks the magic bytes")]
    NotAContainer {
        /// The file.
        path: String,
    },
    /// Written by a later version, or an earlier one.
    #[error("{path} has format version {found}; this program supports version {VERSION}")]
    Version {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
    },
    /// More or fewer bytes than the header says.
    #[error("{path} is truncated or damaged: it has {found} bytes instead of {expected}")]
    WrongLength {
        /// The file.
        path: String,
        /// By the header.
        expected: u64,
        /// In truth.
        found: u64,
    },
    /// The header isn't what was written.
    #[error("{path} is damaged: its header doesn't match its checksum")]
    HeaderDamaged {
        /// The file.
        path: String,
    },
    /// A header that makes no sense.
    #[error("{path} is malformed: {problem}")]
    Malformed {
        /// The file.
        path: String,
        /// What, of which tensor or file.
        problem: String,
    },
    /// A tensor coded in a way of a later version.
    #[error("{path}: tensor {tensor} is compressed with the unknown scheme {scheme}")]
    UnknownScheme {
        /// The file.
        path: String,
        /// The tensor.
        tensor: String,
        /// The scheme's id.
        scheme: u8,
    },
    /// No such tensor or file in it.
    #[error("{path} has no {what}")]
    Missing {
        /// The container.
        path: String,
        /// What was looked for.
        what: String,
    },
    /// What was read isn't what was written.
    #[error("{path} is damaged: {damage}")]
    Damaged {
        /// The file.
        path: String,
        /// Where.
        damage: Damage,
    },
    /// The target is there already.
    #[error("{path} already exists")]
    Exists {
        /// The target.
        path: String,
    },
    /// Somebody else writes the same file.
    #[error("{path} is being written by another process")]
    Busy {
        /// The unfinished file.
        path: String,
    },
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl ContainerError {
    pub(super) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |cause| Self::Io {
            operation,
            path,
            cause,
        }
    }
}

/// What of a container isn't as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// One tile of a tensor.
    Tile {
        /// The tensor.
        tensor: String,
        /// Which of its tiles, from 0 on.
        tile: usize,
    },
    /// What all tiles of a chunk are read by: its table, steps, offsets or lengths.
    Tables {
        /// The tensor.
        tensor: String,
        /// The first of the chunk's tiles.
        tile: usize,
    },
    /// Somewhere in a tensor, outside of its tiles, or such that no tile tells.
    Tensor {
        /// The tensor.
        tensor: String,
    },
    /// All bytes are as they were written, and mean no matrix, or another one.
    Original {
        /// The tensor.
        tensor: String,
        /// What its decoder says, where it says something.
        cause: String,
    },
    /// One of the files inside.
    File {
        /// Its name.
        name: String,
    },
    /// The section of checksums: what they are of may be sound.
    Checks,
    /// The source's hash doesn't follow from what the header says of tensors and files.
    Source,
    /// Bytes between the parts, which are zero.
    Padding {
        /// The first that isn't.
        at: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tile { tensor, tile } => write!(f, "tensor {tensor}, tile {tile}"),
            Self::Tables { tensor, tile } => {
                write!(
                    f,
                    "tensor {tensor}, the tables of tile {tile} and those after it"
                )
            }
            Self::Tensor { tensor } => write!(f, "tensor {tensor}, outside its tiles"),
            Self::Original { tensor, cause } => {
                write!(f, "tensor {tensor} cannot be decompressed: {cause}")
            }
            Self::File { name } => write!(f, "the file {name} inside"),
            Self::Checks => write!(f, "its checksum section"),
            Self::Source => write!(f, "the hash of its source"),
            Self::Padding { at } => write!(f, "the padding byte at {at} is not zero"),
        }
    }
}

/// How messages name a path.
pub(super) fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// A name beside `path`, with something added.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}
