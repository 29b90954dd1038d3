//! The thread that does all device work, and the handle through which the rest of the program reaches it.

mod autoregressive;
mod batch;
mod blocking;
mod budget;
mod collect_inputs;
mod command_loop;
mod contain;
mod converted_weights;
mod current_model;
mod embed;
mod fidelity;
mod group;
mod latent_score;
mod load;
mod load_step;
mod loader;
mod memory_watch;
mod mixes;
mod outline;
mod pass_runner;
mod planner;
mod prefix_cache;
mod shared;
mod state;
mod switch;
mod thinking;
mod weight_cache;
mod weight_conversion;
mod weight_switch;
mod worker;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use sluice_checkpoint::{Source, calibration::ModelIdentity};
use sluice_formats::DType;
use sluice_machine::{Instructions, Rates};
use sluice_ops::{
    self as ops, Ops, OpsError, RoutingLog,
    device::{self, Device, GpuUnavailable, OpenedDevice},
    ledger,
};
use sluice_plan::{LearnedExperts, Plan, SwitchEstimate, Workload};
use sluice_shared::level::Level;

pub(crate) use self::planner::{Planner, usual_workload};
use self::{
    contain::{contained, contained_report},
    group::EngineGroup,
    shared::Shared,
    state::EngineState,
    worker::Worker,
};
pub use self::{
    outline::{ModelOutline, machine},
    planner::default_canvas,
    state::{LevelSubstitution, PassTotals, PlanInForce, SwitchProgress},
};
pub use crate::schedule::{QueueState, RequestTicket};
use crate::{
    command::{
        ApplyEvent, ApplyReport, CommandStage, LoadEvent, LoadReport, LoadRoom, LoadedModel,
        PlanOptions, PlanSettings, UnloadReport,
    },
    error::EngineError,
    event::EventSink,
    fair::{Room, ShareKey},
    heartbeat::{EnginePulse, Heartbeat},
    request::{ModelId, Work},
    schedule::{ApplyCommand, LoadCommand, MemoryCommand, Queue, UnloadCommand},
};

// With the demonstration model: 126 tokens/s for one request, 180 for two, 199 for four, 196 for eight.
/// Default number of requests that share a pass: few enough that each keeps most of its pace.
pub const PARALLEL_DEFAULT: usize = 4;
/// Most requests that share a pass: each has a row of its own even when memory is short.
pub const PARALLEL_MAX: usize = pass_runner::MLP_ROWS_MIN;

/// Options to start an engine with.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The device that computes.
    pub device: device::DeviceChoice,
    /// The dtype that the device computes in: that of activations on a GPU, on the CPU `bf16` or else `f32`; `None`: what suits
    /// it best.
    pub compute_dtype: Option<DType>,
    /// The vector instructions that the CPU computes with.
    pub instructions: Instructions,
    /// Threads that compute, or convert for a GPU; 0: one a core.
    pub threads: usize,
    /// Requests that may wait, beside those that run; some places are kept for users who have few.
    pub queue_max: usize,
    /// Most requests that share a pass; 1 to [`PARALLEL_MAX`].
    pub parallel: usize,
    /// Limit of the bytes a second that passes read of streamed weights, from the disk or the system's cache, so that
    /// other programs get the rest. `None`: no limit.
    pub disk_read_limit_bytes_per_s: Option<u64>,
    /// Limit of pinned (page-locked) host memory used to stream weights to a GPU, for all models together during a
    /// load. `None`: what [`sluice_machine::default_pinned_memory_limit`] says.
    pub pinned_memory_limit_bytes: Option<u64>,
    /// The settings that models are loaded with.
    pub settings: PlanSettings,
    /// The folder of converted weights, so that they can be streamed and the next load need not convert; `None`:
    /// nowhere.
    pub weight_cache: Option<PathBuf>,
    /// Whether loads and changes of level keep converted weights there even when nothing is streamed.
    pub keep_converted: bool,
    /// Limit of the bytes of that folder: the least recently used files are evicted, but never one in use. `None`: no
    /// limit.
    pub weight_cache_bytes_max: Option<u64>,
    /// The program to run tokenizers in, in a process of its own ([`Tokenizer::apart`]). `None`: in this process, where what
    /// their files make of memory and time is not bounded.
    ///
    /// [`Tokenizer::apart`]: sluice_tokenizer::Tokenizer::apart
    pub tokenizer_program: Option<PathBuf>,
    /// What routers of mixtures choose is added to this log, for measurements.
    pub routing_log: Option<RoutingLog>,
    /// The rates of the device; `None`: they are measured.
    pub rates: Option<Rates>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: device::DeviceChoice::Cpu,
            compute_dtype: None,
            instructions: Instructions::best(),
            threads: 0,
            queue_max: 16,
            parallel: PARALLEL_DEFAULT,
            disk_read_limit_bytes_per_s: None,
            pinned_memory_limit_bytes: None,
            settings: PlanSettings::default(),
            weight_cache: None,
            keep_converted: false,
            weight_cache_bytes_max: None,
            tokenizer_program: None,
            routing_log: None,
            rates: None,
        }
    }
}

/// The engine: a handle to its one thread, which has one model at a time.
///
/// Several engines share a device ([`Engine::beside`]): its threads, one budget, and the turn to compute.
pub struct Engine {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    gpu_unavailable: Option<GpuUnavailable>,
}

impl Engine {
    /// Starts the thread `sluice-engine`, without a model.
    ///
    /// # Errors
    /// When threads cannot be started, or memory cannot be allocated.
    pub fn start(options: EngineOptions) -> Result<Self, EngineError> {
        let OpenedDevice {
            device,
            gpu_unavailable,
        } = Device::open(options.device, options.compute_dtype, options.threads)?;
        let device = device.with_instructions(options.instructions);
        let group = EngineGroup::new(options, device)?;
        Self::start_in(Arc::new(group), gpu_unavailable)
    }

    /// Starts another engine on this one's device, with the options that this one was started with. What their models take
    /// together keeps to the budget of those options; a model is planned for what the others leave, and what its plan may
    /// take is kept for it. One of the engines computes at a time, pass by pass.
    ///
    /// # Errors
    /// When threads cannot be started, or memory cannot be allocated.
    pub fn beside(&self) -> Result<Self, EngineError> {
        let group = Arc::clone(&self.shared.group);
        Self::start_in(group, self.gpu_unavailable.clone())
    }

    fn start_in(
        group: Arc<EngineGroup>,
        gpu_unavailable: Option<GpuUnavailable>,
    ) -> Result<Self, EngineError> {
        let ledger = group.budget.ledger();
        let mut ops = Ops::beside(group.device.clone(), ledger.clone(), &group.common_memory)?;
        if let Some(log) = &group.options.routing_log {
            ops.log_routings(log.clone());
        }
        let state = EngineState::new(group.options.settings, group.budget_default, ledger.clone());
        let shared = Arc::new(Shared {
            queue: Queue::new(group.options.queue_max),
            ledger,
            state,
            alive: AtomicBool::new(true),
            heartbeat: Heartbeat::default(),
            group,
        });
        let worker = Worker::new(Arc::clone(&shared), ops);
        let thread = thread::Builder::new()
            .name("sluice-engine".to_owned())
            .spawn(move || worker.run())
            .map_err(|error| EngineError::Ops(OpsError::Threads(error.to_string())))?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            gpu_unavailable,
        })
    }

    /// Loads a model with these settings, which become the engine's; changes of them that come meanwhile follow. If
    /// both models fit, with a request of the present one, that one serves until the new one is whole, and stays if the
    /// load fails; otherwise it goes first. Requests that wait when the model is replaced were made for the old model's
    /// ids and are refused. Setting `cancel` cancels this load, be it in progress or still waiting for its turn.
    pub fn load(
        &self,
        source: Source,
        settings: PlanSettings,
        cancel: Arc<AtomicBool>,
        report: LoadReport,
    ) {
        self.shared.queue.load(LoadCommand {
            source,
            settings,
            report: contained_report(report),
            room: None,
            cancel,
        });
    }

    /// [`Engine::load`] of a model for which models of other engines may have to go: `room` says for what budget to plan, and
    /// makes it so once all else is ready.
    pub fn load_beside(
        &self,
        source: Source,
        settings: PlanSettings,
        cancel: Arc<AtomicBool>,
        report: LoadReport,
        room: Box<dyn LoadRoom>,
    ) {
        self.shared.queue.load(LoadCommand {
            source,
            settings,
            report: contained_report(report),
            room: Some(room),
            cancel,
        });
    }

    /// Unloads a model, between two requests and not during a load: all of its memory is freed, and the settings stay.
    /// Waiting requests are refused; with `only_idle` the model stays while there are any, or its settings change. A
    /// model that was loaded in its place stays.
    pub fn unload(&self, model: ModelId, only_idle: bool, report: UnloadReport) {
        let unload = UnloadCommand {
            model,
            only_idle,
            report: Box::new(|goes| drop(contained(|| report(goes)))),
        };
        if let Err(refused) = self.shared.queue.unload(unload) {
            (refused.report)(false);
        }
    }

    /// Gives up, for other engines, what is only kept for speed; `report` is called once that is free, on the engine's thread.
    pub fn drop_caches(&self, report: impl FnOnce() + Send + 'static) {
        let report = Box::new(move || drop(contained(report)));
        let command = MemoryCommand::DropCaches(report);
        if let Err(MemoryCommand::DropCaches(report)) = self.shared.queue.memory_command(command) {
            report();
        }
    }

    /// Makes weights resident that are streamed because other engines left too little, if they leave more by now.
    pub fn reclaim_memory(&self) {
        // One that is stopping needs none, and one that has as many of these before it will do it then.
        let _ = self.shared.queue.memory_command(MemoryCommand::Reclaim);
    }

    /// Puts other settings in force, between the passes of running requests, step by step. A change that comes during
    /// another one takes over from where that stands. One that comes before another has begun is merged with it
    /// ([`PlanOptions::over`]), and the other ends as superseded. Returns the change with what was merged into it; where
    /// no plan is possible for that, the change alone is made.
    pub fn apply(&self, change: PlanOptions, report: ApplyReport) -> PlanOptions {
        let apply = ApplyCommand {
            change,
            merged: change,
            report: contained_report(report),
        };
        match self.shared.queue.apply(apply) {
            Ok(merged) => merged,
            Err(mut refused) => {
                (refused.report)(ApplyEvent::Finished(Err(EngineError::Stopped)));
                change
            }
        }
    }

    /// The plan that a change would lead to for the loaded model, without touching anything.
    ///
    /// # Errors
    /// Without a model, or when no plan is possible.
    pub fn plan(&self, change: &PlanOptions, workload: Workload) -> Result<Plan, EngineError> {
        self.shared.state.plan(change, workload)
    }

    /// How long it takes to get from the plan in force to another one for the loaded model, once a switch begins.
    /// `None` without a model or without rates.
    #[must_use]
    pub fn estimate_switch(&self, plan: &Plan) -> Option<SwitchEstimate> {
        let state = &self.shared.state;
        let (planner, in_force) = (state.planner()?, state.in_force()?);
        let weight_cache = &self.shared.group.weight_cache;
        weight_cache.estimate_switch(&planner, &in_force.plan, plan)
    }

    /// The folder of converted weights and its limit in bytes; `None` where they are not kept.
    #[must_use]
    pub fn weight_cache(&self) -> Option<(&Path, Option<u64>)> {
        let weight_cache = &self.shared.group.weight_cache;
        Some((weight_cache.folder.as_deref()?, weight_cache.bytes_max))
    }

    /// The settings that models are loaded with.
    #[must_use]
    pub fn settings(&self) -> PlanSettings {
        self.shared.state.settings()
    }

    /// The settings that the present model was loaded with, at the level that it got.
    #[must_use]
    pub fn loaded_with(&self) -> Option<PlanSettings> {
        self.shared.state.loaded_with()
    }

    /// The level in force in place of the requested one, as long as nobody has chosen another since.
    #[must_use]
    pub fn substitution(&self) -> Option<LevelSubstitution> {
        self.shared.state.substitution()
    }

    /// The budget where none is set, in bytes.
    #[must_use]
    pub fn budget_default(&self) -> u64 {
        self.shared.state.budget_default()
    }

    /// The plan in force, what was measured under it, and where each weight group is.
    #[must_use]
    pub fn in_force(&self) -> Option<PlanInForce> {
        self.shared.state.in_force()
    }

    /// Level of the plan in force; cheap enough to ask after every pass.
    #[must_use]
    pub fn level_in_force(&self) -> Option<Level> {
        self.shared.state.level_in_force()
    }

    /// Whether matmuls with weights of this plan are exact up to float order: not where rows are rounded for some of them, to 8
    /// bits or on the CPU to bf16, nor where the CPU computes some beside a GPU.
    #[must_use]
    pub fn has_exact_matmul(&self, plan: &Plan) -> bool {
        let mut tensors = plan.groups.iter().flat_map(|group| &group.tensors);
        plan.cpu_experts.is_none()
            && tensors.all(|tensor| !ops::rounds_rows(self.device(), tensor.storage.format()))
    }

    /// The present model.
    #[must_use]
    pub fn model(&self) -> Option<Arc<LoadedModel>> {
        self.shared.state.model()
    }

    /// What tells the present model's checkpoint from others, by which its calibration is found. Reads a few bytes of each
    /// tensor.
    ///
    /// # Errors
    /// Without a model, or when those bytes cannot be read.
    pub fn model_identity(&self, name: &str) -> Result<ModelIdentity, EngineError> {
        let planner = self.shared.state.planner().ok_or(EngineError::NoModel)?;
        let checkpoint = planner.checkpoint.as_ref().ok_or(EngineError::NoModel)?;
        let (family, shape) = (planner.config.family.name(), &planner.config.shape);
        let fingerprint = checkpoint.fingerprint()?;
        let sources = planner.estimated_sources();
        let tensors = sources.iter().map(|source| &source.spec);
        Ok(ModelIdentity::new(
            name,
            family,
            fingerprint,
            shape,
            tensors,
        ))
    }

    /// What passes have told of the experts of models of the present one's shape; `None` where none have, or without a model.
    #[must_use]
    pub fn learned_experts(&self) -> Option<LearnedExperts> {
        let planner = self.shared.state.planner()?;
        let corrections = &self.shared.group.corrections;
        corrections.learned_experts(&planner.config.shape)
    }

    /// Has plans of models of that shape begin with what passes told before this process; nothing of figures that none can have
    /// told.
    pub fn restore_experts(&self, learned: &LearnedExperts) {
        self.shared.group.corrections.restore_experts(learned);
    }

    /// What plans of the present model are made by.
    pub(crate) fn planner(&self) -> Option<Arc<Planner>> {
        self.shared.state.planner()
    }

    /// Checks a request and queues it, for a turn of its share.
    ///
    /// # Errors
    /// At once, when it breaks a rule, was made for another model, or the queue has no place for its user.
    pub fn submit(
        &self,
        share: ShareKey,
        work: Work,
        sink: EventSink,
    ) -> Result<RequestTicket, EngineError> {
        let model = self.model().ok_or(EngineError::NoModel)?;
        // Its token ids belong to one model's vocabulary and mean nothing to another.
        if model.id != work.model() {
            return Err(EngineError::ModelReplaced);
        }
        work.check(&model.info)?;
        self.shared.queue.submit(share, work, sink)
    }

    /// Whether the queue has a place for a request of this share, and if not, for whose.
    #[must_use]
    pub fn room(&self, share: ShareKey) -> Room {
        self.shared.queue.room(share)
    }

    /// Cancels a request: within a pass when nobody else shares it, else at the pass's end; at once when it waits (its
    /// sink is then called on this thread). Does nothing when it has ended.
    pub fn cancel(&self, ticket: RequestTicket) {
        self.shared.queue.cancel(ticket.id);
    }

    /// How full the queue is.
    #[must_use]
    pub fn queue(&self) -> QueueState {
        self.shared.queue.snapshot()
    }

    /// Device memory by kind that the models of all engines on this device hold together.
    #[must_use]
    pub fn memory_of_all(&self) -> ledger::LedgerReport {
        self.shared.group.budget.report()
    }

    /// Bytes of host memory that all engines on this device have pinned.
    #[must_use]
    pub fn pinned_bytes_of_all(&self) -> u64 {
        self.shared.group.budget.pinned_bytes()
    }

    /// The ledger of host memory in which the CPU computes experts beside a GPU, for all engines on this device.
    #[must_use]
    pub fn ledger_beside_gpu(&self) -> &ledger::Ledger {
        self.shared.group.common_memory.ledger_beside_gpu()
    }

    /// The budget that the models of all engines on this device keep together, in bytes, unless one of them was given more.
    #[must_use]
    pub fn shared_budget_bytes(&self) -> u64 {
        self.shared.group.budget.limit()
    }

    /// The settings that this engine and all beside it were started with.
    #[must_use]
    pub fn start_settings(&self) -> PlanSettings {
        self.shared.group.options.settings
    }

    /// What other programs leave this process of a GPU's memory, with what is held here, where that is less than when the
    /// first engine started.
    #[must_use]
    pub fn available_bytes(&self) -> Option<u64> {
        self.shared.state.available_bytes()
    }

    /// Bytes of it that no other engine can have: what is held here, or what the plan in force may take where that is more.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.shared.ledger.taken_bytes()
    }

    /// Bytes of them that are not held yet, so that the device counts them as free.
    #[must_use]
    pub fn unheld_bytes(&self) -> u64 {
        self.shared.ledger.unheld_bytes()
    }

    /// The bytes that these settings allow a model: their budget, or the default.
    #[must_use]
    pub fn allowed_bytes(&self, settings: &PlanSettings) -> u64 {
        self.shared.state.allowed_bytes(settings)
    }

    /// Device memory by kind.
    #[must_use]
    pub fn memory(&self) -> ledger::LedgerReport {
        self.shared.ledger.report()
    }

    /// Bytes of host memory that are pinned for a GPU to copy weights from.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.shared.ledger.pinned_bytes()
    }

    /// The device that computes.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.shared.group.device
    }

    /// This engine, which computes on the CPU for the given reason.
    #[must_use]
    pub fn without_gpu(self, reason: GpuUnavailable) -> Self {
        // A field cannot be moved out of a type that implements `Drop`.
        let mut engine = self;
        engine.gpu_unavailable = Some(reason);
        engine
    }

    /// Why no GPU computes, where one was tried.
    #[must_use]
    pub fn gpu_unavailable(&self) -> Option<&GpuUnavailable> {
        self.gpu_unavailable.as_ref()
    }

    /// Whether the thread runs, on a working device. It ends by [`Engine::stop`], by a panic, or when a GPU fails so
    /// that this process cannot use it any more.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::Acquire) && !self.device().has_failed()
    }

    /// What the thread is doing, and whether it gets on.
    #[must_use]
    pub fn pulse(&self) -> EnginePulse {
        let (activity, beats) = self.shared.heartbeat.now();
        EnginePulse {
            activity,
            beats,
            has_work: self.shared.queue.has_work(),
        }
    }

    /// Cancels everything; the thread ends soon.
    pub fn begin_stop(&self) {
        self.shared.queue.stop();
    }

    /// Cancels everything and waits for the thread to end.
    pub fn stop(&self) {
        self.begin_stop();
        // Taken out, because `Drop` calls this again.
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Its own thread, as where a report drops the last handle, cannot wait for itself, and ends after this.
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == thread::current().id();
        if let Some(thread) = thread.filter(|thread| !is_own(thread)) {
            // A panic was reported to the request that it met, and shows in `is_alive`.
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
