//! Errors of containers. Each names the file, and the place in it.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::VERSION;

/// Why a container cannot be read or written.
#[derive(Debug, Error)]
pub enum ContainerError {
    /// A system call failed.
    #[error("cannot {operation} {path}: {cause}")]
    Io {
        /// The operation: `open`, `read` or `write`.
        operation: &'static str,
        /// Path of the file or folder.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// The file doesn't begin with the magic bytes.
    #[error("{path} is not a .sluice file, or was never finished: it lacks the magic bytes")]
    NotAContainer {
        /// Path of the file.
        path: String,
    },
    /// The file has another format version.
    #[error("{path} has format version {found}; this program supports version {VERSION}")]
    Version {
        /// Path of the container.
        path: String,
        /// The version that the file has.
        found: u32,
    },
    /// The file's length differs from what its header says.
    #[error("{path} is truncated or damaged: it has {found} bytes instead of {expected}")]
    WrongLength {
        /// Path of the container.
        path: String,
        /// Length in bytes that the header says.
        expected: u64,
        /// The file's length in bytes.
        found: u64,
    },
    /// The header doesn't match its checksum.
    #[error("{path} is damaged: its header doesn't match its checksum")]
    HeaderDamaged {
        /// Path of the container.
        path: String,
    },
    /// The header is inconsistent.
    #[error("{path} is malformed: {problem}")]
    Malformed {
        /// Path of the container.
        path: String,
        /// What is wrong, with the name of the tensor or file.
        problem: String,
    },
    /// A tensor has a scheme that this version doesn't know.
    #[error("{path}: tensor {tensor} is compressed with the unknown scheme {scheme}")]
    UnknownScheme {
        /// Path of the container.
        path: String,
        /// Name of the tensor.
        tensor: String,
        /// The scheme's id.
        scheme: u8,
    },
    /// The container has no such tensor or file.
    #[error("{path} has no {what}")]
    Missing {
        /// Path of the container.
        path: String,
        /// What was looked for, in words.
        what: String,
    },
    /// Bytes don't match their checksum.
    #[error("{path} is damaged: {damage}")]
    Damaged {
        /// Path of the container.
        path: String,
        /// The damaged place.
        damage: Damage,
    },
    /// The target exists, and must not be replaced.
    #[error("{path} already exists")]
    Exists {
        /// Path of the target.
        path: String,
    },
    /// Another process writes the same container.
    #[error("{path} is being written by another process")]
    Busy {
        /// Path of the unfinished file.
        path: String,
    },
    /// The caller set the cancel flag.
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

/// A damaged place in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// One tile of a tensor.
    Tile {
        /// Name of the tensor.
        tensor: String,
        /// Index of the tile in the tensor.
        tile: usize,
    },
    /// The tables of a chunk, which its tiles are decoded by: table, steps, offsets or lengths.
    Tables {
        /// Name of the tensor.
        tensor: String,
        /// Index of the chunk's first tile.
        tile: usize,
    },
    /// Some byte of a tensor outside of its tiles, or damage that no tile's check shows.
    Tensor {
        /// Name of the tensor.
        tensor: String,
    },
    /// The stored bytes are intact, but don't decompress to the original.
    Original {
        /// Name of the tensor.
        tensor: String,
        /// The decoder's error, or that the hash differs.
        cause: String,
    },
    /// One of the files inside.
    File {
        /// Name of the file.
        name: String,
    },
    /// The section of checks itself; the tensors may be intact.
    Checks,
    /// The source hash doesn't follow from tensors and files.
    Source,
    /// A byte between parts that isn't zero.
    Padding {
        /// Offset of the first such byte.
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

/// A path for messages.
pub(super) fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// The path with `ending` appended to its name.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}
