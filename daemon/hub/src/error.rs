//! Why a model could not be had, with what the reader needs to know.

use std::{io, path::PathBuf};

use sluice_shared::units;

/// Why a pull failed. What was downloaded stays, unless it is the fault, and the next pull goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The endpoint is no address.
    #[error("'{endpoint}' is not a valid hub address")]
    Endpoint {
        /// What was given.
        endpoint: String,
    },
    /// The user forbids it.
    #[error("offline mode: cannot ask a hub for {what}")]
    Offline {
        /// What would have been asked for.
        what: String,
    },
    /// No connection, or one that broke before it answered.
    #[error("cannot reach {host}: {cause}")]
    Unreachable {
        /// The hub, or whom it referred to.
        host: String,
        /// The deepest words.
        cause: String,
    },
    /// A connection that says nothing.
    #[error("{host} sent no data for {seconds} s")]
    Stalled {
        /// Who.
        host: String,
        /// How long was waited.
        seconds: u64,
    },
    /// No such repository, or none that is shown to us.
    #[error("the hub has no repository {repository}{}", if *.has_token { " to this token" } else { "" })]
    NoRepository {
        /// Its name.
        repository: String,
        /// Whether a token went along.
        has_token: bool,
    },
    /// No such branch, tag or commit.
    #[error("{repository} has no revision '{revision}'")]
    NoRevision {
        /// Its name.
        repository: String,
        /// What was asked for.
        revision: String,
    },
    /// The repository's owner has to be asked first.
    #[error("{repository} is gated: its files need access approval{}", if *.has_token { ", which this token's account does not have" } else { "" })]
    Gated {
        /// Its name.
        repository: String,
        /// Where to ask.
        page: String,
        /// Whether a token went along.
        has_token: bool,
    },
    /// The token is not known to the hub.
    #[error("the hub rejected the token")]
    WrongToken,
    /// Too many requests, even after some waiting.
    #[error("{host} limits the request rate")]
    TooMany {
        /// Who.
        host: String,
        /// How long, if it said so.
        seconds: Option<u64>,
    },
    /// Anything else than the file.
    #[error("{host} answered with status {status}")]
    Status {
        /// Who.
        host: String,
        /// The status.
        status: u16,
    },
    /// An answer that breaks the protocol or one of our bounds.
    #[error("{host} sent an invalid answer: {problem}")]
    WrongResponse {
        /// Who.
        host: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file's bytes are not those that the hub promised.
    #[error(
        "{file} does not match the hub's hash: it has {found}, expected {expected}; the file was deleted"
    )]
    WrongHash {
        /// The file.
        file: String,
        /// Of what came.
        found: String,
        /// Of what was promised.
        expected: String,
    },
    /// Only files that can run code when they are read.
    #[error(
        "{repository} has its weights only in {file}, a pickle, which can run code when it is read"
    )]
    PickleOnly {
        /// Its name.
        repository: String,
        /// One of them.
        file: String,
    },
    /// Nothing that is a model.
    #[error("{repository} has no {missing}")]
    NoModel {
        /// Its name.
        repository: String,
        /// What is missing.
        missing: String,
    },
    /// Several models in one repository.
    #[error("{repository} has several models: {}", .labels.join(", "))]
    Ambiguous {
        /// Its name.
        repository: String,
        /// What they are called, with their sizes.
        labels: Vec<String>,
    },
    /// No file of that label or name.
    #[error("{repository} has no model '{label}'; it has {}", if .labels.is_empty() { "none in GGUF".to_owned() } else { .labels.join(", ") })]
    NoLabel {
        /// Its name.
        repository: String,
        /// What was asked for.
        label: String,
        /// What there is.
        labels: Vec<String>,
    },
    /// A disk that is too small.
    #[error("{} are still to be downloaded, and {} has {} free", units::bytes(*.needed_bytes), .folder.display(), units::bytes(*.free_bytes))]
    NoSpace {
        /// Where.
        folder: PathBuf,
        /// Bytes to come, and a margin.
        needed_bytes: u64,
        /// Bytes there.
        free_bytes: u64,
    },
    /// The system refused.
    #[error("cannot {operation} {}: {cause}", .path.display())]
    Disk {
        /// What was tried, as a verb.
        operation: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// Something that nobody pulled lies in the model's place.
    #[error("{} exists and was not downloaded by sluice", .folder.display())]
    FolderTaken {
        /// Where.
        folder: PathBuf,
    },
    /// Somebody else downloads the same.
    #[error("another process is downloading {name} into the same folder")]
    Locked {
        /// Its name.
        name: String,
    },
}

impl HubError {
    /// Whether the same request may succeed a little later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Stalled { .. } | Self::TooMany { .. } => true,
            // A link to another host that ran out; the hub gives a new one. Its own 403 has a name.
            Self::Status { status, .. } => *status >= 500 || [403, 408].contains(status),
            _ => false,
        }
    }
}
