//! What can be wrong with a checkpoint: each error names the file or tensor, what was
//! found and what was expected.

use std::{
    io,
    path::{Path, PathBuf},
};

use sluice_weights::DamagedTensor;

/// Why a checkpoint can't be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused.
    #[error("cannot read {path}: {cause}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// A converted copy of the checkpoint can't be written.
    #[error("cannot write converted weights to the weight cache at {path}: {cause}", path = path.display())]
    WeightCache {
        /// Where.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// Neither a folder nor a file of a kind that can be read.
    #[error("{path} is not a checkpoint: expected a Hugging Face folder, a .safetensors file in one, or a .gguf file", path = path.display())]
    NotACheckpoint {
        /// What was given.
        path: PathBuf,
    },
    /// A file that every checkpoint has.
    #[error("{path} is missing")]
    MissingFile {
        /// The file.
        path: String,
    },
    /// The folder holds no weights.
    #[error(
        "{path} has no weights: expected model.safetensors, model.safetensors.index.json or a .gguf file"
    )]
    NoWeights {
        /// The folder.
        path: String,
    },
    /// The folder holds several models.
    #[error("{path} holds {count} .gguf files, such as {first}; name one of them")]
    SeveralModels {
        /// The folder.
        path: String,
        /// How many files.
        count: usize,
        /// The name of one.
        first: String,
    },
    /// A shard that would lie outside the checkpoint's folder.
    #[error("{file} names a shard outside its folder: {shard:?}")]
    ShardOutside {
        /// The index.
        file: String,
        /// The shard's name.
        shard: String,
    },
    /// A file larger than any real one of its kind.
    #[error("{path} has {bytes} bytes; the limit for such a file is {max}")]
    TooLarge {
        /// The file.
        path: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A file that isn't what its name says.
    #[error("{path} is malformed: {cause}")]
    MalformedFile {
        /// The file.
        path: String,
        /// What its reader said.
        cause: String,
    },
    /// Fewer or more bytes than the header promises.
    #[error(
        "{path} is truncated or damaged: its header declares {expected} bytes, the file has {found}"
    )]
    WrongLength {
        /// The file.
        path: String,
        /// By the header.
        expected: u64,
        /// In truth.
        found: u64,
    },
    /// A file that isn't what it was when it was opened.
    #[error("{path} changed while it was in use; load the model again")]
    Changed {
        /// The file.
        path: String,
    },
    /// The same name in two shards.
    #[error("duplicate tensor {tensor}, found again in {file}")]
    DuplicateTensor {
        /// Its name.
        tensor: String,
        /// Where it stands again.
        file: String,
    },
    /// A tensor that the model needs.
    #[error("tensor {tensor} is missing")]
    MissingTensor {
        /// Its name.
        tensor: String,
    },
    /// A tensor of another shape than the configuration says.
    #[error("tensor {tensor} has shape {found:?}; the configuration requires {expected:?}")]
    WrongShape {
        /// Its name.
        tensor: String,
        /// By the file.
        found: Vec<usize>,
        /// By the configuration.
        expected: Vec<usize>,
    },
    /// Elements that are no weights.
    #[error(
        "tensor {tensor} has the unsupported format {found}; supported are f32, f16, bf16 and the block formats from q8_0 to q2_k"
    )]
    WrongFormat {
        /// Its name.
        tensor: String,
        /// By the file.
        found: String,
    },
    /// A model of a kind that isn't known here.
    #[error("unsupported architecture {found}; supported are {known}")]
    UnknownArchitecture {
        /// What `config.json` says.
        found: String,
        /// What can be read.
        known: String,
    },
    /// A key of `config.json` that is missing or makes no sense.
    #[error("config.json: {key} {problem}")]
    Config {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A key of a GGUF file that is missing or makes no sense.
    #[error("{path}: {key} {problem}")]
    Metadata {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file in a way that isn't supported here.
    #[error("{path} {what}")]
    Unsupported {
        /// The file.
        path: String,
        /// What it is or has.
        what: String,
        /// What to do about it.
        hint: String,
    },
}

impl CheckpointError {
    /// Damaged bytes of this file.
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
