//! What waits for the engine's thread: requests, and commands besides them.

use std::sync::{Arc, atomic::AtomicBool, mpsc};

use sluice_checkpoint::Source;
use sluice_machine::Rates;
use sluice_plan::Workload;

use crate::{
    command::{ApplyReport, LoadReport, LoadRoom, PlanOptions, PlanSettings, UnloadReport},
    error::EngineError,
    event::RequestListener,
    fair::ShareKey,
    request::{ModelId, Work},
};

/// An admitted request.
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) work: Work,
    pub(crate) listener: RequestListener,
    /// Set when the request is no longer wanted.
    pub(crate) cancel: Arc<AtomicBool>,
    /// Whose turn it takes.
    pub(super) share: ShareKey,
    /// What its turn counts for, in rows of passes.
    pub(super) cost: u64,
}

/// The request at the front of the queue.
pub(crate) struct WaitingRequest {
    pub(crate) id: u64,
    pub(crate) workload: Workload,
}

/// A model to load, and whom to report to.
pub(crate) struct LoadCommand {
    pub(crate) source: Source,
    pub(crate) settings: PlanSettings,
    pub(crate) report: LoadReport,
    /// Makes room for it, where others may have to go.
    pub(crate) room: Option<Box<dyn LoadRoom>>,
    /// Set to cancel the load.
    pub(crate) cancel: Arc<AtomicBool>,
}

/// A change of the settings, and whom to report to.
pub(crate) struct ApplyCommand {
    /// What was asked for.
    pub(crate) change: PlanOptions,
    /// The same over what those asked for whose changes it has superseded before they began.
    pub(crate) merged: PlanOptions,
    pub(crate) report: ApplyReport,
}

/// A request to unload a model.
pub(crate) struct UnloadCommand {
    /// The model to unload; another that came in its place stays.
    pub(crate) model: ModelId,
    /// Only if no request waits for it, and no change of it is in progress.
    pub(crate) only_idle: bool,
    /// Called with whether it was unloaded.
    pub(crate) report: UnloadReport,
}

/// What an engine does about its memory for the sake of other engines.
pub(crate) enum MemoryCommand {
    /// Gives up what is only kept for speed, and calls this.
    DropCaches(Box<dyn FnOnce() + Send>),
    /// Makes weights resident that are streamed for want of room, if there is room by now.
    Reclaim,
}

/// Receives the device's rates; once dropped, nobody waits for them.
pub(crate) type MeasureReply = mpsc::Sender<Result<Option<Rates>, EngineError>>;

/// What the load in progress needs from the engine's thread.
pub(crate) trait LoadStep: Send {
    /// Called when the engine stops, so that nobody will take the step.
    fn refuse(self);
}

/// The next thing for the engine's thread to do.
pub(crate) enum Command<S> {
    Measure(MeasureReply),
    Memory(MemoryCommand),
    Load(LoadCommand),
    Unload(UnloadCommand),
    LoadStep(S),
    Apply(ApplyCommand),
    /// A request, and the flag that stops its passes and those of all that join it.
    Run(Box<Job>, Arc<AtomicBool>),
    Stop,
}
