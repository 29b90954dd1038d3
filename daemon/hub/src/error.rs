//! Why a model could not be downloaded, with what the user needs to know.

use std::{io, path::PathBuf};

use sluice_shared::units;

/// Why a pull failed. Downloaded bytes stay for the next pull, unless they are wrong.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The endpoint is not a valid address.
    #[error("'{endpoint}' is not a valid hub address")]
    Endpoint {
        /// The given address, shortened.
        endpoint: String,
    },
    /// The user has forbidden network access.
    #[error("offline mode: cannot ask a hub for {what}")]
    Offline {
        /// What would have been requested.
        what: String,
    },
    /// No connection could be made, or it broke.
    #[error("cannot reach {host}: {cause}")]
    Unreachable {
        /// The hub, or a host that it redirected to.
        host: String,
        /// The deepest cause.
        cause: String,
    },
    /// The connection stayed open, but nothing came.
    #[error("{host} sent no data for {seconds} s")]
    Stalled {
        /// The host that stalled.
        host: String,
        /// How long the client waited, in seconds.
        seconds: u64,
    },
    /// The repository doesn't exist, or isn't visible to this user.
    #[error("the hub has no repository {repository}{}", if *.has_token { " to this token" } else { "" })]
    NoRepository {
        /// The repository, as `OWNER/NAME`.
        repository: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{repository} has no revision '{revision}'")]
    NoRevision {
        /// The repository, as `OWNER/NAME`.
        repository: String,
        /// The revision that was asked for.
        revision: String,
    },
    /// The repository's owner must grant access first.
    #[error("{repository} is gated: its files need access approval{}", if *.has_token { ", which this token's account does not have" } else { "" })]
    Gated {
        /// The repository, as `OWNER/NAME`.
        repository: String,
        /// Address of the page where access can be requested.
        page: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The hub doesn't accept the token.
    #[error("the hub rejected the token")]
    WrongToken,
    /// The hub limits requests, even after waiting.
    #[error("{host} limits the request rate")]
    TooMany {
        /// The host that limits requests.
        host: String,
        /// Seconds to wait, if the host said so.
        seconds: Option<u64>,
    },
    /// The answer has an unexpected status.
    #[error("{host} answered with status {status}")]
    Status {
        /// The host that answered.
        host: String,
        /// The HTTP status.
        status: u16,
    },
    /// The answer breaks the protocol or one of our bounds.
    #[error("{host} sent an invalid answer: {problem}")]
    WrongResponse {
        /// The host that answered.
        host: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// The downloaded bytes don't have the hash that the hub promised.
    #[error(
        "{file} does not match the hub's hash: it has {found}, expected {expected}; the file was deleted"
    )]
    WrongHash {
        /// Path of the file in the repository.
        file: String,
        /// Hash of the downloaded bytes.
        found: String,
        /// Hash that the hub promised.
        expected: String,
    },
    /// The repository has weights only as pickles, which can run code when they are read.
    #[error(
        "{repository} has its weights only in {file}, a pickle, which can run code when it is read"
    )]
    PickleOnly {
        /// The repository, as `OWNER/NAME`.
        repository: String,
        /// Path of one of the pickles.
        file: String,
    },
    /// The repository has no model that Sluice can load.
    #[error("{repository} has no {missing}")]
    NoModel {
        /// The repository, as `OWNER/NAME`.
        repository: String,
        /// What is missing, in words.
        missing: String,
    },
    /// The repository has several models, and none was named.
    #[error("{repository} has several models: {}", .labels.join(", "))]
    Ambiguous {
        /// The repository, as `OWNER/NAME`.
        repository: String,
        /// Labels of the models, with sizes.
        labels: Vec<String>,
    },
    /// The repository has no model of that label or file name.
    #[error("{repository} has no model '{label}'; it has {}", if .labels.is_empty() { "none in GGUF".to_owned() } else { .labels.join(", ") })]
    NoLabel {
        /// The repository, as `OWNER/NAME`.
        repository: String,
        /// The label or name that was asked for.
        label: String,
        /// Labels of the models that there are, with sizes.
        labels: Vec<String>,
    },
    /// The disk has too little free space.
    #[error("{} are still to be downloaded, and {} has {} free", units::bytes(*.needed_bytes), .folder.display(), units::bytes(*.free_bytes))]
    NoSpace {
        /// The folder that files are written to.
        folder: PathBuf,
        /// Bytes that are still needed, including a margin.
        needed_bytes: u64,
        /// Bytes that are free on the disk.
        free_bytes: u64,
    },
    /// A file operation failed.
    #[error("cannot {operation} {}: {cause}", .path.display())]
    Disk {
        /// The operation, as a verb.
        operation: &'static str,
        /// The path that it failed on.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The model's folder exists, but was not downloaded by Sluice.
    #[error("{} exists and was not downloaded by sluice", .folder.display())]
    FolderTaken {
        /// Path of the folder.
        folder: PathBuf,
    },
    /// Another process downloads the same model.
    #[error("another process is downloading {name} into the same folder")]
    Locked {
        /// The model's name.
        name: String,
    },
}

impl HubError {
    /// Whether the same request may succeed a little later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Stalled { .. } | Self::TooMany { .. } => true,
            // 403 of another host is a signed link that expired; the hub gives a new one. The hub's own 403 is another
            // error.
            Self::Status { status, .. } => *status >= 500 || [403, 408].contains(status),
            _ => false,
        }
    }
}
