//! Examples of what jobs and coded files can fail with.

use std::io;

use sluice_checkpoint::{
    calibration::{CalibrationError, ModelIdentity},
    compression::{CompressError, ContainerError, Damage, EncodeError, PruneError},
    features::FeatureRefusal,
    quantize::QuantizeError,
};
use sluice_engine::{calibration::CalibrateError, optimization::OptimizeError};
use sluice_optimize::{allocate::AllocateError, moments::MomentsError};
use sluice_shared::{mix::MixId, pruning::PruneScore};
use sluice_weights::MatrixInput;

use super::*;

pub(super) fn coding_name(error: &CompressError) -> &'static str {
    use CompressError as E;
    use ContainerError as C;
    match error {
        E::Checkpoint(_) => "coding: checkpoint",
        E::Container(C::Io { .. }) => "coded file: io",
        E::Container(C::NotAContainer { .. }) => "coded file: none",
        E::Container(C::Version { .. }) => "coded file: version",
        E::Container(C::WrongLength { .. }) => "coded file: wrong length",
        E::Container(C::HeaderDamaged { .. }) => "coded file: header damaged",
        E::Container(C::Malformed { .. }) => "coded file: malformed",
        E::Container(C::UnknownScheme { .. }) => "coded file: unknown scheme",
        E::Container(C::Missing { .. }) => "coded file: missing",
        E::Container(C::Damaged { .. }) => "coded file: damaged",
        E::Container(C::Exists { .. }) => "coded file: exists",
        E::Container(C::Busy { .. }) => "coded file: busy",
        E::Container(C::Cancelled) => "coded file: cancelled",
        E::Gguf { .. } => "coding: gguf",
        E::AlreadyCompressed { .. } => "coding: coded",
        E::NoMix { .. } => "coding: no mix",
        E::NoSuchTensor { .. } => "coding: no such tensor",
        E::FilesTooLarge { .. } => "coding: files too large",
        E::TargetExists { .. } => "coding: target exists",
        E::MountPoint { .. } => "coding: mount point",
        E::NoSpace { .. } => "coding: no room",
        E::Encode { .. } => "coding: encode",
        E::Prune(PruneError::NotPrunable { .. }) => "pruning: not prunable",
        E::Prune(PruneError::WithoutAttention { .. }) => "pruning: without attention",
        E::Prune(PruneError::Share { .. }) => "pruning: share",
        E::Prune(PruneError::NothingLeft { .. }) => "pruning: nothing left",
        E::Prune(PruneError::NothingRemoved { .. }) => "pruning: nothing removed",
        E::Prune(PruneError::ScoreWithoutCalibration { .. }) => "pruning: score",
        E::Prune(PruneError::CompensationWithoutCalibration) => "pruning: compensation",
        E::Prune(PruneError::Calibration(_)) => "pruning: calibration",
        E::Prune(PruneError::DiagonalOnly) => "pruning: diagonal",
        E::Prune(PruneError::Statistics { .. }) => "pruning: statistics",
        E::NoOriginal { .. } => "coded file: no original",
        E::Io { .. } => "coding: io",
        E::Threads(_) => "coding: threads",
        E::Cancelled => "coding: cancelled",
    }
}

pub(super) fn calibration_name(error: &CalibrateError) -> &'static str {
    use CalibrateError as E;
    use CalibrationError as C;
    match error {
        E::Engine(_) => "calibration: engine",
        E::File(C::File(_)) => "calibration: file",
        E::File(C::Damaged { .. }) => "calibration: damaged",
        E::File(C::AnotherModel { .. }) => "calibration: another model",
        E::File(C::TooLittle { .. }) => "calibration: too little",
        E::File(C::Exists { .. }) => "calibration: exists",
        E::File(C::NoSpace { .. }) => "calibration: no space",
        E::File(C::Io { .. }) => "calibration: io",
        E::Layers { .. } => "calibration: layers",
        E::Memory { .. } => "calibration: memory",
        E::Rows { .. } => "calibration: rows",
        E::Threads(_) => "calibration: threads",
        E::Cancelled => "calibration: cancelled",
    }
}

/// Of optimizations.
fn optimizations() -> Vec<(Failure, Code)> {
    use OptimizeError as E;
    let broken = QuantizeError::Moments {
        input: MatrixInput::LmHead,
        error: MomentsError::NotFinite { row: 1, column: 2 },
    };
    let all = [
        (E::Quantize(broken), Code::FailedPrecondition),
        (
            E::Allocate(AllocateError::NoCandidates(0)),
            Code::FailedPrecondition,
        ),
        (E::Layers("has others"), Code::FailedPrecondition),
        (E::NothingToQuantize, Code::FailedPrecondition),
        (
            E::PassTime {
                limit_s: 1.0,
                least_s: 2.0,
            },
            Code::FailedPrecondition,
        ),
        (E::UnknownTimes, Code::FailedPrecondition),
        (E::Threads("x".to_owned()), Code::Internal),
        (E::Cancelled, Code::Cancelled),
    ];
    all.map(|(error, code)| (Failure::Optimization(error), code))
        .into()
}

/// Of calibrations.
fn calibrations() -> Vec<(Failure, Code)> {
    use CalibrateError as E;
    use CalibrationError as C;
    let path = || PathBuf::from("/x");
    let model = || {
        Box::new(ModelIdentity {
            name: "x".to_owned(),
            family: "llada".to_owned(),
            fingerprint: "x".to_owned(),
            layers: 1,
            hidden_size: 1,
            attention_size: 1,
            intermediate_size: 1,
            pruned: std::collections::BTreeMap::new(),
        })
    };
    let files = [
        (
            C::Damaged {
                path: path(),
                cause: "x".to_owned(),
            },
            Code::DataLoss,
        ),
        (
            C::AnotherModel {
                path: path(),
                calibrated: model(),
                expected: model(),
            },
            Code::FailedPrecondition,
        ),
        (
            C::TooLittle {
                what: "x".to_owned(),
                positions: 1,
                needed: 2,
            },
            Code::InvalidArgument,
        ),
        (C::Exists { path: path() }, Code::AlreadyExists),
        (
            C::NoSpace {
                path: path(),
                needed_bytes: 2,
                free_bytes: 1,
            },
            Code::ResourceExhausted,
        ),
        (
            C::Io {
                operation: "write",
                path: path(),
                cause: io::ErrorKind::PermissionDenied.into(),
            },
            Code::PermissionDenied,
        ),
    ];
    let files = files.map(|(error, code)| (E::File(error), code));
    let others = [
        (
            E::Layers {
                family: "rwkv7",
                reason: FeatureRefusal::Because("only others can"),
            },
            Code::FailedPrecondition,
        ),
        (
            E::Memory {
                input: MatrixInput::LmHead,
                needed_bytes: 2,
                limit_bytes: 1,
            },
            Code::FailedPrecondition,
        ),
        (
            E::Rows {
                input: MatrixInput::LmHead,
                error: MomentsError::NotFinite { row: 1, column: 2 },
            },
            Code::DataLoss,
        ),
        (E::Threads("x".to_owned()), Code::Internal),
        (E::Cancelled, Code::Cancelled),
    ];
    let all = files.into_iter().chain(others);
    all.map(|(error, code)| (Failure::Calibration(error), code))
        .chain([
            (
                Failure::Calibration(E::Engine(EngineError::NoModel)),
                Code::FailedPrecondition,
            ),
            (
                Failure::Calibration(E::File(C::File(CheckpointError::NotACheckpoint {
                    path: path(),
                }))),
                Code::FailedPrecondition,
            ),
        ])
        .collect()
}

pub(super) fn examples() -> Vec<(Failure, Code)> {
    use Code::{
        AlreadyExists, Cancelled, DataLoss, FailedPrecondition, Internal, InvalidArgument,
        NotFound, PermissionDenied, ResourceExhausted,
    };
    use CompressError as E;
    use ContainerError as C;
    let text = || "x".to_owned();
    let path = || PathBuf::from("/x");
    let file = |kind: io::ErrorKind| C::Io {
        operation: "open",
        path: text(),
        cause: kind.into(),
    };
    let containers = [
        (file(io::ErrorKind::NotFound), NotFound),
        (file(io::ErrorKind::PermissionDenied), PermissionDenied),
        (file(io::ErrorKind::StorageFull), ResourceExhausted),
        (file(io::ErrorKind::Other), FailedPrecondition),
        (C::NotAContainer { path: text() }, FailedPrecondition),
        (
            C::Version {
                path: text(),
                found: 9,
            },
            FailedPrecondition,
        ),
        (
            C::WrongLength {
                path: text(),
                expected: 2,
                found: 1,
            },
            DataLoss,
        ),
        (C::HeaderDamaged { path: text() }, DataLoss),
        (
            C::Malformed {
                path: text(),
                problem: text(),
            },
            DataLoss,
        ),
        (
            C::UnknownScheme {
                path: text(),
                tensor: text(),
                scheme: 9,
            },
            FailedPrecondition,
        ),
        (
            C::Missing {
                path: text(),
                what: text(),
            },
            DataLoss,
        ),
        (
            C::Damaged {
                path: text(),
                damage: Damage::Checks,
            },
            DataLoss,
        ),
        (C::Exists { path: text() }, AlreadyExists),
        (C::Busy { path: text() }, FailedPrecondition),
        (C::Cancelled, Cancelled),
    ];
    let coding = [
        (E::Gguf { path: path() }, FailedPrecondition),
        (E::AlreadyCompressed { path: path() }, FailedPrecondition),
        (
            E::NoMix {
                mix: MixId::of_hash(1),
            },
            FailedPrecondition,
        ),
        (
            E::NoSuchTensor {
                patterns: text(),
                names: text(),
            },
            InvalidArgument,
        ),
        (
            E::FilesTooLarge {
                path: path(),
                max_bytes: 1,
            },
            FailedPrecondition,
        ),
        (E::TargetExists { path: path() }, AlreadyExists),
        (E::MountPoint { path: path() }, FailedPrecondition),
        (
            E::NoSpace {
                path: path(),
                needed_bytes: 2,
                free_bytes: 1,
            },
            ResourceExhausted,
        ),
        (
            E::Encode {
                tensor: text(),
                cause: EncodeError::NotFinite(0),
            },
            FailedPrecondition,
        ),
        (
            E::Io {
                operation: "write",
                path: path(),
                cause: io::ErrorKind::ReadOnlyFilesystem.into(),
            },
            PermissionDenied,
        ),
        (
            E::Prune(PruneError::NotPrunable {
                path: path(),
                reason: "was pruned already",
            }),
            FailedPrecondition,
        ),
        (
            E::Prune(PruneError::WithoutAttention { path: path() }),
            FailedPrecondition,
        ),
        (
            E::Prune(PruneError::Share {
                units: "heads",
                share: 1.0,
            }),
            InvalidArgument,
        ),
        (
            E::Prune(PruneError::NothingLeft {
                units: "KV heads",
                removed: 4,
                all: 4,
                most: 2,
            }),
            InvalidArgument,
        ),
        (
            E::Prune(PruneError::NothingRemoved {
                kv_heads: 4,
                channels: 5,
            }),
            InvalidArgument,
        ),
        (
            E::Prune(PruneError::ScoreWithoutCalibration {
                score: PruneScore::Obs,
            }),
            InvalidArgument,
        ),
        (
            E::Prune(PruneError::CompensationWithoutCalibration),
            InvalidArgument,
        ),
        (
            E::Prune(PruneError::Calibration(CalibrationError::Exists {
                path: path(),
            })),
            FailedPrecondition,
        ),
        (E::Prune(PruneError::DiagonalOnly), FailedPrecondition),
        (
            E::Prune(PruneError::Statistics {
                tensor: text(),
                cause: text(),
            }),
            FailedPrecondition,
        ),
        (E::NoOriginal { path: text() }, FailedPrecondition),
        (E::Threads(text()), Internal),
        (E::Cancelled, Cancelled),
    ];
    let missing = || CheckpointError::NotACheckpoint { path: path() };
    let cancelled = |kept, by_shutdown| Failure::JobCancelled {
        partial_path: kept,
        by_shutdown,
    };
    let containers = containers.map(|(error, code)| (E::Container(error), code));
    let mut examples: Vec<_> = containers
        .into_iter()
        .chain(coding)
        .map(|(error, code)| (Failure::from(error), code))
        .collect();
    examples.extend(calibrations());
    examples.extend(optimizations());
    examples.extend([
        (
            Failure::Interrupted {
                kind: v1::OperationKind::Pull,
            },
            Code::Aborted,
        ),
        (
            Failure::Compression {
                error: E::Checkpoint(missing()),
                partial_path: Some(path()),
            },
            FailedPrecondition,
        ),
        (
            Failure::OperationInProgress {
                id: 1,
                kind: v1::OperationKind::Compress,
                path: text(),
            },
            ResourceExhausted,
        ),
        (
            Failure::NotCancellable {
                id: 1,
                kind: v1::OperationKind::Apply,
            },
            FailedPrecondition,
        ),
        (cancelled(None, false), Cancelled),
        (cancelled(None, true), Cancelled),
        (cancelled(Some(path()), false), Cancelled),
        (cancelled(Some(path()), true), Cancelled),
        (Failure::UnknownOperation { id: 1 }, NotFound),
    ]);
    examples
}
