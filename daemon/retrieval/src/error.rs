//! What can go wrong with a store.

use std::{
    io,
    path::{Path, PathBuf},
};

use rusqlite::ffi::ErrorCode;

/// Why a store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file open.
    #[error("{path} is in use by another process: one daemon at a time keeps a memory")]
    InUse {
        /// The store's file.
        path: PathBuf,
    },
    /// The file is no store, or it is damaged.
    #[error(
        "{path} is damaged or no memory of Sluice ({what}): move it away to begin with an empty one"
    )]
    Damaged {
        /// The store's file.
        path: PathBuf,
        /// What SQLite says of it.
        what: String,
    },
    /// A later version wrote the file.
    #[error(
        "{path} was written by a later version of Sluice (schema {found}, this one knows {known}): run that one, or move the \
         file away"
    )]
    TooNew {
        /// The store's file.
        path: PathBuf,
        /// The file's schema.
        found: i64,
        /// The newest schema that is known here.
        known: i64,
    },
    /// The disk is full.
    #[error("no space is left for {path}: nothing of what was to be added was kept")]
    DiskFull {
        /// The store's file.
        path: PathBuf,
    },
    /// The file cannot be opened or created.
    #[error("cannot open {path}: {error}")]
    Open {
        /// The store's file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// There is no collection of this name.
    #[error("there is no collection {0:?}")]
    NoCollection(String),
    /// There is no source of this number.
    #[error("there is no source {0}")]
    NoSource(i64),
    /// Somebody has removed what was being added, or its collection.
    #[error("it was removed while it was being added")]
    Removed,
    /// There is no piece of this number.
    #[error("there is no piece {0}")]
    NoPiece(i64),
    /// A collection's name is empty, too long, or has other characters than letters, digits, `-`, `_` and `.`.
    #[error(
        "{0:?} is no name of a collection: it has 1 to 64 letters, digits, '-', '_' and '.', and begins with a letter or digit"
    )]
    CollectionName(String),
    /// A vector has another length than the encoder's.
    #[error("a vector has {found} elements, the encoder's have {expected}")]
    VectorLength {
        /// Elements of the vector.
        found: usize,
        /// Elements of the encoder's vectors.
        expected: usize,
    },
    /// Anything else that SQLite refuses.
    #[error("{path}: {what}")]
    Sqlite {
        /// The store's file.
        path: PathBuf,
        /// What SQLite says.
        what: String,
    },
}

impl StoreError {
    /// That the system refuses to open, overwrite or remove a file.
    pub(crate) fn cannot_open(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        Self::Open { path, error }
    }

    /// What an error of SQLite means for the store in this file.
    pub(crate) fn of(path: &Path, error: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::InUse { path },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged {
                path,
                what: error.to_string(),
            },
            Some(ErrorCode::DiskFull) => Self::DiskFull { path },
            // Rows refer to those that they belong to, and nothing else is constrained that is not made here.
            Some(ErrorCode::ConstraintViolation) => Self::Removed,
            _ => Self::Sqlite {
                path,
                what: error.to_string(),
            },
        }
    }
}
