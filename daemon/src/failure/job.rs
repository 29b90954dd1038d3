//! The table's rows for jobs, and for the coded files that they read and write.

use std::io;

use sluice_checkpoint::{
    calibration::CalibrationError,
    compression::{CompressError, ContainerError, PruneError},
};
use sluice_engine::{calibration::CalibrateError, optimization::OptimizeError};
use sluice_proto::v1::OperationKind;
use sluice_shared::units;
use tonic::Code;

use super::{Failure, checkpoint::checkpoint, row::ErrorRow};

/// Rows of jobs; others have none here.
pub(super) fn of(failure: &Failure) -> ErrorRow {
    match failure {
        Failure::Compression { error, .. } => compression(error),
        Failure::Calibration(error) => calibration(error),
        Failure::Optimization(error) => optimization(error),
        Failure::OperationInProgress { id, .. } => ErrorRow::new(Code::ResourceExhausted, "OPERATION_IN_PROGRESS")
            .hint(format!(
                "`sluice jobs` shows its progress, `sluice jobs cancel {id}` cancels it; `sluiced compress`, `decompress` and `verify` run \
                 without the daemon"
            ))
            .figure("operation_id", id),
        Failure::JobCancelled { partial_path: kept, by_shutdown } => {
            let row = ErrorRow::new(Code::Cancelled, "CANCELLED");
            match (kept, by_shutdown) {
                (None, false) => row,
                (None, true) => row.hint("start sluiced again and repeat"),
                (Some(_), false) => row.hint("run the same command again to resume"),
                (Some(_), true) => {
                    row.hint("start sluiced again, then run the same command to resume")
                }
            }
        }
        Failure::Interrupted { kind } => {
            let row = ErrorRow::new(Code::Aborted, "INTERRUPTED");
            match kind {
                OperationKind::Compress
                | OperationKind::Prune
                | OperationKind::Pull
                | OperationKind::Remember => row.hint(
                    "what it finished is kept; run the same command again to resume",
                ),
                _ => row.hint("run the same command again"),
            }
        }
        _ => unreachable!("the table asks for rows of jobs alone"),
    }
}

fn calibration(error: &CalibrateError) -> ErrorRow {
    match error {
        CalibrateError::Engine(_) => unreachable!("the table has the engine's rows itself"),
        CalibrateError::File(error) => calibration_file(error),
        CalibrateError::Memory {
            needed_bytes,
            limit_bytes,
            ..
        } => ErrorRow::new(Code::FailedPrecondition, "CALIBRATION_MEMORY")
            .hint(format!(
                "allow at least {} with --memory, or add --diagonal",
                units::bytes_to_type(*needed_bytes)
            ))
            .figure("needed_bytes", needed_bytes)
            .figure("limit_bytes", limit_bytes),
        CalibrateError::Layers { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "CANNOT_CALIBRATE")
                .hint("levels moderate and aggressive need no calibration")
        }
        CalibrateError::Rows { .. } => ErrorRow::new(Code::DataLoss, "NOT_A_NUMBER")
            .hint("the checkpoint's weights are broken; check its files"),
        CalibrateError::Threads(_) => ErrorRow::new(Code::Internal, "NO_THREADS")
            .hint("the system refused to start threads; try a smaller --threads"),
        CalibrateError::Cancelled => ErrorRow::new(Code::Cancelled, "CANCELLED"),
    }
}

fn optimization(error: &OptimizeError) -> ErrorRow {
    match error {
        OptimizeError::Engine(_) | OptimizeError::Calibration(_) => {
            unreachable!("these are failures of their own")
        }
        OptimizeError::Quantize(_) => ErrorRow::new(Code::FailedPrecondition, "NOT_QUANTIZABLE")
            .hint("calibrate again with more text, or optimize with --uncalibrated"),
        OptimizeError::Allocate(_) => ErrorRow::new(Code::FailedPrecondition, "NOT_OPTIMIZABLE")
            .hint("measure again on other texts: losses of these cannot be compared"),
        OptimizeError::Layers(_) => ErrorRow::new(Code::FailedPrecondition, "CANNOT_OPTIMIZE")
            .hint("choose among the fixed levels, such as moderate and aggressive"),
        OptimizeError::NothingToQuantize => {
            ErrorRow::new(Code::FailedPrecondition, "NOTHING_TO_QUANTIZE").hint(
                "sluice level standard computes with them; or name a smaller --budget",
            )
        }
        OptimizeError::PassTime { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "PASS_TIME_TOO_SHORT").hint(
                "allow longer passes, or name a larger --budget: weights that are not quantized take no time to decompress",
            )
        }
        OptimizeError::UnknownTimes => {
            ErrorRow::new(Code::FailedPrecondition, "UNKNOWN_PASS_TIMES")
                .hint("leave out --max-pass-ms, or see the daemon's log for why nothing was measured")
        }
        OptimizeError::Threads(_) => ErrorRow::new(Code::Internal, "NO_THREADS")
            .hint("the system refused to start threads; try a smaller --threads"),
        OptimizeError::Cancelled => ErrorRow::new(Code::Cancelled, "CANCELLED"),
    }
}

fn calibration_file(error: &CalibrationError) -> ErrorRow {
    let row = match error {
        CalibrationError::File(error) => return checkpoint(error),
        CalibrationError::Damaged { .. } => ErrorRow::new(Code::DataLoss, "CALIBRATION_DAMAGED"),
        CalibrationError::AnotherModel { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "CALIBRATION_OF_ANOTHER_MODEL")
        }
        CalibrationError::TooLittle {
            positions, needed, ..
        } => ErrorRow::invalid("TOO_LITTLE_TEXT", "texts")
            .figure("positions", positions)
            .figure("needed", needed),
        CalibrationError::Exists { path } => {
            ErrorRow::new(Code::AlreadyExists, "OUTPUT_EXISTS").figure("path", path.display())
        }
        CalibrationError::NoSpace {
            needed_bytes,
            free_bytes,
            ..
        } => ErrorRow::new(Code::ResourceExhausted, "NO_SPACE")
            .figure("needed_bytes", needed_bytes)
            .figure("free_bytes", free_bytes),
        CalibrationError::Io { path, cause, .. } => io(cause).figure("path", path.display()),
    };
    match error.hint() {
        Some(hint) => row.hint(hint),
        None => row,
    }
}

fn compression(error: &CompressError) -> ErrorRow {
    let row = match error {
        CompressError::Checkpoint(error) => checkpoint(error),
        CompressError::Container(error) => container(error),
        CompressError::Gguf { .. } => ErrorRow::new(Code::FailedPrecondition, "SOURCE_IS_GGUF"),
        CompressError::AlreadyCompressed { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "SOURCE_IS_COMPRESSED")
        }
        CompressError::NoMix { .. } => ErrorRow::new(Code::FailedPrecondition, "NO_MIX")
            .hint("sluice optimize makes one; sluice list shows those that exist"),
        CompressError::NoSuchTensor { .. } => ErrorRow::invalid("NO_SUCH_TENSOR", "only_tensors"),
        CompressError::FilesTooLarge { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "FILES_TOO_LARGE")
        }
        CompressError::TargetExists { path } => {
            ErrorRow::new(Code::AlreadyExists, "OUTPUT_EXISTS").figure("path", path.display())
        }
        CompressError::MountPoint { .. } => ErrorRow::new(Code::FailedPrecondition, "MOUNT_POINT"),
        CompressError::NoSpace {
            needed_bytes,
            free_bytes,
            ..
        } => ErrorRow::new(Code::ResourceExhausted, "NO_SPACE")
            .figure("needed_bytes", needed_bytes)
            .figure("free_bytes", free_bytes),
        CompressError::Encode { tensor, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "NOT_COMPRESSIBLE").figure("tensor", tensor)
        }
        CompressError::Prune(error) => pruning(error),
        CompressError::NoOriginal { .. } => ErrorRow::new(Code::FailedPrecondition, "NO_ORIGINAL"),
        CompressError::Io { path, cause, .. } => io(cause).figure("path", path.display()),
        CompressError::Threads(_) => ErrorRow::new(Code::Internal, "NO_THREADS"),
        CompressError::Cancelled => ErrorRow::new(Code::Cancelled, "CANCELLED"),
    };
    // The program alone says the same.
    match error.hint() {
        Some(hint) => row.hint(hint),
        None => row,
    }
}

fn pruning(error: &PruneError) -> ErrorRow {
    match error {
        PruneError::NotPrunable { .. } | PruneError::WithoutAttention { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "NOT_PRUNABLE")
        }
        PruneError::Statistics { tensor, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "NOT_PRUNABLE").figure("tensor", tensor)
        }
        PruneError::Share { units, .. } => {
            let is_of_heads = *units == "heads";
            let field = if is_of_heads {
                "head_share"
            } else {
                "channel_share"
            };
            ErrorRow::invalid("INVALID_SHARE", field)
        }
        PruneError::NothingLeft { most, .. } => {
            ErrorRow::invalid("NOTHING_LEFT", "head_share").figure("most", most)
        }
        PruneError::NothingRemoved { .. } => ErrorRow::invalid("NOTHING_REMOVED", "head_share"),
        PruneError::ScoreWithoutCalibration { .. } | PruneError::CompensationWithoutCalibration => {
            ErrorRow::invalid("NO_CALIBRATION", "calibration_path")
        }
        PruneError::Calibration(_) | PruneError::DiagonalOnly => {
            ErrorRow::new(Code::FailedPrecondition, "CALIBRATION_UNUSABLE")
        }
    }
}

fn container(error: &ContainerError) -> ErrorRow {
    let damaged = || ErrorRow::new(Code::DataLoss, "CONTAINER_DAMAGED");
    match error {
        ContainerError::Io { path, cause, .. } => io(cause).figure("path", path),
        ContainerError::NotAContainer { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "NOT_A_CONTAINER")
        }
        ContainerError::Version { found, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "CONTAINER_VERSION").figure("version", found)
        }
        ContainerError::UnknownScheme { tensor, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "UNKNOWN_SCHEME").figure("tensor", tensor)
        }
        ContainerError::WrongLength {
            expected, found, ..
        } => damaged()
            .figure("expected_bytes", expected)
            .figure("found_bytes", found),
        ContainerError::HeaderDamaged { .. }
        | ContainerError::Damaged { .. }
        | ContainerError::Malformed { .. }
        | ContainerError::Missing { .. } => damaged(),
        ContainerError::Exists { path } => {
            ErrorRow::new(Code::AlreadyExists, "OUTPUT_EXISTS").figure("path", path)
        }
        ContainerError::Busy { path } => {
            ErrorRow::new(Code::FailedPrecondition, "OUTPUT_BUSY").figure("path", path)
        }
        ContainerError::Cancelled => ErrorRow::new(Code::Cancelled, "CANCELLED"),
    }
}

/// What the system refused, of files that a client named.
fn io(cause: &io::Error) -> ErrorRow {
    match cause.kind() {
        io::ErrorKind::NotFound => ErrorRow::new(Code::NotFound, "FILE_NOT_FOUND"),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ErrorRow::new(Code::PermissionDenied, "FILE_REFUSED")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ErrorRow::new(Code::ResourceExhausted, "NO_SPACE")
        }
        _ => ErrorRow::new(Code::FailedPrecondition, "FILE_FAILED"),
    }
}
