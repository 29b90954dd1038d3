//! Everything that a call can fail with, and the one table that turns it into a gRPC status.

mod checkpoint;
mod job;
mod library;
mod memory;
mod row;
mod table;

use std::{collections::HashMap, io, path::PathBuf, time::Duration};

use sluice_checkpoint::{
    CheckpointError, calibration::CalibrationError, compression::CompressError,
    family::PUBLISHED_SHAPES,
};
use sluice_engine::{
    EngineError, RequestError, calibration::CalibrateError, event::Outcome,
    optimization::OptimizeError,
};
use sluice_hub::{HubError, HubNameError};
use sluice_ops::OpsError;
use sluice_plan::PlanError;
use sluice_proto::{PROTOCOL, model::InvalidField, v1};
use sluice_tokenizer::TokenizerError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{
    limits::{MESSAGE_TIMEOUT, REQUEST_BYTES_MAX, STATE_TIMEOUT},
    memory::MemoryError,
    model_name::EMBEDDED_NAME,
    role::Role,
    state::SaveError,
};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A field of the message breaks a rule.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// A request that the engine would not take.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The tokenizer or the template failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A conversation for a model that nobody says how to write one for.
    #[error("the model {model} has no chat template and cannot hold a conversation")]
    NoChatTemplate {
        /// The model's name.
        model: String,
    },
    /// Text for a model that has no tokenizer.
    #[error("the model {model} has no tokenizer and cannot read text")]
    NoTokenizer {
        /// The model's name.
        model: String,
    },
    /// A grammar for a daemon that was built without.
    #[error("autoregressive.grammar: this sluiced was built without grammars")]
    WithoutGrammars,
    /// More text or ids than a request may carry.
    #[error("the request has {found} {unit}; the limit is {max}")]
    TooLong {
        /// The field's name on the wire.
        field: &'static str,
        /// What is counted.
        unit: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// A pin that leaves the part to fill.
    #[error("a pin of {tokens} tokens at position {position} exceeds the length of {length}")]
    PinOutside {
        /// First position of the pin, from 0.
        position: u32,
        /// Number of tokens of the pin.
        tokens: usize,
        /// Positions to fill.
        length: usize,
    },
    /// Two pins that want the same position.
    #[error("two pins overlap at position {position} of the length of {length}")]
    PinTwice {
        /// The first position that both want.
        position: usize,
        /// Positions to fill.
        length: usize,
    },
    /// A model is loading, and none serves.
    #[error("the model {model} is still loading")]
    ModelLoading {
        /// The model's name.
        model: String,
    },
    /// The last load failed, and no model serves.
    #[error("the model {model} could not be loaded: {reason}")]
    ModelFailed {
        /// The model's name.
        model: String,
        /// The reason.
        reason: String,
    },
    /// A request names a model that is not loaded, and may not have it loaded.
    #[error("the model {model} is not loaded")]
    ModelNotLoaded {
        /// The model's name.
        model: String,
    },
    /// Somebody unloaded the model that a request names, and that it waited for.
    #[error("the model {model} was unloaded while the request waited for it")]
    ModelUnloaded {
        /// The model's name.
        model: String,
    },
    /// Requests wait for as many models as may be.
    #[error(
        "requests wait for too many models: {max} may be waited for, and some places are kept for other users"
    )]
    TooManyWanted {
        /// Models that may be waited for.
        max: usize,
    },
    /// One load at a time.
    #[error("the model {model} is loading; one model loads at a time")]
    LoadInProgress {
        /// The one that loads.
        model: String,
    },
    /// No published shape of that name.
    #[error(
        "unknown shape '{name}'; known are {}",
        PUBLISHED_SHAPES.each_ref().map(|preset| preset.name).join(", ")
    )]
    UnknownShape {
        /// What was asked for.
        name: String,
    },
    /// No plan within the budget has room for a request.
    #[error(transparent)]
    TooLargeForBudget(PlanError),
    /// Memory is too little, and unused models keep some.
    #[error("{failure}; these models are loaded and unused: {}", unused.join(", "))]
    MemoryKeptByUnused {
        /// What there was too little memory for.
        failure: Box<Failure>,
        /// Their names; at least one.
        unused: Vec<String>,
    },
    /// No plan within the budget on a GPU. The CPU might have room for the model.
    #[error("{gpu} cannot run the model: {error}")]
    TooLargeForGpu {
        /// The GPU's name.
        gpu: String,
        /// The reason.
        error: PlanError,
    },
    /// Level and budget cannot change, since no model is there to change with them.
    #[error("{0}; level and budget are unchanged")]
    NothingToChange(Box<Failure>),
    /// The model went away before the engine could change it: the next one is loaded with what was asked for.
    #[error("no model is loaded; the requested level and budget apply to the next load")]
    AppliesToNextLoad,
    /// A hub didn't give the model.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A text that cannot be a model's name.
    #[error("name: {0}")]
    ModelName(#[from] HubNameError),
    /// No model of that name on disk.
    #[error("there is no model {model}{}", match (*.is_partial, &.alike[..]) {
        (true, _) => ", only a partial download".to_owned(),
        (false, []) => String::new(),
        (false, alike) => format!("; there is {}", alike.join(", ")),
    })]
    UnknownModel {
        /// What was asked for.
        model: String,
        /// Whether a download of it has not come to its end.
        is_partial: bool,
        /// The same with a label.
        alike: Vec<String>,
        /// Names that may have been meant.
        near: Vec<String>,
    },
    /// Models cannot be downloaded anywhere.
    #[error("there is no folder for models")]
    NoModelsFolder,
    /// The model inside the program has no files to delete.
    #[error("{EMBEDDED_NAME} is built into sluiced and cannot be removed")]
    Embedded,
    /// What we did not download we don't delete.
    #[error("{model} was not downloaded by sluiced; it is in {}", .folder.display())]
    NotOurs {
        /// The model's name.
        model: String,
        /// Where it lies.
        folder: PathBuf,
    },
    /// A model's files cannot be deleted.
    #[error("cannot remove {}: {cause}", .path.display())]
    RemoveModel {
        /// The model's folder.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// What outlives the daemon cannot be written.
    #[error(transparent)]
    SaveState(SaveError),
    /// What was asked for is done, and is lost when the daemon ends.
    #[error("{kept}: {error}")]
    NotSaved {
        /// What is done, and what of it is not kept.
        kept: String,
        /// The reason.
        error: SaveError,
    },
    /// An operation that was under way when the daemon before this one ended.
    #[error("interrupted: sluiced was ended")]
    Interrupted {
        /// What it did.
        kind: v1::OperationKind,
    },
    /// The model is loaded, or being loaded.
    #[error("the model {model} is loaded")]
    ModelInUse {
        /// The model's name.
        model: String,
    },
    /// Enough downloads are under way.
    #[error("{max} downloads are running, which is the limit")]
    TooManyPulls {
        /// How many there may be.
        max: usize,
    },
    /// Enough changes wait or are under way.
    #[error("{max} changes of level or budget are waiting, which is the limit")]
    TooManyChanges {
        /// How many there may be, of one user or of all.
        max: usize,
    },
    /// The line for a model, or for room in the engine's queue, has no place left for the caller's user.
    #[error(
        "too many requests are waiting: the line holds {max}, and keeps some places for other users"
    )]
    LineFull {
        /// How many may wait.
        max: usize,
    },
    /// The line for tokenizing and planning, or that for unloading, has no place left for the caller's user.
    #[error(
        "too many calls wait for their turn: the line holds {max}, and keeps some places for other users"
    )]
    PreparingFull {
        /// How many may wait.
        max: usize,
    },
    /// Another revision of the same model is on its way to the same folder.
    #[error("{model} is being downloaded already, at revision {revision}")]
    PullingAnother {
        /// The model's name.
        model: String,
        /// The branch, tag or commit that is on its way.
        revision: String,
    },
    /// The same model is on its way to the same folder, for somebody whom the hub may show more or less.
    #[error("{model} is being downloaded already, with another token")]
    PullingWithAnotherToken {
        /// The model's name.
        model: String,
    },
    /// A download was cancelled.
    #[error("the download of {model} was cancelled; the downloaded part is kept")]
    PullCancelled {
        /// The model's name.
        model: String,
    },
    /// A compressed file cannot be read or made.
    #[error(
        "{error}{}",
        match .partial_path {
            Some(kept) => format!("; the finished part is kept in {}, run the same command again to resume", kept.display()),
            None => String::new(),
        }
    )]
    Compression {
        /// The reason.
        error: CompressError,
        /// The unfinished file that the next run resumes; `None` if nothing is left.
        partial_path: Option<PathBuf>,
    },
    /// The loaded model cannot be calibrated.
    #[error("{0}")]
    Calibration(CalibrateError),
    /// The loaded model's weights could not be optimized.
    #[error(transparent)]
    Optimization(OptimizeError),
    /// What is remembered, or was to be.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Too many imports are under way.
    #[error("{max} imports are under way, as many as may be at once")]
    TooManyImports {
        /// How many may be.
        max: usize,
    },
    /// Somebody stopped a job, or the daemon ends.
    #[error(
        "{}{}",
        if *.by_shutdown { "the job was cancelled because sluiced is shutting down" } else { "the job was cancelled" },
        match .partial_path {
            Some(kept) => format!("; the finished part is kept in {}", kept.display()),
            None => "; nothing is left of it".to_owned(),
        }
    )]
    JobCancelled {
        /// The unfinished file that the next run resumes; `None` if nothing is left.
        partial_path: Option<PathBuf>,
        /// Whether the shutdown cancelled it.
        by_shutdown: bool,
    },
    /// Somebody stopped an import, its caller went away, or the daemon ends.
    #[error("the import was cancelled; sources that were remembered before stay: {sources}")]
    ImportCancelled {
        /// How many those are, the unchanged ones included.
        sources: u64,
    },
    /// No operation of that id, or no longer.
    #[error("there is no operation {id}")]
    UnknownOperation {
        /// What was asked for.
        id: u64,
    },
    /// Work on files is done one after another.
    #[error("job {id} is running: {kind} {path}; one job runs at a time")]
    OperationInProgress {
        /// The one that runs.
        id: u64,
        /// What it does.
        kind: v1::OperationKind,
        /// What it reads.
        path: String,
    },
    /// An operation that goes on until it is done, or another takes its place.
    #[error("operation {id} ({kind}) cannot be cancelled")]
    NotCancellable {
        /// What was asked for.
        id: u64,
        /// What it does.
        kind: v1::OperationKind,
    },
    /// The daemon is shutting down.
    #[error("sluiced is shutting down")]
    Draining,
    /// Too many calls are under way.
    #[error("too many calls are under way")]
    TooManyCalls,
    /// Messages that are being received take all memory that is meant for them.
    #[error("too many large messages are being received")]
    MessagesFull,
    /// A message did not come to its end.
    #[error("the message did not come within {} s", MESSAGE_TIMEOUT.as_secs())]
    MessageTimeout,
    /// States that come or go take all memory that is meant for them.
    #[error("too many states of recurrent models are being sent or saved")]
    StatesFull,
    /// A state is larger than any caller may send or save.
    #[error("states of {bytes} bytes; the limit is {max}")]
    StateTooLarge {
        /// Bytes of what was asked for.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// A state did not come to its end, or was not read to it.
    #[error("the state was not {what} within {} s", STATE_TIMEOUT.as_secs())]
    StateTimeout {
        /// Sent or read.
        what: &'static str,
    },
    /// The caller's role does not reach.
    #[error(
        "{call} needs the role {needed}; you have {}",
        match .role { Some(role) => role.name(), None => "none" }
    )]
    NotAllowed {
        /// Name of the call.
        call: &'static str,
        /// The least role that may make it.
        needed: Role,
        /// The caller's.
        role: Option<Role>,
    },
    /// An operation belongs to another user, and the caller's role does not reach.
    #[error("operation {id} belongs to another user")]
    NotYours {
        /// The operation's number.
        id: u64,
        /// The least role that may do this with anybody's.
        needed: Role,
    },
    /// A path is not below a folder that the caller may name.
    #[error("{} is not below a folder in which you may name files", .path.display())]
    PathNotAllowed {
        /// The path.
        path: PathBuf,
        /// The folders.
        folders: Vec<PathBuf>,
    },
    /// A call brings a token that the daemon does not know.
    #[error("the token is unknown")]
    UnknownToken,
    /// The token that a call came with was taken away since.
    #[error("the token was revoked")]
    TokenRevoked,
    /// A call from another machine brings neither a token nor a certificate.
    #[error("callers from other machines need a token or a client certificate")]
    NobodyKnown,
    /// A client of another version, which would misread answers or be misread.
    #[error(
        "sluiced {} speaks protocol {PROTOCOL}, and this client speaks {client}",
        env!("CARGO_PKG_VERSION")
    )]
    OtherProtocol {
        /// The protocol that the client speaks.
        client: u32,
    },
    /// The bytes of a message are none of its kind.
    #[error("cannot read the message: {cause}")]
    MalformedMessage {
        /// What is wrong with it.
        cause: String,
    },
    /// A message is too large.
    #[error("the message has more than {REQUEST_BYTES_MAX} bytes")]
    MessageTooLarge,
    /// The caller's deadline passed.
    #[error("the deadline of {} ms has passed", .deadline.as_millis())]
    DeadlineExceeded {
        /// The deadline as the caller gave it.
        deadline: Duration,
    },
    /// Only a generation has a canvas to watch.
    #[error("request {id} is not a generation and cannot be watched")]
    NotAGeneration {
        /// What was asked for.
        id: u64,
    },
    /// Somebody stopped a request that has nothing to show before its end.
    #[error("the request was cancelled")]
    Cancelled,
    /// The system has no random numbers.
    #[error("cannot draw a seed: {0}")]
    NoSeed(io::Error),
    /// A bug: the engine went away with the request.
    #[error("the engine stopped before the request finished")]
    EngineLost,
    /// A bug: the work of an operation ended without a result, as by a panic.
    #[error("a task of the daemon failed")]
    WorkLost,
    /// A bug: an outcome of another kind than the request.
    #[error("the engine answered with {0:?}")]
    WrongOutcome(Box<Outcome>),
    /// A bug: a task panicked.
    #[error("a task of the daemon failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Failure {
    /// The same failure, where it is for want of memory with the names of models that are loaded and `unused`.
    #[must_use]
    pub(crate) fn with_unused(self, unused: impl FnOnce() -> Vec<String>) -> Self {
        let lacks_memory = matches!(
            self,
            Self::TooLargeForBudget(_)
                | Self::Engine(EngineError::Ops(OpsError::OutOfMemory { .. }))
        );
        let unused = match lacks_memory {
            true => unused(),
            false => Vec::new(),
        };
        match unused.is_empty() {
            true => self,
            false => Self::MemoryKeptByUnused {
                failure: Box::new(self),
                unused,
            },
        }
    }
}

impl From<OpsError> for Failure {
    fn from(error: OpsError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        Self::Engine(EngineError::Request(error))
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Self {
        Self::Engine(EngineError::Checkpoint(error))
    }
}

impl From<CalibrateError> for Failure {
    fn from(error: CalibrateError) -> Self {
        match error {
            CalibrateError::Engine(error) => error.into(),
            CalibrateError::File(CalibrationError::File(error)) => error.into(),
            error => Self::Calibration(error),
        }
    }
}

impl From<OptimizeError> for Failure {
    fn from(error: OptimizeError) -> Self {
        match error {
            OptimizeError::Engine(error) => error.into(),
            OptimizeError::Calibration(error) => CalibrateError::File(error).into(),
            error => Self::Optimization(error),
        }
    }
}

impl From<CompressError> for Failure {
    fn from(error: CompressError) -> Self {
        match error {
            CompressError::Checkpoint(error) => error.into(),
            error => Self::Compression {
                error,
                partial_path: None,
            },
        }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        table::status(&failure)
    }
}

impl From<&Failure> for Status {
    fn from(failure: &Failure) -> Self {
        table::status(failure)
    }
}

/// The status that an operation of an earlier daemon ended with.
pub(crate) fn earlier_status(error: &v1::OperationError) -> Status {
    let code = i32::try_from(error.grpc_code).unwrap_or_default();
    let mut metadata: HashMap<_, _> = error.figures.clone().into_iter().collect();
    if !error.hint.is_empty() {
        metadata.insert("hint".to_owned(), error.hint.clone());
    }
    let details = ErrorDetails::with_error_info(&error.reason, table::DOMAIN, metadata);
    Status::with_error_details(Code::from(code), &error.message, details)
}

#[cfg(test)]
mod tests;
