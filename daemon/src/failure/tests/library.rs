//! Examples of what the library and its hub can fail with.

use std::{io, sync::Arc};

use super::*;

pub(super) fn hub_name(error: &HubError) -> &'static str {
    use HubError as H;
    match error {
        H::Endpoint { .. } => "hub: endpoint",
        H::Offline { .. } => "hub: offline",
        H::Unreachable { .. } => "hub: unreachable",
        H::Stalled { .. } => "hub: stalled",
        H::NoRepository { .. } => "hub: no repository",
        H::NoRevision { .. } => "hub: no revision",
        H::Gated { .. } => "hub: gated",
        H::WrongToken => "hub: wrong token",
        H::TooMany { .. } => "hub: too many",
        H::Status { .. } => "hub: status",
        H::WrongResponse { .. } => "hub: answer",
        H::WrongHash { .. } => "hub: wrong hash",
        H::PickleOnly { .. } => "hub: pickle only",
        H::NoModel { .. } => "hub: no model",
        H::Ambiguous { .. } => "hub: ambiguous",
        H::NoLabel { .. } => "hub: no label",
        H::NoSpace { .. } => "hub: no space",
        H::Disk { .. } => "hub: disk",
        H::FolderTaken { .. } => "hub: taken",
        H::Locked { .. } => "hub: locked",
    }
}

pub(super) fn examples() -> Vec<(Failure, Code)> {
    use Code::{
        Cancelled, DataLoss, FailedPrecondition, InvalidArgument, NotFound, PermissionDenied,
        ResourceExhausted, Unauthenticated, Unavailable,
    };
    use HubError as H;
    let text = || "x".to_owned();
    let path = || PathBuf::from("/x");
    let disk = |kind: io::ErrorKind| H::Disk {
        operation: "write",
        path: path(),
        cause: kind.into(),
    };
    let unsaved = |kind: io::ErrorKind| SaveError::Io {
        path: path(),
        cause: Arc::new(kind.into()),
    };
    let gated = |has_token| H::Gated {
        repository: text(),
        page: text(),
        has_token,
    };
    let hub = [
        (H::Endpoint { endpoint: text() }, FailedPrecondition),
        (H::Offline { what: text() }, FailedPrecondition),
        (
            H::Unreachable {
                host: text(),
                cause: text(),
            },
            Unavailable,
        ),
        (
            H::Stalled {
                host: text(),
                seconds: 1,
            },
            Unavailable,
        ),
        (
            H::NoRepository {
                repository: text(),
                has_token: false,
            },
            NotFound,
        ),
        (
            H::NoRepository {
                repository: text(),
                has_token: true,
            },
            NotFound,
        ),
        (
            H::NoRevision {
                repository: text(),
                revision: text(),
            },
            NotFound,
        ),
        (gated(false), PermissionDenied),
        (gated(true), PermissionDenied),
        (H::WrongToken, Unauthenticated),
        (
            H::TooMany {
                host: text(),
                seconds: None,
            },
            Unavailable,
        ),
        (
            H::Status {
                host: text(),
                status: 500,
            },
            Unavailable,
        ),
        (
            H::WrongResponse {
                host: text(),
                problem: text(),
            },
            DataLoss,
        ),
        (
            H::WrongHash {
                file: text(),
                found: text(),
                expected: text(),
            },
            DataLoss,
        ),
        (
            H::PickleOnly {
                repository: text(),
                file: text(),
            },
            FailedPrecondition,
        ),
        (
            H::NoModel {
                repository: text(),
                missing: text(),
            },
            FailedPrecondition,
        ),
        (
            H::Ambiguous {
                repository: text(),
                labels: vec![text()],
            },
            FailedPrecondition,
        ),
        (
            H::NoLabel {
                repository: text(),
                label: text(),
                labels: vec![],
            },
            NotFound,
        ),
        (
            H::NoSpace {
                folder: path(),
                needed_bytes: 2,
                free_bytes: 1,
            },
            ResourceExhausted,
        ),
        (disk(io::ErrorKind::StorageFull), ResourceExhausted),
        (disk(io::ErrorKind::PermissionDenied), FailedPrecondition),
        (H::FolderTaken { folder: path() }, FailedPrecondition),
        (H::Locked { name: text() }, FailedPrecondition),
    ];
    let unknown = |model: &str, is_partial| Failure::UnknownModel {
        model: model.to_owned(),
        is_partial,
        alike: vec![],
        near: vec![],
    };
    let cause = || io::ErrorKind::PermissionDenied.into();
    let mut examples: Vec<_> = hub.map(|(error, code)| (error.into(), code)).into();
    examples.extend([
        (
            Failure::ModelName("x".parse::<sluice_hub::HubName>().unwrap_err()),
            InvalidArgument,
        ),
        (unknown("x", false), NotFound),
        (unknown("o/x", false), NotFound),
        (unknown("o/x", true), NotFound),
        (Failure::NoModelsFolder, FailedPrecondition),
        (Failure::Embedded, FailedPrecondition),
        (
            Failure::NotOurs {
                model: text(),
                folder: path(),
            },
            FailedPrecondition,
        ),
        (
            Failure::RemoveModel {
                path: path(),
                cause: cause(),
            },
            FailedPrecondition,
        ),
        (
            Failure::SaveState(unsaved(io::ErrorKind::PermissionDenied)),
            FailedPrecondition,
        ),
        (
            Failure::SaveState(SaveError::Locked { folder: path() }),
            FailedPrecondition,
        ),
        (
            Failure::NotSaved {
                kept: text(),
                error: unsaved(io::ErrorKind::StorageFull),
            },
            ResourceExhausted,
        ),
        (Failure::ModelInUse { model: text() }, FailedPrecondition),
        (Failure::TooManyPulls { max: 1 }, ResourceExhausted),
        (
            Failure::PullingAnother {
                model: text(),
                revision: text(),
            },
            FailedPrecondition,
        ),
        (
            Failure::PullingWithAnotherToken { model: text() },
            FailedPrecondition,
        ),
        (Failure::PullCancelled { model: text() }, Cancelled),
    ]);
    examples
}
