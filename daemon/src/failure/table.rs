//! The table: code, reason, hint, figures and field of every failure.

use std::{collections::HashMap, time::Duration};

use sluice_engine::{EngineError, RequestError, calibration::CalibrateError};
use sluice_ops::OpsError;
use sluice_plan::PlanError;
use sluice_proto::PROTOCOL;
use sluice_shared::{level::Level, units};
use sluice_tokenizer::{LimitReached, TokenizerError};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{
    Failure,
    checkpoint::{broken_template, checkpoint},
    job, library, memory,
    row::ErrorRow,
};
use crate::limits::REQUEST_BYTES_MAX;

/// Who speaks in `ErrorInfo.domain`.
pub(super) const DOMAIN: &str = "sluice";
/// Bytes of an error's words, which may quote a file or a request.
const MESSAGE_BYTES_MAX: usize = 2 << 10;
/// Bytes of a figure, such as a path.
const FIGURE_BYTES_MAX: usize = 512;
/// How soon a refused request may be tried again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

pub(super) fn status(failure: &Failure) -> Status {
    let row = row(failure);
    let message = bounded(failure.to_string(), MESSAGE_BYTES_MAX);
    let mut metadata: HashMap<String, String> = row
        .figures
        .into_iter()
        .map(|(name, value)| (name.to_owned(), bounded(value, FIGURE_BYTES_MAX)))
        .collect();
    if let Some(hint) = row.hint {
        let hint = bounded(hint.into_owned(), MESSAGE_BYTES_MAX);
        metadata.insert("hint".to_owned(), hint);
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

/// The text, cut where it is longer. Errors travel in headers, and a client that finds those too large shows another error.
fn bounded(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.push('…');
    }
    text
}

fn row(failure: &Failure) -> ErrorRow {
    match failure {
        Failure::Field(error) => ErrorRow::invalid("INVALID_FIELD", error.field),
        Failure::Engine(error) => engine(error),
        Failure::Tokenizer(error) => tokenizer(error),
        Failure::WithoutGrammars => ErrorRow {
            field: Some("autoregressive.grammar"),
            ..ErrorRow::new(Code::FailedPrecondition, "WITHOUT_GRAMMARS").hint(
                "leave it out, or use a sluiced with grammars: installed packages have them, and `cargo install --locked --path daemon --features installed` makes one",
            )
        },
        Failure::NoTokenizer { model } => ErrorRow::new(Code::FailedPrecondition, "NO_TOKENIZER")
            .hint("send token ids instead of text: sluice generate --tokens, sluice score --tokens")
            .figure("model", model),
        Failure::NoChatTemplate { model } => {
            ErrorRow::new(Code::FailedPrecondition, "NO_CHAT_TEMPLATE")
                .hint("send raw text to be continued: sluice generate --raw")
                .figure("model", model)
        }
        Failure::TooLong {
            field, found, max, ..
        } => ErrorRow::invalid("TOO_LONG", field)
            .hint("send less, or load a model with a longer context")
            .figure("found", found)
            .figure("max", max),
        Failure::PinOutside {
            position,
            tokens,
            length,
        } => ErrorRow::invalid("PIN_OUTSIDE", "diffusion.pins")
            .hint("pin closer to the start, or request a greater length")
            .figure("position", position)
            .figure("tokens", tokens)
            .figure("length", length),
        Failure::PinTwice { position, length } => ErrorRow::invalid("PIN_TWICE", "diffusion.pins")
            .hint("move or shorten one of the pins")
            .figure("position", position)
            .figure("length", length),
        Failure::ModelLoading { model } => ErrorRow::new(Code::Unavailable, "MODEL_LOADING")
            .hint("try again in a moment; sluice list shows the progress")
            .figure("model", model)
            .retry(),
        Failure::ModelFailed { model, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "MODEL_FAILED")
                .hint(
                    "load another model with sluice load, or restart sluiced with another --model",
                )
                .figure("model", model)
        }
        Failure::ModelNotLoaded { model } => {
            ErrorRow::new(Code::FailedPrecondition, "MODEL_NOT_LOADED")
                .hint(format!(
                    "load it first: sluice load {model}; or let requests load models: load_on_request in sluiced.toml"
                ))
                .figure("model", model)
        }
        Failure::LoadInProgress { model } => ErrorRow::new(Code::Unavailable, "LOAD_IN_PROGRESS")
            .hint("try again once it is loaded; sluice list shows the progress")
            .figure("model", model)
            .retry(),
        Failure::UnknownShape { .. } => ErrorRow::invalid("UNKNOWN_SHAPE", "model"),
        Failure::TooLargeForBudget(error) => ErrorRow {
            code: Code::ResourceExhausted,
            ..plan(error)
        },
        Failure::MemoryKeptByUnused { failure, unused } => {
            let row = row(failure);
            let unload = unused.iter().map(|name| format!("sluice unload {name}"));
            let unload = unload.collect::<Vec<_>>().join(", ");
            let hint = match &row.hint {
                Some(hint) => format!("free memory: {unload}; or {hint}"),
                None => format!("free memory: {unload}"),
            };
            row.hint(hint)
        }
        Failure::TooLargeForGpu { gpu, error } => {
            let row = plan(error);
            let hint = row.hint.as_deref().unwrap_or_default();
            let hint = format!("{hint}; or run the model on the CPU: sluiced --device cpu");
            row.hint(hint).figure("gpu", gpu)
        }
        Failure::NothingToChange(cause) => {
            let row = row(cause);
            match row.retry {
                // It only has to be waited for.
                true => row,
                false => row.hint(
                    "set them when loading a model: sluice load DIR --level L --budget BYTES",
                ),
            }
        }
        Failure::TooManyChanges { max } => {
            ErrorRow::new(Code::ResourceExhausted, "TOO_MANY_CHANGES")
                .hint("wait for the end of those before; while a model loads, sluice list shows its progress")
                .figure("max", max)
                .retry()
        }
        Failure::ModelUnloaded { model } => ErrorRow::new(Code::Aborted, "MODEL_UNLOADED")
            .hint("send the request again to have the model loaded again")
            .figure("model", model),
        Failure::TooManyWanted { max } => {
            ErrorRow::new(Code::ResourceExhausted, "TOO_MANY_MODELS_WANTED")
                .hint("try again later, or name a model that is loaded: sluice ps")
                .figure("max", max)
                .retry()
        }
        Failure::LineFull { max } => ErrorRow::new(Code::ResourceExhausted, "QUEUE_FULL")
            .hint("try again later")
            .figure("capacity", max)
            .retry(),
        Failure::PreparingFull { max } => ErrorRow::new(Code::ResourceExhausted, "PREPARING_FULL")
            .hint("try again later")
            .figure("max", max)
            .retry(),
        Failure::AppliesToNextLoad => {
            ErrorRow::new(Code::FailedPrecondition, "NO_MODEL").hint("load one with sluice load")
        }
        Failure::Hub(error) => library::hub(error),
        Failure::ModelName(_)
        | Failure::UnknownModel { .. }
        | Failure::NoModelsFolder
        | Failure::Embedded
        | Failure::NotOurs { .. }
        | Failure::RemoveModel { .. }
        | Failure::SaveState(_)
        | Failure::NotSaved { .. }
        | Failure::ModelInUse { .. }
        | Failure::TooManyPulls { .. }
        | Failure::PullingAnother { .. }
        | Failure::PullingWithAnotherToken { .. }
        | Failure::PullCancelled { .. } => library::of(failure),
        Failure::Calibration(CalibrateError::Engine(error)) => engine(error),
        Failure::Compression { .. }
        | Failure::Calibration(_)
        | Failure::Optimization(_)
        | Failure::Interrupted { .. }
        | Failure::OperationInProgress { .. }
        | Failure::JobCancelled { .. } => job::of(failure),
        Failure::Memory(error) => memory::of(error),
        Failure::ImportCancelled { sources } => ErrorRow::new(Code::Cancelled, "CANCELLED")
            .hint("run the same command again for the rest")
            .figure("sources", sources),
        Failure::TooManyImports { .. } => {
            ErrorRow::new(Code::ResourceExhausted, "TOO_MANY_IMPORTS")
                .hint("try again when one has ended; `sluice jobs` shows them")
        }
        Failure::UnknownOperation { id } => ErrorRow::new(Code::NotFound, "UNKNOWN_OPERATION")
            .hint(
                "`sluice requests` lists requests, `sluice jobs` work on files; finished ones are listed for a while only",
            )
            .figure("operation_id", id),
        Failure::NotCancellable { id, .. } => {
            ErrorRow::new(Code::FailedPrecondition, "NOT_CANCELLABLE")
                .hint("ask for another change, such as `sluice restore`, which takes its place")
                .figure("operation_id", id)
        }
        Failure::TooManyCalls => ErrorRow::new(Code::ResourceExhausted, "TOO_MANY_CALLS")
            .hint("end calls that are no longer needed, or try again")
            .retry(),
        Failure::MessagesFull => ErrorRow::new(Code::ResourceExhausted, "MESSAGES_FULL")
            .hint("try again")
            .retry(),
        Failure::MessageTimeout => ErrorRow::new(Code::DeadlineExceeded, "MESSAGE_TIMEOUT")
            .hint("send messages without pauses, and close your side of the call after the last"),
        Failure::StatesFull => ErrorRow::new(Code::ResourceExhausted, "STATES_FULL")
            .hint("try again")
            .retry(),
        Failure::StateTooLarge { bytes, max } => ErrorRow::invalid("STATE_TOO_LARGE", "state")
            .hint("the state that a request goes on from and the one that it gives back count together; leave one out, or both")
            .figure("bytes", bytes)
            .figure("max", max),
        Failure::StateTimeout { .. } => ErrorRow::new(Code::DeadlineExceeded, "STATE_TIMEOUT")
            .hint("send a state, and read one, without pauses"),
        Failure::NotAllowed { needed, .. } => ErrorRow::new(Code::PermissionDenied, "ROLE_NEEDED")
            .hint(
                "the administrator gives roles: `roles` in sluiced.toml by user, group or certificate, or a token \
                 (docs/peers.md)",
            )
            .figure("needed", needed),
        Failure::NotYours { needed, .. } => ErrorRow::new(Code::PermissionDenied, "NOT_YOURS")
            .hint(format!("only its own user may do this, or the role {needed}"))
            .figure("needed", needed),
        Failure::PathNotAllowed { folders, .. } => {
            let names: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
            ErrorRow::new(Code::PermissionDenied, "PATH_NOT_ALLOWED").hint(match names.is_empty() {
                true => "the administrator names folders for this: `model_folders` in sluiced.toml".to_owned(),
                false => format!(
                    "these are meant for it: {}; the administrator adds others with `model_folders` in sluiced.toml",
                    names.join(", ")
                ),
            })
        }
        Failure::UnknownToken => ErrorRow::new(Code::Unauthenticated, "UNKNOWN_TOKEN")
            .hint("ask the administrator for a token, or call without one"),
        Failure::TokenRevoked => ErrorRow::new(Code::Unauthenticated, "TOKEN_REVOKED")
            .hint("ask the administrator for another token"),
        Failure::NobodyKnown => ErrorRow::new(Code::Unauthenticated, "NOBODY_KNOWN").hint(
            "ask the administrator for a token: $SLUICE_TOKEN_FILE names its file for sluice, others send it as `authorization: \
             Bearer TOKEN`",
        ),
        Failure::OtherProtocol { client } => {
            ErrorRow::new(Code::FailedPrecondition, "OTHER_PROTOCOL").hint(match *client < PROTOCOL {
                true => "the daemon is newer: upgrade the client to its version",
                false => {
                    "the daemon is older: upgrade sluiced, then restart it with `systemctl restart sluice` or \
                     `sluice stop --daemon`"
                }
            })
        }
        Failure::MalformedMessage { .. } => {
            ErrorRow::invalid("MALFORMED_MESSAGE", "message")
                .hint("text has to be UTF-8; was the client made from another version of the schema?")
        }
        Failure::MessageTooLarge => ErrorRow::new(Code::ResourceExhausted, "MESSAGE_TOO_LARGE")
            .hint("send less text, or fewer token ids")
            .figure("max", REQUEST_BYTES_MAX),
        // No retry delay: it will not come back by itself.
        Failure::Draining => {
            ErrorRow::new(Code::Unavailable, "DRAINING").hint("start sluiced again and repeat")
        }
        Failure::DeadlineExceeded { deadline } => {
            ErrorRow::new(Code::DeadlineExceeded, "DEADLINE_EXCEEDED")
                .hint("allow more time, or ask for a smaller length or fewer steps")
                .figure("deadline_ms", deadline.as_millis())
        }
        Failure::NotAGeneration { id } => {
            ErrorRow::new(Code::FailedPrecondition, "NOT_A_GENERATION")
                .hint("sluice requests shows its progress")
                .figure("operation_id", id)
        }
        Failure::Cancelled => ErrorRow::new(Code::Cancelled, "CANCELLED"),
        Failure::NoSeed(_) => {
            ErrorRow::new(Code::Internal, "NO_SEED").hint("give a seed with the request")
        }
        Failure::EngineLost => ErrorRow::new(Code::Internal, "ENGINE_LOST")
            .hint("this is a bug in sluiced; its log has details"),
        Failure::WrongOutcome(_) => ErrorRow::new(Code::Internal, "WRONG_OUTCOME")
            .hint("this is a bug in sluiced; its log has details"),
        Failure::WorkLost | Failure::Task(_) => ErrorRow::new(Code::Internal, "TASK_FAILED")
            .hint("this is a bug in sluiced; its log has details"),
    }
}

fn engine(error: &EngineError) -> ErrorRow {
    match error {
        EngineError::Checkpoint(error) => checkpoint(error),
        EngineError::Request(error) => request(error),
        EngineError::QueueFull { capacity } => ErrorRow::new(Code::ResourceExhausted, "QUEUE_FULL")
            .hint("try again later, or start sluiced with a greater --queue")
            .figure("capacity", capacity)
            .retry(),
        EngineError::TooManyCommands { max } => {
            ErrorRow::new(Code::ResourceExhausted, "TOO_MANY_COMMANDS")
                .hint("try again later")
                .figure("max", max)
                .retry()
        }
        EngineError::NoModel => {
            ErrorRow::new(Code::FailedPrecondition, "NO_MODEL").hint("load one with sluice load")
        }
        EngineError::ModelReplaced => ErrorRow::new(Code::Aborted, "MODEL_REPLACED")
            .hint("send the request again; the new model answers it")
            .retry(),
        EngineError::HeadDim { head_dim, .. } => ErrorRow::new(Code::FailedPrecondition, "HEAD_DIM")
            .hint("start sluiced with --device cpu")
            .figure("head_dim", head_dim),
        EngineError::PriorNotFinite => ErrorRow::new(Code::DataLoss, "PRIOR_NOT_FINITE").hint(
            "draw latents from N(0, I) with the prior none, or train another prior with `sluice-train prior`",
        ),
        EngineError::Ops(error) => ops(error),
        EngineError::Plan(error) => plan(error),
        EngineError::Tokenizer(
            error @ (TokenizerError::Limit(_) | TokenizerError::Process { .. }),
        )
        | EngineError::Grammar(error) => tokenizer(error),
        EngineError::Tokenizer(_) => broken_template("TOKENIZER_INVALID"),
        EngineError::NoPlace { max } => ErrorRow::new(Code::FailedPrecondition, "NO_PLACE")
            .hint("unload one with sluice unload NAME, or start sluiced with a greater --loaded-models")
            .figure("max", max),
        EngineError::LoadCancelled => ErrorRow::new(Code::Cancelled, "CANCELLED"),
        EngineError::Superseded => ErrorRow::new(Code::Aborted, "SUPERSEDED")
            .hint("sluice status shows the level and the budget in force"),
        EngineError::NoWeightCache { streamed_bytes, .. } => ErrorRow::new(
            Code::FailedPrecondition,
            "NO_WEIGHT_CACHE",
        )
        .hint("start sluiced with --weight-cache DIR, raise the budget, or choose level standard")
        .figure("streamed_bytes", streamed_bytes),
        EngineError::NoMix(_) => ErrorRow::new(Code::FailedPrecondition, "NO_MIX")
            .hint("sluice optimize makes one; sluice list shows those that exist"),
        EngineError::Stopped => {
            ErrorRow::new(Code::Unavailable, "STOPPED").hint("start sluiced again and repeat")
        }
        EngineError::Panicked => ErrorRow::new(Code::Internal, "ENGINE_PANICKED")
            .hint("this is a bug in sluiced; its log has details"),
    }
}

fn ops(error: &OpsError) -> ErrorRow {
    match error {
        OpsError::OutOfMemory {
            needed_bytes,
            used_bytes,
            free_bytes,
            ..
        } => {
            let row = ErrorRow::new(Code::ResourceExhausted, "OUT_OF_MEMORY")
                .figure("needed_bytes", needed_bytes)
                .figure("used_bytes", used_bytes);
            match free_bytes {
                None => row.hint(
                    "request a smaller length, raise the budget, or choose a level with smaller weights",
                ),
                Some(free_bytes) => row.figure("free_bytes", free_bytes).hint(
                    "stop other programs on the GPU (nvidia-smi lists them), or choose a level with smaller weights",
                ),
            }
        }
        OpsError::OutOfHostMemory {
            needed_bytes,
            used_bytes,
            ..
        } => ErrorRow::new(Code::ResourceExhausted, "OUT_OF_MEMORY")
            .figure("needed_bytes", needed_bytes)
            .figure("used_bytes", used_bytes)
            .hint("stop other programs that take main memory, or switch to --cpu-experts off"),
        OpsError::NoGpu(unavailable) => {
            ErrorRow::new(Code::FailedPrecondition, "NO_GPU").hint(unavailable.hint())
        }
        OpsError::Gpu(error) if error.ends_context() => {
            ErrorRow::new(Code::Internal, "GPU_FAILED").hint(
                "sluiced exits, since only a new process can use the GPU again; the service restarts by itself; \
                 see nvidia-smi and the kernel's log for the cause",
            )
        }
        OpsError::Gpu(_) => ErrorRow::new(Code::Internal, "GPU_FAILED").hint(
            "start sluiced again; see nvidia-smi and the kernel's log for the cause",
        ),
        OpsError::NotANumber { position } => ErrorRow::new(Code::DataLoss, "NOT_A_NUMBER")
            .hint(
                "the checkpoint's weights are broken, or the state that was given, or no token is left to choose; check the files",
            )
            .figure("position", position),
        OpsError::VectorNotFinite { text } => ErrorRow::new(Code::DataLoss, "NOT_A_NUMBER")
            .hint("the checkpoint's weights are broken; check the files")
            .figure("text", text),
        OpsError::Threads(_) => ErrorRow::new(Code::Internal, "NO_THREADS")
            .hint("the system refused to start threads; a smaller --threads may help"),
        OpsError::Probe(_) => ErrorRow::new(Code::Internal, "PROBE_FAILED")
            .hint("the system refused to create a file in memory; its log may have details"),
    }
}

fn plan(error: &PlanError) -> ErrorRow {
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
                    "at least {least} works: sluice budget {least} (sluiced: --budget {least}); or stream the weights that don't fit: sluice level standard"
                ),
                _ => format!(
                    "at least {least} works: sluice budget {least} (sluiced: --budget {least}); or ask for a smaller canvas"
                ),
            };
            ErrorRow::new(Code::FailedPrecondition, "BUDGET_TOO_SMALL")
                .hint(hint)
                .figure("budget_bytes", budget_bytes)
                .figure("least_bytes", least_bytes)
        }
        PlanError::NotCompressed { .. } => ErrorRow::new(Code::FailedPrecondition, "NO_WEIGHT_CACHE").hint(
            "start sluiced with --weight-cache DIR, or choose standard, which is lossless too, or moderate, which is smaller",
        ),
        PlanError::KvCacheFormat { dtype: number, .. } => ErrorRow::new(Code::FailedPrecondition, "KV_CACHE_FORMAT")
            .hint(format!(
                "choose {number} or auto: sluice level LEVEL --kv-cache-format auto"
            )),
        PlanError::CanvasTooLong { canvas, context } => ErrorRow::invalid("CANVAS_TOO_LONG", "workload.canvas_length")
            .hint("request a smaller canvas, or leave it out for the default")
            .figure("canvas", canvas)
            .figure("context_length", context),
        PlanError::ZeroWorkload { what } => ErrorRow::invalid("ZERO", what)
            .hint("give a greater number, or leave it out for the default"),
    }
}

fn request(error: &RequestError) -> ErrorRow {
    match error {
        RequestError::Zero { what } => ErrorRow::invalid("ZERO", field_name(what))
            .hint("give a greater number, or leave it out for the default"),
        RequestError::ContextExceeded {
            prompt,
            length,
            context,
        } => ErrorRow::invalid("CONTEXT_EXCEEDED", "length")
            .hint("shorten the prompt, or request a smaller length")
            .figure("prompt_tokens", prompt)
            .figure("length", length)
            .figure("context_length", context),
        RequestError::BlockTooLong { block, canvas } => {
            ErrorRow::invalid("BLOCK_TOO_LONG", "block_length")
                .hint("request a smaller block length, or leave it out")
                .figure("block_length", block)
                .figure("length", canvas)
        }
        RequestError::NotAScale { what, .. } => ErrorRow::invalid("NOT_A_SCALE", field_name(what))
            .hint("leave it out, or use 0 to disable it"),
        RequestError::UnknownToken {
            id,
            vocab_size: vocabulary,
        } => ErrorRow::invalid("UNKNOWN_TOKEN", "tokens")
            .hint("token ids must come from the model's own tokenizer")
            .figure("id", id)
            .figure("vocabulary", vocabulary),
        RequestError::MaskGiven { id } => ErrorRow::invalid("MASK_GIVEN", "tokens")
            .hint("masks are added by length; leave the id out")
            .figure("id", id),
        RequestError::OnlyAutoregressive { what } => {
            ErrorRow::invalid("ONLY_AUTOREGRESSIVE", field_name(what))
                .hint("leave it out, or load an autoregressive model, such as a Llama")
        }
        RequestError::OnlyMaskedDiffusion { what } => {
            ErrorRow::invalid("ONLY_MASKED_DIFFUSION", field_name(what))
                .hint("leave it out, or load a masked diffusion model, such as LLaDA")
        }
        RequestError::OnlyLatent { what } => ErrorRow::invalid("ONLY_LATENT", field_name(what))
            .hint("leave it out, or load a latent thought model"),
        RequestError::OnlyRecurrent { what } => {
            ErrorRow::invalid("ONLY_RECURRENT", field_name(what))
                .hint("leave it out, or load a recurrent model, such as RWKV-7")
        }
        RequestError::OnlyEncoders => ErrorRow::invalid("ONLY_ENCODERS", "model")
            .hint("name a sentence encoder, such as all-MiniLM-L6-v2"),
        RequestError::NotEncoders => ErrorRow::invalid("NOT_ENCODERS", "model")
            .hint("name a model that generates; this one answers `sluice embed`"),
        RequestError::TooManyTexts { texts, max } => ErrorRow::invalid("TOO_MANY_TEXTS", "texts")
            .figure("texts", texts)
            .figure("max", max)
            .hint("send them in several requests"),
        RequestError::Sampling { what, .. } => {
            let row = ErrorRow::invalid("SAMPLING", field_name(what));
            row.hint(match *what {
                "state" => "give a state that was saved with this very model, at any level",
                "thinking.thoughts" => "give thoughts that this model had",
                "thinking.prior" => "leave it out, or draw latents from N(0, I) with none",
                what if what.starts_with("thinking.") => {
                    "leave it out for the usual number of steps"
                }
                _ => "leave it out to disable it",
            })
        }
        RequestError::TooManyDraws { draws, max } => ErrorRow::invalid("TOO_MANY_DRAWS", "draws")
            .figure("draws", draws)
            .figure("max", max),
        RequestError::TooManySamples { samples, max } => {
            ErrorRow::invalid("TOO_MANY_SAMPLES", "max_samples")
                .hint("request fewer samples, or leave the count out for the default")
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

fn tokenizer(error: &TokenizerError) -> ErrorRow {
    match error {
        TokenizerError::Tokenizer { .. }
        | TokenizerError::World { .. }
        | TokenizerError::Config { .. } => {
            ErrorRow::new(Code::FailedPrecondition, "TOKENIZER_INVALID")
                .hint("the checkpoint is incomplete or damaged; fetch it again")
        }
        TokenizerError::Template { .. } => ErrorRow::new(Code::InvalidArgument, "TEMPLATE_FAILED")
            .hint("the model's chat template may not accept these roles; raw text does not use it"),
        TokenizerError::Limit(LimitReached::Wait | LimitReached::Gone) => {
            ErrorRow::new(Code::Unavailable, "TOKENIZER_BUSY").hint("try again")
        }
        TokenizerError::Grammar { .. } => ErrorRow::invalid("GRAMMAR", "autoregressive.grammar")
            .hint("docs/grammars.md says what schemas, regular expressions and rules may have"),
        TokenizerError::Limit(
            LimitReached::GrammarMemory | LimitReached::GrammarCpu | LimitReached::GrammarWait,
        ) => ErrorRow::invalid("GRAMMAR_LIMIT", "autoregressive.grammar")
            .hint("use a smaller grammar, one that is less ambiguous, or fewer large repetitions"),
        TokenizerError::Limit(_) => ErrorRow::new(Code::FailedPrecondition, "TOKENIZER_LIMIT").hint(
            "no published model is known to need so much: don't trust the model's files, or send less text",
        ),
        TokenizerError::Process { .. } => ErrorRow::new(Code::Unavailable, "TOKENIZER_UNAVAILABLE")
            .hint("sluiced runs its tokenizer in a process of its own: see that the system lets it start one"),
        TokenizerError::Encode { .. } => ErrorRow::new(Code::InvalidArgument, "TEXT_NOT_TOKENIZED"),
    }
}
