//! A walk over every variant: to a status and back, as a client reads it.

mod job;
mod library;
mod memory;

use std::{collections::BTreeSet, io};

use sluice_ops::device::{self, CudaError};
use sluice_proto::client::CallError;
use sluice_shared::level::{KvCacheFormat, Level};
use sluice_tokenizer::LimitReached;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::*;
use crate::role::Role;

/// Names each variant; a new one does not compile until it stands here, and then fails the
/// walk until [`all`] has an example of it.
fn name(failure: &Failure) -> &'static str {
    use EngineError as E;
    use Failure as F;
    match failure {
        F::Field(_) => "field",
        F::Engine(E::Checkpoint(error)) => checkpoint_name(error),
        F::Engine(E::Request(error)) => request_name(error),
        F::Engine(E::QueueFull { .. }) => "queue full",
        F::Engine(E::TooManyCommands { .. }) => "too many commands",
        F::Engine(E::NoModel) => "no model",
        F::Engine(E::ModelReplaced) => "model replaced",
        F::Engine(E::Ops(OpsError::OutOfMemory { .. })) => "out of memory",
        F::Engine(E::Ops(OpsError::OutOfHostMemory { .. })) => "out of host memory",
        F::Engine(E::Ops(OpsError::NoGpu(_))) => "no card",
        F::Engine(E::HeadDim { .. }) => "head size",
        F::Engine(E::PriorNotFinite) => "prior not finite",
        F::Engine(E::Ops(OpsError::Gpu(_))) => "card",
        F::Engine(E::Plan(error)) => plan_name(error),
        F::Engine(E::NoPlace { .. }) => "no place",
        F::Engine(E::LoadCancelled) => "load cancelled",
        F::Engine(E::Superseded) => "superseded",
        F::Engine(E::NoWeightCache { .. }) => "no derivatives",
        F::Engine(E::NoMix(_)) => "no mix",
        F::Engine(E::Tokenizer(_)) => "checkpoint's tokenizer",
        F::Engine(E::Grammar(_)) => "engine grammar",
        F::Engine(E::Stopped) => "stopped",
        F::Engine(E::Ops(OpsError::Threads(_))) => "threads",
        F::Engine(E::Ops(OpsError::NotANumber { .. })) => "not a number",
        F::Engine(E::Ops(OpsError::VectorNotFinite { .. })) => "vector not finite",
        F::Engine(E::Ops(OpsError::Probe(_))) => "probe",
        F::Engine(E::Panicked) => "panicked",
        F::Tokenizer(TokenizerError::Tokenizer { .. }) => "tokenizer",
        F::Tokenizer(TokenizerError::World { .. }) => "tokenizer world",
        F::Tokenizer(TokenizerError::Config { .. }) => "tokenizer config",
        F::Tokenizer(TokenizerError::Template { .. }) => "template",
        F::Tokenizer(TokenizerError::Encode { .. }) => "encode",
        F::Tokenizer(TokenizerError::Process { .. }) => "tokenizer process",
        F::Tokenizer(TokenizerError::Grammar { .. }) => "grammar",
        F::Tokenizer(TokenizerError::Limit(
            LimitReached::GrammarMemory | LimitReached::GrammarCpu | LimitReached::GrammarWait,
        )) => "grammar limit",
        F::WithoutGrammars => "without grammars",
        F::Tokenizer(TokenizerError::Limit(LimitReached::Wait | LimitReached::Gone)) => {
            "tokenizer busy"
        }
        F::Tokenizer(TokenizerError::Limit(_)) => "tokenizer limit",
        F::NoTokenizer { .. } => "no tokenizer",
        F::NoChatTemplate { .. } => "no chat template",
        F::TooLong { .. } => "too long",
        F::PinOutside { .. } => "pin outside",
        F::PinTwice { .. } => "pin twice",
        F::ModelLoading { .. } => "model loading",
        F::ModelFailed { .. } => "model failed",
        F::ModelNotLoaded { .. } => "model not loaded",
        F::ModelUnloaded { .. } => "model unloaded",
        F::TooManyWanted { .. } => "too many wanted",
        F::LoadInProgress { .. } => "load in progress",
        F::UnknownShape { .. } => "preset",
        F::TooLargeForBudget(_) => "too large for the budget",
        F::TooLargeForGpu { .. } => "too large for the card",
        F::NothingToChange(_) => "nothing to change",
        F::MemoryKeptByUnused { .. } => "memory kept by unused",
        F::AppliesToNextLoad => "held for the next load",
        F::Hub(error) => library::hub_name(error),
        F::ModelName(_) => "name",
        F::UnknownModel { .. } => "unknown model",
        F::NoModelsFolder => "no models folder",
        F::Embedded => "embedded",
        F::NotOurs { .. } => "not ours",
        F::RemoveModel { .. } => "remove",
        F::SaveState(SaveError::Io { .. }) => "record",
        F::SaveState(SaveError::Locked { .. }) => "state locked",
        F::NotSaved { .. } => "not saved",
        F::Interrupted { .. } => "interrupted",
        F::ModelInUse { .. } => "model in use",
        F::TooManyPulls { .. } => "too many pulls",
        F::TooManyChanges { .. } => "too many changes",
        F::LineFull { .. } => "line full",
        F::PreparingFull { .. } => "preparing full",
        F::PullingAnother { .. } => "pulling another",
        F::PullingWithAnotherToken { .. } => "pulling with another token",
        F::PullCancelled { .. } => "pull cancelled",
        F::Compression { error, .. } => job::coding_name(error),
        F::Calibration(error) => job::calibration_name(error),
        F::Optimization(OptimizeError::Quantize(_)) => "optimization: quantize",
        F::Optimization(OptimizeError::Allocate(_)) => "optimization: allocate",
        F::Optimization(OptimizeError::Layers(_)) => "optimization: layers",
        F::Optimization(OptimizeError::NothingToQuantize) => "optimization: nothing to quantize",
        F::Optimization(OptimizeError::PassTime { .. }) => "optimization: pass time",
        F::Optimization(OptimizeError::UnknownTimes) => "optimization: unknown times",
        F::Optimization(OptimizeError::Threads(_)) => "optimization: threads",
        F::Optimization(_) => "optimization: cancelled",
        F::Memory(error) => memory::name(error),
        F::ImportCancelled { .. } => "import cancelled",
        F::TooManyImports { .. } => "too many imports",
        F::OperationInProgress { .. } => "operation in progress",
        F::JobCancelled { .. } => "job cancelled",
        F::UnknownOperation { .. } => "unknown operation",
        F::NotCancellable { .. } => "not cancellable",
        F::Draining => "draining",
        F::NotAllowed { .. } => "not allowed",
        F::NotYours { .. } => "not yours",
        F::PathNotAllowed { .. } => "path not allowed",
        F::UnknownToken => "unknown token",
        F::TokenRevoked => "revoked token",
        F::NobodyKnown => "nobody known",
        F::OtherProtocol { .. } => "other protocol",
        F::MalformedMessage { .. } => "malformed message",
        F::MessageTooLarge => "message too large",
        F::TooManyCalls => "too many calls",
        F::MessagesFull => "messages full",
        F::MessageTimeout => "message timeout",
        F::StatesFull => "states full",
        F::StateTooLarge { .. } => "state too large",
        F::StateTimeout { .. } => "state timeout",
        F::DeadlineExceeded { .. } => "deadline",
        F::NotAGeneration { .. } => "not a generation",
        F::Cancelled => "cancelled",
        F::NoSeed(_) => "no seed",
        F::EngineLost => "engine lost",
        F::WorkLost => "work lost",
        F::WrongOutcome(_) => "wrong outcome",
        F::Task(_) => "task",
    }
}

fn plan_name(error: &PlanError) -> &'static str {
    use PlanError as P;
    match error {
        P::BudgetTooSmall { .. } => "budget too small",
        P::NotCompressed { .. } => "not coded",
        P::CanvasTooLong { .. } => "canvas too long",
        P::KvCacheFormat { .. } => "cache format",
        P::ZeroWorkload { .. } => "zero in a plan",
    }
}

fn request_name(error: &RequestError) -> &'static str {
    use RequestError as R;
    match error {
        R::Zero { .. } => "zero",
        R::ContextExceeded { .. } => "context",
        R::BlockTooLong { .. } => "block",
        R::NotAScale { .. } => "scale",
        R::UnknownToken { .. } => "token",
        R::MaskGiven { .. } => "mask",
        R::OnlyAutoregressive { .. } => "only autoregressive",
        R::OnlyLatent { .. } => "only latent",
        R::OnlyRecurrent { .. } => "only recurrent",
        R::OnlyEncoders => "only encoders",
        R::NotEncoders => "not encoders",
        R::TooManyTexts { .. } => "texts",
        R::OnlyMaskedDiffusion { .. } => "only masked",
        R::Sampling { .. } => "sampling",
        R::TooManyDraws { .. } => "draws",
        R::TooManySamples { .. } => "samples",
    }
}

fn checkpoint_name(error: &CheckpointError) -> &'static str {
    use CheckpointError as C;
    match error {
        C::Io { .. } => "io",
        C::NotACheckpoint { .. } => "is not a checkpoint",
        C::MissingFile { .. } => "file missing",
        C::NoWeights { .. } => "no weights",
        C::SeveralModels { .. } => "several models",
        C::ShardOutside { .. } => "shard outside",
        C::TooLarge { .. } => "too large",
        C::MalformedFile { .. } => "malformed",
        C::WrongDigest { .. } => "wrong digest",
        C::WrongLength { .. } => "wrong length",
        C::Changed { .. } => "changed",
        C::DuplicateTensor { .. } => "duplicate",
        C::MissingTensor { .. } => "tensor missing",
        C::WrongShape { .. } => "wrong shape",
        C::WrongFormat { .. } => "wrong format",
        C::UnknownArchitecture { .. } => "architecture",
        C::Config { .. } => "config",
        C::Metadata { .. } => "metadata",
        C::Unsupported { .. } => "unsupported",
        C::WeightCache { .. } => "derivative",
    }
}

/// Variants that [`name`] knows.
const VARIANTS: usize = 237;

/// An example of each variant with its code; of `Io`, one of each kind that matters.
async fn all() -> Vec<(Failure, Code)> {
    use Code::{
        Aborted, Cancelled, DataLoss, DeadlineExceeded, FailedPrecondition, Internal,
        InvalidArgument, NotFound, PermissionDenied, ResourceExhausted, Unauthenticated,
        Unavailable,
    };
    use Failure as F;
    let text = || "text".to_owned();
    let engine = F::Engine;
    let field = InvalidField {
        field: "length",
        problem: text(),
    };
    let panicked = tokio::spawn(std::future::pending::<()>());
    panicked.abort();
    let task = panicked.await.unwrap_err();
    let mut all = vec![
        (F::Field(field), InvalidArgument),
        (
            engine(EngineError::QueueFull { capacity: 1 }),
            ResourceExhausted,
        ),
        (
            engine(EngineError::TooManyCommands { max: 1 }),
            ResourceExhausted,
        ),
        (engine(EngineError::NoModel), FailedPrecondition),
        (engine(EngineError::ModelReplaced), Aborted),
        (
            engine(EngineError::Ops(OpsError::OutOfMemory {
                purpose: "activations",
                needed_bytes: 2,
                used_bytes: 1,
                limit_bytes: Some(2),
                free_bytes: None,
            })),
            ResourceExhausted,
        ),
        (
            engine(EngineError::Ops(OpsError::OutOfHostMemory {
                purpose: "activations",
                needed_bytes: 2,
                used_bytes: 1,
            })),
            ResourceExhausted,
        ),
        (
            engine(EngineError::Ops(OpsError::NoGpu(
                device::GpuUnavailable::NoDevice,
            ))),
            FailedPrecondition,
        ),
        (
            engine(EngineError::HeadDim {
                head_dim: 320,
                max: 256,
            }),
            FailedPrecondition,
        ),
        (
            engine(EngineError::Ops(OpsError::Gpu(
                CudaError::OutOfPinnedMemory { needed_bytes: 1 },
            ))),
            Internal,
        ),
        (engine(EngineError::PriorNotFinite), DataLoss),
        (engine(EngineError::NoPlace { max: 1 }), FailedPrecondition),
        (engine(EngineError::LoadCancelled), Cancelled),
        (engine(EngineError::Superseded), Aborted),
        (
            engine(EngineError::NoWeightCache {
                level: Level::Moderate,
                streamed_bytes: 1,
            }),
            FailedPrecondition,
        ),
        (engine(EngineError::NoMix(None)), FailedPrecondition),
        (
            engine(EngineError::Tokenizer(TokenizerError::Tokenizer {
                cause: text(),
            })),
            FailedPrecondition,
        ),
        (
            engine(no_derivative(io::ErrorKind::StorageFull)),
            ResourceExhausted,
        ),
        (
            engine(no_derivative(io::ErrorKind::PermissionDenied)),
            FailedPrecondition,
        ),
        (
            engine(budget_too_small(Level::Off).into()),
            FailedPrecondition,
        ),
        (
            F::TooLargeForBudget(budget_too_small(Level::Standard)),
            ResourceExhausted,
        ),
        (
            F::MemoryKeptByUnused {
                failure: Box::new(F::TooLargeForBudget(budget_too_small(Level::Standard))),
                unused: vec![text()],
            },
            ResourceExhausted,
        ),
        (
            F::TooLargeForGpu {
                gpu: "RTX".to_owned(),
                error: budget_too_small(Level::Standard),
            },
            FailedPrecondition,
        ),
        (
            engine(PlanError::NotCompressed { level: Level::Mild }.into()),
            FailedPrecondition,
        ),
        (
            engine(
                PlanError::KvCacheFormat {
                    asked: KvCacheFormat::Q8_0,
                    dtype: "bf16",
                }
                .into(),
            ),
            FailedPrecondition,
        ),
        (
            engine(
                PlanError::CanvasTooLong {
                    canvas: 2,
                    context: 1,
                }
                .into(),
            ),
            InvalidArgument,
        ),
        (
            engine(PlanError::ZeroWorkload { what: "requests" }.into()),
            InvalidArgument,
        ),
        (F::UnknownShape { name: text() }, InvalidArgument),
        (engine(EngineError::Stopped), Unavailable),
        (
            engine(EngineError::Ops(OpsError::Threads(text()))),
            Internal,
        ),
        (
            engine(EngineError::Ops(OpsError::Probe(
                io::ErrorKind::OutOfMemory.into(),
            ))),
            Internal,
        ),
        (
            engine(EngineError::Ops(OpsError::NotANumber { position: 3 })),
            DataLoss,
        ),
        (
            engine(EngineError::Ops(OpsError::VectorNotFinite { text: 3 })),
            DataLoss,
        ),
        (engine(EngineError::Panicked), Internal),
        (
            F::Tokenizer(TokenizerError::Tokenizer { cause: text() }),
            FailedPrecondition,
        ),
        (
            F::Tokenizer(TokenizerError::World { cause: text() }),
            FailedPrecondition,
        ),
        (
            F::Tokenizer(TokenizerError::Config { cause: text() }),
            FailedPrecondition,
        ),
        (
            F::Tokenizer(TokenizerError::Template {
                file: "f",
                cause: text(),
            }),
            InvalidArgument,
        ),
        (
            F::Tokenizer(TokenizerError::Encode { cause: text() }),
            InvalidArgument,
        ),
        (
            F::Tokenizer(TokenizerError::Process { cause: text() }),
            Unavailable,
        ),
        (
            F::Tokenizer(TokenizerError::Grammar { cause: text() }),
            InvalidArgument,
        ),
        (
            F::Tokenizer(TokenizerError::Limit(LimitReached::GrammarCpu)),
            InvalidArgument,
        ),
        (
            engine(EngineError::Grammar(TokenizerError::Limit(
                LimitReached::GrammarMemory,
            ))),
            InvalidArgument,
        ),
        (F::WithoutGrammars, FailedPrecondition),
        (
            F::Tokenizer(TokenizerError::Limit(LimitReached::Wait)),
            Unavailable,
        ),
        (
            F::Tokenizer(TokenizerError::Limit(LimitReached::SessionMemory)),
            FailedPrecondition,
        ),
        (F::NoTokenizer { model: text() }, FailedPrecondition),
        (F::NoChatTemplate { model: text() }, FailedPrecondition),
        (
            F::TooLong {
                field: "raw_text",
                unit: "bytes of text",
                found: 2,
                max: 1,
            },
            InvalidArgument,
        ),
        (
            F::PinOutside {
                position: 7,
                tokens: 2,
                length: 8,
            },
            InvalidArgument,
        ),
        (
            F::PinTwice {
                position: 7,
                length: 8,
            },
            InvalidArgument,
        ),
        (F::ModelLoading { model: text() }, Unavailable),
        (
            F::ModelFailed {
                model: text(),
                reason: text(),
            },
            FailedPrecondition,
        ),
        (F::ModelNotLoaded { model: text() }, FailedPrecondition),
        (F::ModelUnloaded { model: text() }, Aborted),
        (F::TooManyWanted { max: 1 }, ResourceExhausted),
        (F::LoadInProgress { model: text() }, Unavailable),
        (
            F::NothingToChange(Box::new(engine(EngineError::NoModel))),
            FailedPrecondition,
        ),
        (F::AppliesToNextLoad, FailedPrecondition),
        (F::Draining, Unavailable),
        (
            F::NotAllowed {
                call: "Apply",
                needed: Role::Operate,
                role: None,
            },
            PermissionDenied,
        ),
        (
            F::NotYours {
                id: 1,
                needed: Role::Admin,
            },
            PermissionDenied,
        ),
        (
            F::PathNotAllowed {
                path: text().into(),
                folders: Vec::new(),
            },
            PermissionDenied,
        ),
        (F::UnknownToken, Unauthenticated),
        (F::TokenRevoked, Unauthenticated),
        (F::NobodyKnown, Unauthenticated),
        (F::OtherProtocol { client: 1 }, FailedPrecondition),
        (F::MalformedMessage { cause: text() }, InvalidArgument),
        (F::MessageTooLarge, ResourceExhausted),
        (F::TooManyCalls, ResourceExhausted),
        (F::MessagesFull, ResourceExhausted),
        (F::MessageTimeout, DeadlineExceeded),
        (F::StatesFull, ResourceExhausted),
        (F::StateTooLarge { bytes: 9, max: 8 }, InvalidArgument),
        (F::StateTimeout { what: "read" }, DeadlineExceeded),
        (
            F::DeadlineExceeded {
                deadline: Duration::from_secs(1),
            },
            DeadlineExceeded,
        ),
        (F::NotAGeneration { id: 1 }, FailedPrecondition),
        (F::Cancelled, Cancelled),
        (F::NoSeed(io::ErrorKind::Other.into()), Internal),
        (F::EngineLost, Internal),
        (F::WorkLost, Internal),
        (F::TooManyChanges { max: 1 }, ResourceExhausted),
        (F::LineFull { max: 1 }, ResourceExhausted),
        (F::PreparingFull { max: 1 }, ResourceExhausted),
        (F::WrongOutcome(Box::new(Outcome::Cancelled)), Internal),
        (F::Task(task), Internal),
    ];
    for (kind, code) in [
        (io::ErrorKind::NotFound, NotFound),
        (io::ErrorKind::PermissionDenied, PermissionDenied),
        (io::ErrorKind::Other, FailedPrecondition),
    ] {
        let error = CheckpointError::Io {
            path: "/p".into(),
            cause: kind.into(),
        };
        all.push((error.into(), code));
    }
    let broken = broken_checkpoints().into_iter();
    all.extend(library::examples());
    all.extend(job::examples());
    all.extend(memory::examples());
    all.push((F::TooManyImports { max: 4 }, ResourceExhausted));
    all.push((F::ImportCancelled { sources: 2 }, Cancelled));
    all.extend(broken.map(|error| (error.into(), FailedPrecondition)));
    let wrong = wrong_requests().into_iter();
    all.extend(wrong.map(|error| (error.into(), InvalidArgument)));
    all
}

fn budget_too_small(level: Level) -> PlanError {
    PlanError::BudgetTooSmall {
        budget_bytes: 1 << 30,
        least_bytes: (3 << 30) - 5,
        level,
        canvas: 64,
        fitting: None,
    }
}

fn no_derivative(kind: io::ErrorKind) -> EngineError {
    EngineError::Checkpoint(CheckpointError::WeightCache {
        path: "/p".into(),
        cause: kind.into(),
    })
}

fn broken_checkpoints() -> Vec<CheckpointError> {
    use CheckpointError as C;
    let text = || "text".to_owned();
    vec![
        C::NotACheckpoint { path: "/p".into() },
        C::MissingFile { path: text() },
        C::NoWeights { path: text() },
        C::SeveralModels {
            path: text(),
            count: 2,
            first: text(),
        },
        C::ShardOutside {
            file: text(),
            shard: text(),
        },
        C::TooLarge {
            path: text(),
            bytes: 2,
            max: 1,
        },
        C::MalformedFile {
            path: text(),
            cause: text(),
        },
        C::WrongDigest {
            path: text(),
            said_by: text(),
        },
        C::WrongLength {
            path: text(),
            expected: 2,
            found: 1,
        },
        C::Changed { path: text() },
        C::DuplicateTensor {
            tensor: text(),
            file: text(),
        },
        C::MissingTensor { tensor: text() },
        C::WrongShape {
            tensor: text(),
            found: vec![1],
            expected: vec![2],
        },
        C::WrongFormat {
            tensor: text(),
            found: text(),
        },
        C::UnknownArchitecture {
            found: text(),
            known: "llada".to_owned(),
        },
        C::Config {
            key: "d_model",
            problem: text(),
        },
        C::Metadata {
            path: text(),
            key: text(),
            problem: text(),
        },
        C::Unsupported {
            path: text(),
            what: text(),
            hint: text(),
        },
    ]
}

fn wrong_requests() -> Vec<RequestError> {
    use RequestError as R;
    vec![
        R::Zero {
            what: "block length",
        },
        R::ContextExceeded {
            prompt: 3,
            length: 2,
            context: 4,
        },
        R::BlockTooLong {
            block: 3,
            canvas: 2,
        },
        R::NotAScale {
            what: "sampling.temperature",
            max: 1000.0,
            value: f64::NAN,
        },
        R::UnknownToken {
            id: 9,
            vocab_size: 8,
        },
        R::MaskGiven { id: 7 },
        R::OnlyAutoregressive {
            what: "sampling.top_k",
        },
        R::OnlyMaskedDiffusion {
            what: "diffusion.guidance",
        },
        R::OnlyLatent { what: "thinking" },
        R::OnlyRecurrent { what: "state" },
        R::OnlyEncoders,
        R::NotEncoders,
        R::TooManyTexts { texts: 2, max: 1 },
        R::Sampling {
            what: "sampling.top_p",
            problem: "must be above 0".to_owned(),
        },
        R::TooManyDraws { draws: 2, max: 1 },
        R::TooManySamples { samples: 2, max: 1 },
    ]
}

#[tokio::test]
async fn every_failure_reaches_the_client_whole() {
    let mut met = BTreeSet::new();
    for (failure, code) in all().await {
        met.insert(name(&failure));
        let message = failure.to_string();
        let status = Status::from(&failure);
        let info = status.get_details_error_info().unwrap();
        assert_eq!(info.domain, "sluice");
        let reason = info.reason.clone();
        assert!(
            !reason.is_empty() && reason.chars().all(|c| c.is_ascii_uppercase() || c == '_'),
            "{reason}"
        );
        if code == Code::InvalidArgument && !matches!(failure, Failure::Tokenizer(_)) {
            let request = status.get_details_bad_request().unwrap();
            let field = &request.field_violations[0].field;
            assert!(!field.is_empty() && !field.contains(' '), "{field}");
        }
        let call = CallError::from(status);
        assert_eq!(call.code, code, "{message}");
        assert_eq!(call.message, message);
        assert_eq!(call.reason, Some(reason));
        assert_eq!(call.hint, info.metadata.get("hint").cloned());
        assert!(!call.is_unreachable() && !call.is_older_daemon());
        assert!(!message.ends_with('.'), "{message}");
    }
    assert_eq!(met.len(), VARIANTS, "{met:?}");
}

#[test]
fn words_and_figures_fit_into_headers() {
    let path = "/ü".repeat(400_000);
    let status = Status::from(Failure::PathNotAllowed {
        path: path.into(),
        folders: vec!["/ü".repeat(400_000).into(); 3],
    });
    // As they travel: percent-encoded, and in base64.
    let words = 3 * status.message().len();
    let all = words + status.details().len() * 4 / 3;
    assert!(all < 16 << 10, "{all} bytes");
    assert!(status.message().ends_with('…'));
}

#[test]
fn a_budget_that_is_too_small_names_the_least_that_works() {
    for level in [Level::Off, Level::Standard, Level::Aggressive] {
        let call = CallError::from(Status::from(Failure::from(EngineError::from(
            budget_too_small(level),
        ))));
        let hint = call.hint.unwrap();
        assert!(hint.contains("sluice budget 3072MiB"), "{hint}");
        let offers_streaming = hint.contains("sluice level standard");
        assert_eq!(offers_streaming, level == Level::Off, "{hint}");
    }
}

#[test]
fn who_lacks_memory_hears_of_unused_models() {
    let unused = || vec!["one".to_owned(), "two".to_owned()];
    let lacks = || Failure::TooLargeForBudget(budget_too_small(Level::Standard));
    let call = CallError::from(Status::from(lacks().with_unused(unused)));
    assert!(
        call.message.ends_with("unused: one, two"),
        "{}",
        call.message
    );
    let hint = call.hint.unwrap();
    assert!(
        hint.contains("sluice unload one, sluice unload two; or "),
        "{hint}"
    );
    assert!(matches!(
        lacks().with_unused(Vec::new),
        Failure::TooLargeForBudget(_)
    ));
    let other = Failure::EngineLost.with_unused(|| panic!("it lacks none"));
    assert!(matches!(other, Failure::EngineLost));
}

#[test]
fn an_unknown_preset_names_the_known_ones() {
    let name = "gpt-9".to_owned();
    let message = Failure::UnknownShape { name }.to_string();
    assert!(
        message.contains("'gpt-9'; known are llada-8b, llada-1b"),
        "{message}"
    );
}

#[test]
fn what_passes_by_itself_says_when_to_retry() {
    let retries = |failure: Failure| Status::from(failure).get_details_retry_info().is_some();
    assert!(retries(EngineError::QueueFull { capacity: 1 }.into()));
    assert!(retries(Failure::LineFull { max: 1 }));
    assert!(retries(Failure::TooManyWanted { max: 1 }));
    let model = String::new();
    assert!(retries(Failure::ModelLoading { model }));
    assert!(!retries(Failure::Draining));
}
