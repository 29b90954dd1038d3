//! The table: code, reason, hint, figures and field of every failure.

use std::{borrow::Cow, collections::HashMap, io, time::Duration};

use sluice_checkpoint::CheckpointError;
use sluice_engine::{EngineError, RequestError};
use sluice_ops::OpsError;
use sluice_plan::PlanError;
use sluice_shared::{level::Level, units};
use sluice_tokenizer::TextError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{Failure, job, library};

/// Who speaks in `ErrorInfo.domain`.
pub(super) const DOMAIN: &str = "sluice";
/// How soon a refused request may be tried again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) code: Code,
    /// Stable; clients compare it.
    pub(super) reason: &'static str,
    pub(super) hint: Option<Cow<'static, str>>,
    pub(super) figures: Vec<(&'static str, String)>,
    /// The field on the wire that is wrong.
    pub(super) field: Option<&'static str>,
    pub(super) retry: bool,
}

impl Row {
    pub(super) fn new(code: Code, reason: &'static str) -> Self {
        Self {
            code,
            reason,
            hint: None,
            figures: Vec::new(),
            field: None,
            retry: false,
        }
    }

    pub(super) fn invalid(reason: &'static str, field: &'static str) -> Self {
        Self {
            field: Some(field),
            ..Self::new(Code::InvalidArgument, reason)
        }
    }

    pub(super) fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn figure(mut self, name: &'static str, value: impl ToString) -> Self {
        self.figures.push((name, value.to_string()));
        self
    }

    pub(super) fn retry(mut self) -> Self {
        self.retry = true;
        self
    }
}

pub(super) fn status(failure: &Failure) -> Status {
    let row = row(failure);
    let message = failure.to_string();
    let mut metadata: HashMap<String, String> = row
        .figures
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    if let Some(hint) = row.hint {
        metadata.insert("hint".to_owned(), hint.into_owned());
    }
    let mut details = ErrorDetails::new();
    details.set_error_info(row.reason, DOMAIN, metadata);
    if let Some(field) = row.field {
        details.add_bad_request_violation(field, &message);
    }
    if row.retry {
        details.set_retry_info(Some(RETRY_DELAY));
    }
    Status::with_error_details(row.code, message, details)
}

fn row(failure: &Failure) -> Row {
    match failure {
        Failure::Field(error) => Row::invalid("INVALID_FIELD", error.field),
        Failure::Engine(error) => engine(error),
        Failure::Text(error) => text(error),
        Failure::NoTokenizer { model } => Row::new(Code::FailedPrecondition, "NO_TOKENIZER")
            .hint("give ids in place of text; sluice generate and score take them with --tokens")
            .figure("model", model),
        Failure::NoChatTemplate { model } => Row::new(Code::FailedPrecondition, "NO_CHAT_TEMPLATE")
            .hint("give the text as it is to be continued: sluice generate --raw")
            .figure("model", model),
        Failure::TooLong {
            field, found, max, ..
        } => Row::invalid("TOO_LONG", field)
            .figure("found", found)
            .figure("max", max),
        Failure::PinOutside {
            position,
            tokens,
            length,
        } => Row::invalid("PIN_OUTSIDE", "pins")
            .hint("pin nearer to the start, or ask for a greater length")
            .figure("position", position)
            .figure("tokens", tokens)
            .figure("length", length),
        Failure::PinTwice { position, length } => Row::invalid("PIN_TWICE", "pins")
            .hint("move or shorten one of the pins")
            .figure("position", position)
            .figure("length", length),
        Failure::ModelLoading { model } => Row::new(Code::Unavailable, "MODEL_LOADING")
            .hint("try again in a moment; sluice models shows the progress")
            .figure("model", model)
            .retry(),
        Failure::ModelFailed { model, .. } => Row::new(Code::FailedPrecondition, "MODEL_FAILED")
            .hint("load another one with sluice load, or restart sluiced with another --model")
            .figure("model", model),
        Failure::LoadInProgress { model } => Row::new(Code::Unavailable, "LOAD_IN_PROGRESS")
            .hint("try again when it has loaded; sluice models shows the progress")
            .figure("model", model)
            .retry(),
        Failure::PathNotAbsolute { .. } => Row::invalid("PATH_NOT_ABSOLUTE", "path")
            .hint("the daemon has a current folder of its own; give the whole path"),
        Failure::UnknownPreset { .. } => Row::invalid("UNKNOWN_PRESET", "preset"),
        Failure::TooLargeForBudget(error) => Row {
            code: Code::ResourceExhausted,
            ..plan(error)
        },
        Failure::TooLargeForCard { card, error } => {
            let row = plan(error);
            let hint = row.hint.as_deref().unwrap_or_default();
            let hint = format!("{hint}; or let the CPU compute it: sluiced --device cpu");
            row.hint(hint).figure("card", card)
        }
        Failure::NothingToChange(cause) => {
            let row = row(cause);
            match row.retry {
                // It only has to be waited for.
                true => row,
                false => {
                    row.hint("name them with the model: sluice load DIR --level L --budget BYTES")
                }
            }
        }
        Failure::HeldForNextLoad => {
            Row::new(Code::FailedPrecondition, "NO_MODEL").hint("load one with sluice load")
        }
        Failure::Hub(error) => library::hub(error),
        Failure::Name(_)
        | Failure::UnknownModel { .. }
        | Failure::NoModelsFolder
        | Failure::Embedded
        | Failure::NotOurs { .. }
        | Failure::Remove { .. }
        | Failure::Record { .. }
        | Failure::ModelInUse { .. }
        | Failure::TooManyPulls { .. }
        | Failure::PullingAnother { .. }
        | Failure::PullCancelled { .. } => library::of(failure),
        Failure::Coding { .. }
        | Failure::JobInProgress { .. }
        | Failure::JobCancelled { .. }
        | Failure::UnknownJob { .. } => job::of(failure),
        // No retry delay: it will not come back by itself.
        Failure::Draining => {
            Row::new(Code::Unavailable, "DRAINING").hint("start sluiced again and repeat")
        }
        Failure::DeadlineExceeded { deadline } => {
            Row::new(Code::DeadlineExceeded, "DEADLINE_EXCEEDED")
                .hint("allow more time, or ask for a smaller length or fewer steps")
                .figure("deadline_ms", deadline.as_millis())
        }
        Failure::UnknownRequest { id } => Row::new(Code::NotFound, "UNKNOWN_REQUEST")
            .hint("sluice requests lists the requests; those that ended are kept for a while only")
            .figure("request_id", id),
        Failure::NotAGeneration { id } => Row::new(Code::FailedPrecondition, "NOT_A_GENERATION")
            .hint("sluice requests shows how far it is")
            .figure("request_id", id),
        Failure::Cancelled => Row::new(Code::Cancelled, "CANCELLED"),
        Failure::NoSeed(_) => {
            Row::new(Code::Internal, "NO_SEED").hint("give a seed with the request")
        }
        Failure::EngineLost => Row::new(Code::Internal, "ENGINE_LOST")
            .hint("this is a bug in sluiced; its log says more"),
        Failure::WrongOutcome(_) => Row::new(Code::Internal, "WRONG_OUTCOME")
            .hint("this is a bug in sluiced; its log says more"),
        Failure::Task(_) => Row::new(Code::Internal, "TASK_FAILED")
            .hint("this is a bug in sluiced; its log says more"),
    }
}

fn engine(error: &EngineError) -> Row {
    match error {
        EngineError::Checkpoint(error) => checkpoint(error),
        EngineError::Request(error) => request(error),
        EngineError::QueueFull { capacity } => Row::new(Code::ResourceExhausted, "QUEUE_FULL")
            .hint("try again later, or start sluiced with a greater --queue")
            .figure("capacity", capacity)
            .retry(),
        EngineError::NoModel => {
            Row::new(Code::FailedPrecondition, "NO_MODEL").hint("load one with sluice load")
        }
        EngineError::ModelReplaced => Row::new(Code::Aborted, "MODEL_REPLACED")
            .hint("ask again; the new model takes it")
            .retry(),
        EngineError::HeadSize { head_dim } => Row::new(Code::FailedPrecondition, "HEAD_SIZE")
            .hint("start sluiced with --device cpu")
            .figure("head_dim", head_dim),
        EngineError::Ops(error) => ops(error),
        EngineError::Plan(error) => plan(error),
        EngineError::Tokenizer(_) => broken("TOKENIZER_INVALID"),
        EngineError::LoadCancelled => Row::new(Code::Cancelled, "LOAD_CANCELLED"),
        EngineError::Superseded => Row::new(Code::Aborted, "SUPERSEDED")
            .hint("sluice status shows the level and the budget that are in force"),
        EngineError::NoDerivatives { streamed_bytes, .. } => {
            Row::new(Code::FailedPrecondition, "NO_CACHE_FOLDER")
                .hint("start sluiced with --cache DIR, raise the budget, or choose level standard")
                .figure("streamed_bytes", streamed_bytes)
        }
        EngineError::Stopped => {
            Row::new(Code::Unavailable, "STOPPED").hint("start sluiced again and repeat")
        }
        EngineError::Panicked => Row::new(Code::Internal, "ENGINE_PANICKED")
            .hint("this is a bug in sluiced; its log says more"),
    }
}

fn ops(error: &OpsError) -> Row {
    match error {
        OpsError::OutOfMemory {
            needed_bytes,
            used_bytes,
            free_bytes,
            ..
        } => {
            let row = Row::new(Code::ResourceExhausted, "OUT_OF_MEMORY")
                .figure("needed_bytes", needed_bytes)
                .figure("used_bytes", used_bytes);
            match free_bytes {
                None => row.hint(
                    "ask for a smaller length, raise the budget, or choose a more frugal level",
                ),
                Some(free_bytes) => row.figure("free_bytes", free_bytes).hint(
                    "end other programs on the card, which nvidia-smi lists, or choose a more frugal level",
                ),
            }
        }
        OpsError::NoCard(unavailable) => {
            Row::new(Code::FailedPrecondition, "NO_CARD").hint(unavailable.hint())
        }
        OpsError::Card(error) if error.ends_context() => {
            Row::new(Code::Internal, "CARD_FAILED").hint(
                "sluiced ends, since only a new process can use the card again; as a service it comes back by itself; \
                 what nvidia-smi and the kernel's log say of the card tells more",
            )
        }
        OpsError::Card(_) => Row::new(Code::Internal, "CARD_FAILED").hint(
            "start sluiced again; what nvidia-smi and the kernel's log say of the card tells more",
        ),
        OpsError::NotANumber { position } => Row::new(Code::DataLoss, "NOT_A_NUMBER")
            .hint(
                "the checkpoint's weights are broken, or leave nothing to choose; check its files",
            )
            .figure("position", position),
        OpsError::Threads(_) => Row::new(Code::Internal, "NO_THREADS")
            .hint("the system refused; a smaller --threads may help"),
        OpsError::Probe(_) => Row::new(Code::Internal, "PROBE_FAILED")
            .hint("the system refused a file in memory; its log may say more"),
    }
}

fn plan(error: &PlanError) -> Row {
    match error {
        PlanError::BudgetTooSmall {
            budget_bytes,
            least_bytes,
            level,
            fitting,
            ..
        } => {
            let least = units::bytes_to_type(*least_bytes);
            let hint = match level {
                _ if let Some((other, _)) = fitting => format!(
                    "at least {least} works: --budget {least}; or choose what fits: --level {other}"
                ),
                Level::Off => format!(
                    "at least {least} works: sluice budget {least} (sluiced: --budget {least}); or stream what has no room: sluice level standard"
                ),
                _ => format!(
                    "at least {least} works: sluice budget {least} (sluiced: --budget {least}); or ask for a smaller canvas"
                ),
            };
            Row::new(Code::FailedPrecondition, "BUDGET_TOO_SMALL")
                .hint(hint)
                .figure("budget_bytes", budget_bytes)
                .figure("least_bytes", least_bytes)
        }
        PlanError::NotCoded { .. } => Row::new(Code::FailedPrecondition, "NO_CACHE_FOLDER").hint(
            "start sluiced with --cache DIR, or choose standard, which is as faithful, or moderate, which is smaller",
        ),
        PlanError::CacheFormat { number, .. } => Row::new(Code::FailedPrecondition, "CACHE_FORMAT")
            .hint(format!(
                "choose {number}, or auto; sluice level LEVEL --kv auto changes it"
            )),
        PlanError::CanvasTooLong { canvas, context } => Row::invalid("CANVAS_TOO_LONG", "canvas")
            .hint("ask for a smaller canvas, or leave it out for the default")
            .figure("canvas", canvas)
            .figure("context_length", context),
        PlanError::Zero { what } => Row::invalid("ZERO", what)
            .hint("give a greater number, or leave it out for the default"),
    }
}

fn request(error: &RequestError) -> Row {
    match error {
        RequestError::Zero { what } => Row::invalid("ZERO", field_name(what))
            .hint("give a greater number, or leave it out for the default"),
        RequestError::ContextExceeded {
            prompt,
            length,
            context,
        } => Row::invalid("CONTEXT_EXCEEDED", "length")
            .hint("shorten the prompt, or ask for a smaller length")
            .figure("prompt_tokens", prompt)
            .figure("length", length)
            .figure("context_length", context),
        RequestError::BlockTooLong { block, canvas } => {
            Row::invalid("BLOCK_TOO_LONG", "block_length")
                .hint("ask for a smaller block length, or leave it out")
                .figure("block_length", block)
                .figure("length", canvas)
        }
        RequestError::NotAScale { what, .. } => {
            Row::invalid("NOT_A_SCALE", field_name(what)).hint("leave it out, or give 0, for none")
        }
        RequestError::UnknownToken { id, vocabulary } => Row::invalid("UNKNOWN_TOKEN", "tokens")
            .hint("ids are those of the model's own tokenizer")
            .figure("id", id)
            .figure("vocabulary", vocabulary),
        RequestError::MaskGiven { id } => Row::invalid("MASK_GIVEN", "tokens")
            .hint("masks are added by length; leave the id out")
            .figure("id", id),
        RequestError::OnlyCausal { what } => Row::invalid("ONLY_CAUSAL", field_name(what))
            .hint("leave it out, or load a causal model, such as a Llama"),
        RequestError::OnlyMasked { what } => Row::invalid("ONLY_MASKED", field_name(what))
            .hint("leave it out, or load a model that fills masks, such as a LLaDA"),
        RequestError::Sampling { what, .. } => {
            Row::invalid("SAMPLING", field_name(what)).hint("leave it out for none")
        }
        RequestError::TooManyDraws { draws, max } => Row::invalid("TOO_MANY_DRAWS", "draws")
            .figure("draws", draws)
            .figure("max", max),
        RequestError::TooManySamples { samples, max } => {
            Row::invalid("TOO_MANY_SAMPLES", "max_samples")
                .hint("ask for fewer samples, or leave their number out for the default")
                .figure("samples", samples)
                .figure("max", max)
        }
    }
}

/// The wire's name for what the engine calls by a plain one.
fn field_name(what: &'static str) -> &'static str {
    if what == "block length" {
        "block_length"
    } else {
        what
    }
}

fn text(error: &TextError) -> Row {
    match error {
        TextError::Tokenizer { .. } | TextError::Config { .. } => {
            Row::new(Code::FailedPrecondition, "TOKENIZER_INVALID")
                .hint("the checkpoint is incomplete or damaged; fetch it again")
        }
        TextError::Template { .. } => Row::new(Code::InvalidArgument, "TEMPLATE_FAILED")
            .hint("the model's template may not take these roles; raw text goes without it"),
        TextError::Encode { .. } => Row::new(Code::InvalidArgument, "TEXT_NOT_TOKENIZED"),
    }
}

fn broken(reason: &'static str) -> Row {
    Row::new(Code::FailedPrecondition, reason)
        .hint("the checkpoint is incomplete or damaged; fetch it again")
}

pub(super) fn checkpoint(error: &CheckpointError) -> Row {
    match error {
        CheckpointError::Io { cause, .. } => match cause.kind() {
            io::ErrorKind::NotFound => {
                Row::new(Code::NotFound, "CHECKPOINT_NOT_FOUND").hint("check the path")
            }
            io::ErrorKind::PermissionDenied => {
                Row::new(Code::PermissionDenied, "CHECKPOINT_UNREADABLE")
                    .hint("give the user that sluiced runs as the right to read it")
            }
            _ => Row::new(Code::FailedPrecondition, "CHECKPOINT_UNREADABLE")
                .hint("the disk or the file system refused; the system's log may say more"),
        },
        CheckpointError::NotACheckpoint { .. } => {
            Row::new(Code::FailedPrecondition, "NOT_A_CHECKPOINT")
                .hint("name a folder that holds config.json and model.safetensors, or a .gguf or .sluice file")
        }
        CheckpointError::MissingFile { .. } => broken("FILE_MISSING"),
        CheckpointError::NoWeights { .. } => Row::new(Code::FailedPrecondition, "NO_WEIGHTS").hint(
            "name a checkpoint's folder, or a .gguf or .sluice file; one without weights is incomplete, fetch it again",
        ),
        CheckpointError::SeveralModels { count, .. } => {
            Row::new(Code::FailedPrecondition, "SEVERAL_MODELS")
                .hint("name one of the files instead of their folder")
                .figure("count", count)
        }
        CheckpointError::ShardOutside { .. } => broken("SHARD_OUTSIDE"),
        CheckpointError::TooLarge { bytes, max, .. } => broken("FILE_TOO_LARGE")
            .figure("bytes", bytes)
            .figure("max", max),
        CheckpointError::MalformedFile { .. } => broken("FILE_MALFORMED"),
        CheckpointError::WrongLength {
            expected, found, ..
        } => broken("FILE_WRONG_LENGTH")
            .figure("expected_bytes", expected)
            .figure("found_bytes", found),
        CheckpointError::Changed { .. } => Row::new(Code::FailedPrecondition, "FILE_CHANGED")
            .hint("leave a checkpoint's files alone while its model is loaded or coded"),
        CheckpointError::DuplicateTensor { tensor, .. } => {
            broken("TENSOR_TWICE").figure("tensor", tensor)
        }
        CheckpointError::MissingTensor { tensor } => {
            broken("TENSOR_MISSING").figure("tensor", tensor)
        }
        CheckpointError::WrongShape {
            tensor,
            found,
            expected,
        } => broken("TENSOR_WRONG_SHAPE")
            .figure("tensor", tensor)
            .figure("found", format!("{found:?}"))
            .figure("expected", format!("{expected:?}")),
        CheckpointError::WrongFormat { tensor, found } => {
            Row::new(Code::FailedPrecondition, "TENSOR_WRONG_FORMAT")
                .hint("use a checkpoint stored as f32, f16 or bf16, or a GGUF file in q8_0, q6_k and the like")
                .figure("tensor", tensor)
                .figure("found", found)
        }
        CheckpointError::UnknownArchitecture { found, known } => {
            Row::new(Code::FailedPrecondition, "UNKNOWN_ARCHITECTURE")
                .hint("this version of sluiced can't run such a model")
                .figure("found", found)
                .figure("known", known)
        }
        CheckpointError::Config { key, .. } => broken("CONFIG_INVALID").figure("key", key),
        CheckpointError::Metadata { key, .. } => {
            Row::new(Code::FailedPrecondition, "METADATA_INVALID")
                .hint("the file is damaged, or made by a program that sluiced doesn't know; make it again with llama.cpp's converter")
                .figure("key", key)
        }
        CheckpointError::Unsupported { hint, .. } => {
            Row::new(Code::FailedPrecondition, "CHECKPOINT_UNSUPPORTED").hint(hint.clone())
        }
        CheckpointError::Derivative { path, cause } => {
            let (code, hint) = match cause.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (
                    Code::ResourceExhausted,
                    "make room on that disk, or start sluiced with another --cache",
                ),
                _ => (
                    Code::FailedPrecondition,
                    "start sluiced with a --cache that its user may write to",
                ),
            };
            Row::new(code, "CONVERSION_FAILED")
                .hint(hint)
                .figure("path", path.display())
        }
    }
}
