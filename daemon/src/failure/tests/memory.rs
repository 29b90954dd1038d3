//! Examples of what can go wrong with what is remembered.

use std::io;

use sluice_retrieval::StoreError;

use super::*;

pub(super) fn name(error: &MemoryError) -> &'static str {
    use MemoryError as M;
    use StoreError as S;
    match error {
        M::Store(S::InUse { .. }) => "memory: in use",
        M::Store(S::Damaged { .. }) => "memory: damaged",
        M::Store(S::TooNew { .. }) => "memory: too new",
        M::Store(S::DiskFull { .. }) => "memory: disk full",
        M::Store(S::Open { .. }) => "memory: open",
        M::Store(S::NoCollection(_)) => "memory: no collection",
        M::Store(S::NoSource(_)) => "memory: no source",
        M::Store(S::NoPiece(_)) => "memory: no piece",
        M::Store(S::Removed) => "memory: removed",
        M::Store(S::CollectionName(_)) => "memory: collection name",
        M::Store(S::VectorLength { .. }) => "memory: vector length",
        M::Store(S::Sqlite { .. }) => "memory: sqlite",
        M::Off => "memory: off",
        M::TooLarge { .. } => "memory: too large",
        M::Spool { .. } => "memory: spool",
        M::Stalled { .. } => "memory: stalled",
        M::OtherReader { .. } => "memory: other reader",
        M::Encoder { .. } => "memory: encoder",
        M::NoEncoder => "memory: no encoder",
    }
}

pub(super) fn examples() -> Vec<(Failure, Code)> {
    use Code::{
        Aborted, DataLoss, DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument,
        NotFound, ResourceExhausted,
    };
    use MemoryError as M;
    use StoreError as S;
    let path = || PathBuf::from("/m");
    let word = || "x".to_owned();
    let spool = |error: io::ErrorKind| M::Spool {
        name: word(),
        folder: path(),
        error: error.into(),
    };
    let all = [
        (S::InUse { path: path() }.into(), FailedPrecondition),
        (
            S::Damaged {
                path: path(),
                what: word(),
            }
            .into(),
            DataLoss,
        ),
        (
            S::TooNew {
                path: path(),
                found: 2,
                known: 1,
            }
            .into(),
            FailedPrecondition,
        ),
        (S::DiskFull { path: path() }.into(), ResourceExhausted),
        (
            S::Open {
                path: path(),
                error: io::ErrorKind::PermissionDenied.into(),
            }
            .into(),
            FailedPrecondition,
        ),
        (S::NoCollection(word()).into(), NotFound),
        (S::NoSource(1).into(), NotFound),
        (S::NoPiece(1).into(), NotFound),
        (S::Removed.into(), Aborted),
        (S::CollectionName(word()).into(), InvalidArgument),
        (
            S::VectorLength {
                found: 1,
                expected: 2,
            }
            .into(),
            FailedPrecondition,
        ),
        (
            S::Sqlite {
                path: path(),
                what: word(),
            }
            .into(),
            Internal,
        ),
        (M::Off, FailedPrecondition),
        (M::TooLarge { name: word() }, InvalidArgument),
        (spool(io::ErrorKind::StorageFull), ResourceExhausted),
        (spool(io::ErrorKind::PermissionDenied), Internal),
        (
            M::Stalled {
                waited: Duration::from_secs(1),
            },
            DeadlineExceeded,
        ),
        (
            M::OtherReader {
                collection: word(),
                reader: v1::MemoryReader::Admin,
            },
            FailedPrecondition,
        ),
        (
            M::Encoder {
                model: word(),
                reason: word(),
            },
            FailedPrecondition,
        ),
        (M::NoEncoder, FailedPrecondition),
    ];
    all.map(|(error, code)| (Failure::Memory(error), code))
        .into()
}
