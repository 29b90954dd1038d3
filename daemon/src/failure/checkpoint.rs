//! The table's rows for checkpoints that cannot be read.

use std::io;

use sluice_checkpoint::CheckpointError;
use tonic::Code;

use super::row::ErrorRow;

/// Rows of what a checkpoint's failures mean.
pub(super) fn checkpoint(error: &CheckpointError) -> ErrorRow {
    match error {
        CheckpointError::Io { cause, .. } => match cause.kind() {
            io::ErrorKind::NotFound => {
                ErrorRow::new(Code::NotFound, "CHECKPOINT_NOT_FOUND").hint("check the path")
            }
            io::ErrorKind::PermissionDenied => {
                ErrorRow::new(Code::PermissionDenied, "CHECKPOINT_UNREADABLE")
                    .hint("give sluiced's user permission to read it")
            }
            _ => ErrorRow::new(Code::FailedPrecondition, "CHECKPOINT_UNREADABLE")
                .hint("the disk or the file system failed; the system's log may have details"),
        },
        CheckpointError::NotACheckpoint { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "NOT_A_CHECKPOINT")
                .hint("name a folder that holds config.json and model.safetensors, or a .gguf, .pth or .sluice file")
        }
        CheckpointError::MissingFile { .. } => broken_template("FILE_MISSING"),
        CheckpointError::NoWeights { .. } => ErrorRow::new(Code::FailedPrecondition, "NO_WEIGHTS").hint(
            "name a checkpoint's folder, or a .gguf, .pth or .sluice file; one without weights is incomplete, fetch it again",
        ),
        CheckpointError::SeveralModels { count, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "SEVERAL_MODELS")
                .hint("name one of the files instead of their folder")
                .figure("count", count)
        }
        CheckpointError::ShardOutside { .. } => broken_template("SHARD_OUTSIDE"),
        CheckpointError::TooLarge { bytes, max, .. } => broken_template("FILE_TOO_LARGE")
            .figure("bytes", bytes)
            .figure("max", max),
        CheckpointError::MalformedFile { .. } => broken_template("FILE_MALFORMED"),
        CheckpointError::WrongDigest { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "FILE_DAMAGED").hint(
                "fetch it again; `sluice pull` of the same model mends it. Files that you have changed on purpose belong in a \
                 folder without the list of digests",
            )
        }
        CheckpointError::WrongLength {
            expected, found, ..
        } => broken_template("FILE_WRONG_LENGTH")
            .figure("expected_bytes", expected)
            .figure("found_bytes", found),
        CheckpointError::Changed { .. } => ErrorRow::new(Code::FailedPrecondition, "FILE_CHANGED")
            .hint("don't change a checkpoint's files while the model is loaded or compressed"),
        CheckpointError::DuplicateTensor { tensor, .. } => {
            broken_template("TENSOR_TWICE").figure("tensor", tensor)
        }
        CheckpointError::MissingTensor { tensor } => {
            broken_template("TENSOR_MISSING").figure("tensor", tensor)
        }
        CheckpointError::WrongShape {
            tensor,
            found,
            expected,
        } => broken_template("TENSOR_WRONG_SHAPE")
            .figure("tensor", tensor)
            .figure("found", format!("{found:?}"))
            .figure("expected", format!("{expected:?}")),
        CheckpointError::WrongFormat { tensor, found } => {
            ErrorRow::new(Code::FailedPrecondition, "TENSOR_WRONG_FORMAT")
                .hint("use a checkpoint stored as f32, f16 or bf16, or a GGUF file in q8_0, q6_k and the like")
                .figure("tensor", tensor)
                .figure("found", found)
        }
        CheckpointError::UnknownArchitecture { found, known } => {
            ErrorRow::new(Code::FailedPrecondition, "UNKNOWN_ARCHITECTURE")
                .hint("this version of sluiced does not support this architecture")
                .figure("found", found)
                .figure("known", known)
        }
        CheckpointError::Config { key, .. } => broken_template("CONFIG_INVALID").figure("key", key),
        CheckpointError::Metadata { key, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "METADATA_INVALID")
                .hint("the file is damaged or written by an unknown program; convert it again with llama.cpp's converter")
                .figure("key", key)
        }
        CheckpointError::Unsupported { hint, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "CHECKPOINT_UNSUPPORTED").hint(hint.clone())
        }
        CheckpointError::WeightCache { path, cause } => {
            let (code, hint) = match cause.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (
                    Code::ResourceExhausted,
                    "free space on that disk, or start sluiced with another --weight-cache",
                ),
                _ => (
                    Code::FailedPrecondition,
                    "start sluiced with a --weight-cache folder that its user can write to",
                ),
            };
            ErrorRow::new(code, "CONVERSION_FAILED")
                .hint(hint)
                .figure("path", path.display())
        }
    }
}

/// The row of a file of a checkpoint that is not whole.
pub(super) fn broken_template(reason: &'static str) -> ErrorRow {
    ErrorRow::new(Code::FailedPrecondition, reason)
        .hint("the checkpoint is incomplete or damaged; fetch it again")
}
