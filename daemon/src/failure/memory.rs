//! The table's rows for what is remembered.

use sluice_retrieval::StoreError;
use tonic::Code;

use super::row::ErrorRow;
use crate::memory::{CONTENT_BYTES_MAX, MemoryError};

pub(super) fn of(error: &MemoryError) -> ErrorRow {
    match error {
        MemoryError::Store(error) => store(error),
        MemoryError::Off => ErrorRow::new(Code::FailedPrecondition, "MEMORY_OFF")
            .hint("start sluiced with --memory FILE, or without `memory = \"none\"`"),
        MemoryError::TooLarge { .. } => ErrorRow::invalid("SOURCE_TOO_LARGE", "chunk")
            .hint("split it, and add the parts")
            .figure("max_bytes", CONTENT_BYTES_MAX),
        MemoryError::Spool { error, .. } => match error.kind() {
            std::io::ErrorKind::StorageFull => disk_full(),
            _ => ErrorRow::new(Code::Internal, "MEMORY_IO")
                .hint("see to the disk and the folder's permissions, then add it again"),
        },
        MemoryError::Stalled { .. } => ErrorRow::new(Code::DeadlineExceeded, "IMPORT_STALLED")
            .hint("what was sent as a whole is kept; send the rest again"),
        MemoryError::OtherReader { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "COLLECTION_READERS")
                .hint("leave the readers out, or name another collection")
        }
        MemoryError::NoEncoder => ErrorRow::new(Code::FailedPrecondition, "NO_ENCODER").hint(
            "load a sentence encoder (docs/embeddings.md), name one with --memory-encoder, or rank by words",
        ),
        MemoryError::Encoder { model, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "ENCODER_FAILED").hint(format!(
                "see what `sluice embed --model {model} text` says, or start sluiced with --memory-encoder off"
            ))
        }
    }
}

fn store(error: &StoreError) -> ErrorRow {
    match error {
        StoreError::InUse { .. } => ErrorRow::new(Code::FailedPrecondition, "MEMORY_IN_USE")
            .hint("stop the other daemon, or give this one a file of its own with --memory"),
        StoreError::Damaged { .. } => ErrorRow::new(Code::DataLoss, "MEMORY_DAMAGED")
            .hint("`sqlite3 FILE .recover` saves what can be read"),
        StoreError::TooNew { .. } => ErrorRow::new(Code::FailedPrecondition, "MEMORY_TOO_NEW"),
        StoreError::DiskFull { .. } => disk_full(),
        StoreError::Open { .. } => ErrorRow::new(Code::FailedPrecondition, "MEMORY_NOT_OPENED")
            .hint("the daemon's user must be able to write there"),
        StoreError::NoCollection(_) => ErrorRow::new(Code::NotFound, "NO_COLLECTION")
            .hint("`sluice memory list` shows those that there are"),
        StoreError::NoSource(_) | StoreError::NoPiece(_) => {
            ErrorRow::new(Code::NotFound, "NO_SOURCE")
                .hint("`sluice memory list COLLECTION` shows those that there are")
        }
        StoreError::Removed => ErrorRow::new(Code::Aborted, "REMOVED_MEANWHILE")
            .hint("add it again if it is to be remembered"),
        StoreError::CollectionName(_) => ErrorRow::invalid("COLLECTION_NAME", "begin.collection"),
        StoreError::VectorLength { .. } => ErrorRow::new(Code::FailedPrecondition, "OTHER_ENCODER")
            .hint(
                "the encoder has changed under its name: give it another, or wipe the memory and add everything again",
            ),
        StoreError::Sqlite { .. } => ErrorRow::new(Code::Internal, "MEMORY_IO"),
    }
}

fn disk_full() -> ErrorRow {
    ErrorRow::new(Code::ResourceExhausted, "DISK_FULL")
        .hint("make room, then add it again; what was remembered before is as it was")
}
