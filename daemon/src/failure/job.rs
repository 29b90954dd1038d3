//! The table's rows for jobs, and for the coded files that they read and write.

use std::io;

use sluice_checkpoint::coded::{CompressError, ContainerError};
use tonic::Code;

use super::{
    Failure,
    table::{Row, checkpoint},
};

/// Rows of jobs; others have none here.
pub(super) fn of(failure: &Failure) -> Row {
    match failure {
        Failure::Coding { error, .. } => coding(error),
        Failure::JobInProgress { id, .. } => Row::new(Code::ResourceExhausted, "JOB_IN_PROGRESS")
            .hint(format!(
                "`sluice jobs` shows how far it is, `sluice jobs cancel {id}` stops it; `sluiced compress` and its like work \
                 beside the daemon"
            ))
            .figure("job_id", id),
        Failure::JobCancelled { kept, by_shutdown } => {
            let row = Row::new(Code::Cancelled, "JOB_CANCELLED");
            match (kept, by_shutdown) {
                (None, false) => row,
                (None, true) => row.hint("start sluiced again and repeat"),
                (Some(_), false) => row.hint("the same command goes on with it"),
                (Some(_), true) => {
                    row.hint("start sluiced again; the same command goes on with it")
                }
            }
        }
        Failure::UnknownJob { id } => Row::new(Code::NotFound, "UNKNOWN_JOB")
            .hint("`sluice jobs` shows those that run and those that ended recently")
            .figure("job_id", id),
        _ => unreachable!("the table asks for rows of jobs alone"),
    }
}

fn coding(error: &CompressError) -> Row {
    let row = match error {
        CompressError::Checkpoint(error) => checkpoint(error),
        CompressError::Container(error) => container(error),
        CompressError::Gguf { .. } => Row::new(Code::FailedPrecondition, "SOURCE_IS_GGUF"),
        CompressError::Coded { .. } => Row::new(Code::FailedPrecondition, "SOURCE_IS_CODED"),
        CompressError::FilesTooLarge { .. } => {
            Row::new(Code::FailedPrecondition, "FILES_TOO_LARGE")
        }
        CompressError::TargetExists { path } => {
            Row::new(Code::AlreadyExists, "OUTPUT_EXISTS").figure("path", path.display())
        }
        CompressError::MountPoint { .. } => Row::new(Code::FailedPrecondition, "MOUNT_POINT"),
        CompressError::NoRoom {
            needed_bytes,
            free_bytes,
            ..
        } => Row::new(Code::ResourceExhausted, "NO_SPACE")
            .figure("needed_bytes", needed_bytes)
            .figure("free_bytes", free_bytes),
        CompressError::Encode { tensor, .. } => {
            Row::new(Code::FailedPrecondition, "NOT_CODABLE").figure("tensor", tensor)
        }
        CompressError::Io { path, cause, .. } => io(cause).figure("path", path.display()),
        CompressError::Threads(_) => Row::new(Code::Internal, "NO_THREADS"),
        CompressError::Cancelled => Row::new(Code::Cancelled, "JOB_CANCELLED"),
    };
    // The program alone says the same.
    match error.hint() {
        Some(hint) => row.hint(hint),
        None => row,
    }
}

fn container(error: &ContainerError) -> Row {
    let damaged = || Row::new(Code::DataLoss, "CODED_FILE_DAMAGED");
    match error {
        ContainerError::Io { path, cause, .. } => io(cause).figure("path", path),
        ContainerError::NotAContainer { .. } => {
            Row::new(Code::FailedPrecondition, "NOT_A_CODED_FILE")
        }
        ContainerError::Version { found, .. } => {
            Row::new(Code::FailedPrecondition, "CODED_FILE_VERSION").figure("version", found)
        }
        ContainerError::UnknownScheme { tensor, .. } => {
            Row::new(Code::FailedPrecondition, "UNKNOWN_SCHEME").figure("tensor", tensor)
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
            Row::new(Code::AlreadyExists, "OUTPUT_EXISTS").figure("path", path)
        }
        ContainerError::Busy { path } => {
            Row::new(Code::FailedPrecondition, "OUTPUT_BUSY").figure("path", path)
        }
        ContainerError::Cancelled => Row::new(Code::Cancelled, "JOB_CANCELLED"),
    }
}

/// What the system refused, of files that a client named.
fn io(cause: &io::Error) -> Row {
    match cause.kind() {
        io::ErrorKind::NotFound => Row::new(Code::NotFound, "FILE_NOT_FOUND"),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Row::new(Code::PermissionDenied, "FILE_REFUSED")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Row::new(Code::ResourceExhausted, "NO_SPACE")
        }
        _ => Row::new(Code::FailedPrecondition, "FILE_FAILED"),
    }
}
