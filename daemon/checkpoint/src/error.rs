//! Errors of checkpoints. Each names the file or tensor, what was found and what was expected.

use std::{
    io,
    path::{Path, PathBuf},
};

use sluice_weights::DamagedTensor;

/// Why a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file operation failed.
    #[error("cannot read {path}: {cause}", path = path.display())]
    Io {
        /// The file or folder that it failed on.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A converted copy of the checkpoint cannot be written.
    #[error("cannot write converted weights to the weight cache at {path}: {cause}", path = path.display())]
    WeightCache {
        /// Path of the copy.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The path is neither a folder nor a file of a supported kind.
    #[error("{path} is not a checkpoint: expected a Hugging Face folder, a .safetensors file in one, or a .gguf or .pth file", path = path.display())]
    NotACheckpoint {
        /// The given path.
        path: PathBuf,
    },
    /// A file is missing that every checkpoint has.
    #[error("{path} is missing")]
    MissingFile {
        /// Path of the missing file.
        path: String,
    },
    /// The folder has no weights.
    #[error(
        "{path} has no weights: expected model.safetensors, model.safetensors.index.json or a .gguf or .pth file"
    )]
    NoWeights {
        /// Path of the folder.
        path: String,
    },
    /// The folder has several models.
    #[error("{path} holds {count} files of models, such as {first}; name one of them")]
    SeveralModels {
        /// Path of the folder.
        path: String,
        /// Number of such files.
        count: usize,
        /// File name of the first one.
        first: String,
    },
    /// The index names a shard outside of the checkpoint's folder.
    #[error("{file} names a shard outside its folder: {shard:?}")]
    ShardOutside {
        /// Path of the index.
        file: String,
        /// The shard's name, shortened.
        shard: String,
    },
    /// A file is larger than any real one of its kind.
    #[error("{path} has {bytes} bytes; the limit for such a file is {max}")]
    TooLarge {
        /// Path of the file.
        path: String,
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// A file doesn't have the format that its name says.
    #[error("{path} is malformed: {cause}")]
    MalformedFile {
        /// Path of the file.
        path: String,
        /// What its reader found wrong.
        cause: String,
    },
    /// A file's bytes are not those whose digest lies beside it.
    #[error("{path} is damaged or was changed: {said_by} has another digest for it")]
    WrongDigest {
        /// Path of the file.
        path: String,
        /// What says which digest it should have.
        said_by: String,
    },
    /// A file has fewer or more bytes than its header says.
    #[error(
        "{path} is truncated or damaged: its header declares {expected} bytes, the file has {found}"
    )]
    WrongLength {
        /// Path of the file.
        path: String,
        /// Length in bytes that the header says.
        expected: u64,
        /// The file's length in bytes.
        found: u64,
    },
    /// A file changed since it was opened.
    #[error("{path} changed while it was in use; load the model again")]
    Changed {
        /// Path of the file.
        path: String,
    },
    /// Two shards have a tensor of the same name.
    #[error("duplicate tensor {tensor}, found again in {file}")]
    DuplicateTensor {
        /// Name of the tensor.
        tensor: String,
        /// Name of the second file that has it.
        file: String,
    },
    /// A tensor is missing that the model needs.
    #[error("tensor {tensor} is missing")]
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
    },
    /// A tensor has another shape than the configuration requires.
    #[error("tensor {tensor} has shape {found:?}; the configuration requires {expected:?}")]
    WrongShape {
        /// Name of the tensor.
        tensor: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// The shape that the configuration requires.
        expected: Vec<usize>,
    },
    /// A tensor has an element type that isn't supported for weights.
    #[error(
        "tensor {tensor} has the unsupported format {found}; supported are f32, f16, bf16 and the block formats from q8_0 to q2_k"
    )]
    WrongFormat {
        /// Name of the tensor.
        tensor: String,
        /// The file's name for the type.
        found: String,
    },
    /// The model's architecture isn't supported.
    #[error("unsupported architecture {found}; supported are {known}")]
    UnknownArchitecture {
        /// The architecture that `config.json` names.
        found: String,
        /// The supported architectures.
        known: String,
    },
    /// A key of `config.json` is missing or invalid.
    #[error("config.json: {key} {problem}")]
    Config {
        /// Name of the key.
        key: &'static str,
        /// What is wrong with its value.
        problem: String,
    },
    /// A key of a GGUF file is missing or invalid.
    #[error("{path}: {key} {problem}")]
    Metadata {
        /// Path of the file.
        path: String,
        /// Name of the key.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// A file uses a feature that isn't supported.
    #[error("{path} {what}")]
    Unsupported {
        /// Path of the file.
        path: String,
        /// The feature, in words.
        what: String,
        /// What the user can do about it.
        hint: String,
    },
}

impl CheckpointError {
    /// An error for damaged compressed bytes of a file.
    pub fn damaged(path: &str, damaged: DamagedTensor) -> Self {
        Self::MalformedFile {
            path: path.to_owned(),
            cause: damaged.0,
        }
    }

    pub(super) fn io(path: &Path, cause: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            cause,
        }
    }
}
