//! The thread that does all device work, and the handle by which everybody else reaches it.

mod account;
mod ask;
mod compare;
mod current;
mod derive;
mod extend;
mod load;
mod pack;
mod room;
mod serve;
mod state;
mod switch;
mod wait;
mod worker;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use sluice_checkpoint::Source;
use sluice_machine::default_budget;
use sluice_ops::{
    self as ops, Ops, OpsError,
    device::{self, Device, Number, Opened, Unavailable},
    ledger::{self, Ledger},
};
use sluice_plan::{Learned, Plan, SwitchTime, Workload};
use sluice_shared::level::Level;
use sluice_weights::Storage;

pub use self::{
    ask::{Outline, default_canvas, machine},
    state::{InForce, Measured, SwitchState},
};
use self::{derive::Keeping, load::LoadStep, state::State, worker::Worker};
pub use crate::schedule::{QueueState, Ticket};
use crate::{
    command::{
        ApplyEvent, ApplyReport, Change, LoadEvent, LoadReport, LoadedModel, Settings, UnloadReport,
    },
    error::EngineError,
    event::Sink,
    request::{ModelId, Work},
    schedule::{Apply, Load, Queue, Unload},
};

/// Requests that share a pass, where nobody says another number: few enough that each keeps most of its pace.
pub const PARALLEL_DEFAULT: usize = 4;
/// Most requests that share a pass: each has a row of its own even when memory is short.
pub const PARALLEL_MAX: usize = serve::MLP_ROWS_MIN;

/// How to start an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// What computes.
    pub device: device::Choice,
    /// What a card computes in; `None`: what suits it best.
    pub number: Option<Number>,
    /// Threads that compute, or convert for a card; 0: one a core.
    pub threads: usize,
    /// Requests that may wait, beside those that run.
    pub queue_max: usize,
    /// Requests that share a pass, at most; 1 to [`PARALLEL_MAX`].
    pub parallel: usize,
    /// Most bytes a second that passes read of weights that are streamed, from the disk or the system's cache: whatever else
    /// uses them has the rest. `None`: as fast as it goes.
    pub read_limit_bytes_per_s: Option<u64>,
    /// Most bytes of the host's memory that are pinned for a card to copy streamed weights from, of all models together while
    /// one takes another's place. `None`: what [`sluice_machine::default_pin_limit`] says.
    pub pin_limit_bytes: Option<u64>,
    /// What models are loaded with.
    pub settings: Settings,
    /// Where converted copies of checkpoints are kept, so that they can be streamed and the next load needn't convert;
    /// `None`: nowhere.
    pub derivatives: Option<PathBuf>,
    /// Whether a load and a change of level write a converted copy there even when nothing is streamed, so that the next one
    /// needn't convert.
    pub keep_converted: bool,
    /// Most bytes that converted copies in that folder take: the least recently used go when there are more, but never
    /// one in use. `None`: any.
    pub converted_bytes_max: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: device::Choice::Cpu,
            number: None,
            threads: 0,
            queue_max: 16,
            parallel: PARALLEL_DEFAULT,
            read_limit_bytes_per_s: None,
            pin_limit_bytes: None,
            settings: Settings::default(),
            derivatives: None,
            keep_converted: false,
            converted_bytes_max: None,
        }
    }
}

/// A level that took the place of the one that was asked for, and is no less faithful.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Substitution {
    /// Asked for.
    pub asked: Level,
    /// In its place.
    pub taken: Level,
    /// Why that could not be had.
    pub reason: String,
}

impl fmt::Display for Substitution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            asked,
            taken,
            reason,
        } = self;
        let faithful = match (asked.is_lossless(), taken.is_lossless()) {
            (Some(false), Some(true)) | (Some(false), Some(false)) => "more faithful",
            _ => "as faithful",
        };
        write!(
            f,
            "level {taken}, which is {faithful}, takes the place of {asked}: {reason}"
        )
    }
}

/// The engine: a handle to its one thread.
pub struct Engine {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    keeping: Arc<Keeping>,
    device: Device,
    no_card: Option<Unavailable>,
}

/// What the handle and the thread both see.
struct Shared {
    queue: Queue<LoadStep>,
    ledger: Ledger,
    state: State,
    read_limit_bytes_per_s: Option<u64>,
    pin_limit_bytes: Option<u64>,
    last_model_id: AtomicU64,
    alive: AtomicBool,
    /// What passes of all models have taken beside what was predicted.
    learned: Learned,
}

impl Engine {
    /// Starts the thread `sluice-engine`, without a model.
    ///
    /// # Errors
    /// When threads or their memory can't be had.
    pub fn start(options: Options) -> Result<Self, EngineError> {
        let ledger = Ledger::default();
        let Opened { device, no_card } =
            Device::open(options.device, options.number, options.threads)?;
        let ops = Ops::new(device.clone(), ledger.clone())?;
        let free_bytes = device.memory().free_bytes;
        let budget_default = free_bytes.map_or(u64::MAX, |free| {
            default_budget(free).saturating_add(ledger.used_bytes())
        });
        let spare_bytes = free_bytes.map_or(0, |free| free - default_budget(free));
        let shared = Arc::new(Shared {
            queue: Queue::new(options.queue_max),
            ledger,
            state: State::new(options.settings, budget_default),
            read_limit_bytes_per_s: options.read_limit_bytes_per_s,
            pin_limit_bytes: options.pin_limit_bytes,
            last_model_id: AtomicU64::new(0),
            alive: AtomicBool::new(true),
            learned: Learned::default(),
        });
        let keeping = Keeping {
            folder: options.derivatives,
            always: options.keep_converted,
            bytes_max: options.converted_bytes_max,
            has_told: AtomicBool::new(false),
        };
        let keeping = Arc::new(keeping);
        let worker = Worker::new(
            Arc::clone(&shared),
            ops,
            Arc::clone(&keeping),
            options.parallel.clamp(1, PARALLEL_MAX),
            spare_bytes,
        );
        let thread = thread::Builder::new()
            .name("sluice-engine".to_owned())
            .spawn(move || worker.run())
            .map_err(|error| EngineError::Ops(OpsError::Threads(error.to_string())))?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            keeping,
            device,
            no_card,
        })
    }

    /// Loads a model with these settings, which are those of the engine from then on; changes of them that come meanwhile
    /// follow. Where there is room for both, and for a request of the present one, that serves until the new one is whole,
    /// and a failure leaves it there; otherwise it goes first. Requests that wait in that moment were made for the old
    /// model's ids and are refused.
    pub fn load(&self, source: Source, settings: Settings, report: LoadReport) {
        let load = Load {
            source,
            settings,
            report,
            cancel: Arc::default(),
        };
        if let Err(mut refused) = self.shared.queue.load(load) {
            (refused.report)(LoadEvent::Finished(Err(EngineError::Stopped)));
        }
    }

    /// Stops the load under way, and those that wait.
    pub fn cancel_loads(&self) {
        self.shared.queue.cancel_loads();
    }

    /// Lets a model go, between two requests and not while another loads: all of its memory is given back, and the settings
    /// stay. Requests that wait are refused, unless `only_idle` says that then, or while its settings change, it is to stay.
    /// Another that has come in its place stays.
    pub fn unload(&self, model: ModelId, only_idle: bool, report: UnloadReport) {
        let unload = Unload {
            model,
            only_idle,
            report,
        };
        if let Err(refused) = self.shared.queue.unload(unload) {
            (refused.report)(false);
        }
    }

    /// Puts other settings in force, while requests run if need be: between their passes, step by step. A change that
    /// comes while another is under way takes over from where that stands.
    pub fn apply(&self, change: Change, report: ApplyReport) {
        if let Err(mut refused) = self.shared.queue.apply(Apply { change, report }) {
            (refused.report)(ApplyEvent::Finished(Err(EngineError::Stopped)));
        }
    }

    /// What a change would lead to, without touching anything: a plan for the loaded model.
    ///
    /// # Errors
    /// Without a model, or when there is no such plan.
    pub fn plan(&self, change: &Change, workload: Workload) -> Result<Plan, EngineError> {
        self.shared.state.plan(change, workload)
    }

    /// How long it takes to get from the plan in force to another one for the loaded model, once a switch begins. Unknown
    /// without a model, or where rates are.
    #[must_use]
    pub fn switch_time(&self, plan: &Plan) -> Option<SwitchTime> {
        let state = &self.shared.state;
        let (planner, in_force) = (state.planner()?, state.in_force()?);
        self.keeping.switch_time(&planner, &in_force.plan, plan)
    }

    /// The folder that converted weights are kept in, and how many bytes they may take there.
    #[must_use]
    pub fn kept_folder(&self) -> Option<(&Path, Option<u64>)> {
        let folder = self.keeping.folder.as_deref()?;
        Some((folder, self.keeping.bytes_max))
    }

    /// The settings that models are loaded with.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.shared.state.settings()
    }

    /// What the present model was loaded with, at the level that it got.
    #[must_use]
    pub fn loaded_with(&self) -> Option<Settings> {
        self.shared.state.loaded_with()
    }

    /// The level that is in force in another's place, as long as nobody has chosen one since.
    #[must_use]
    pub fn substitution(&self) -> Option<Substitution> {
        self.shared.state.substitution()
    }

    /// Most bytes that may be held where nobody sets a budget.
    #[must_use]
    pub fn budget_default(&self) -> u64 {
        self.shared.state.budget_default()
    }

    /// The plan in force, what was measured under it, and where each unit is.
    #[must_use]
    pub fn in_force(&self) -> Option<InForce> {
        self.shared.state.in_force()
    }

    /// Level of the plan in force; cheap enough to ask after every pass.
    #[must_use]
    pub fn level_in_force(&self) -> Option<Level> {
        self.shared.state.level_in_force()
    }

    /// Whether weights that are stored by this plan come to what its formats say, up to float order: not where rows are rounded
    /// to 8 bits before they are multiplied with some of them.
    #[must_use]
    pub fn multiplies_exactly(&self, plan: &Plan) -> bool {
        let mut tensors = plan.units.iter().flat_map(|unit| &unit.tensors);
        tensors.all(|tensor| match tensor.storage {
            Storage::Plain(format) => !ops::rounds_rows(&self.device, format),
            _ => true,
        })
    }

    /// The present model.
    #[must_use]
    pub fn model(&self) -> Option<Arc<LoadedModel>> {
        self.shared.state.model()
    }

    /// Checks a request and puts it in the queue.
    ///
    /// # Errors
    /// At once, when it breaks a rule, was made for another model, or there is no room.
    pub fn submit(&self, work: Work, sink: Sink) -> Result<Ticket, EngineError> {
        let model = self.model().ok_or(EngineError::NoModel)?;
        if model.id != work.model() {
            return Err(EngineError::ModelReplaced);
        }
        work.check(&model.info)?;
        self.shared.queue.submit(work, sink)
    }

    /// Stops a request: within a pass when nobody else's shares it, else at the pass's end; at once when it waits (its sink
    /// is then called on this thread). Does nothing when it has ended.
    pub fn cancel(&self, ticket: Ticket) {
        self.shared.queue.cancel(ticket.id);
    }

    /// How full the queue is.
    #[must_use]
    pub fn queue(&self) -> QueueState {
        self.shared.queue.snapshot()
    }

    /// Device memory by kind.
    #[must_use]
    pub fn memory(&self) -> ledger::Report {
        self.shared.ledger.report()
    }

    /// Bytes of the host's memory that are pinned for a card to copy weights from.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.shared.ledger.pinned_bytes()
    }

    /// What computes.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The same engine, which computes on the CPU for this reason.
    #[must_use]
    pub fn without_card(self, reason: Unavailable) -> Self {
        // A field can't be moved out of what has an end of its own.
        let mut engine = self;
        engine.no_card = Some(reason);
        engine
    }

    /// Why no card computes, where one would have been taken.
    #[must_use]
    pub fn no_card(&self) -> Option<&Unavailable> {
        self.no_card.as_ref()
    }

    /// Whether the thread runs, on a device that does. It ends by [`Engine::stop`], by a panic, or when a card fails so that
    /// this process can't use it any more.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::Acquire) && !self.device.has_failed()
    }

    /// Cancels everything and waits for the thread to end.
    pub fn stop(&self) {
        self.shared.queue.stop();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // A panic was told to the request it met, and shows in `is_alive`.
            drop(thread.join());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
