//! The engine's thread: what it does between requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sluice_machine::Rates;
use sluice_ops::{Ops, ledger::PeakMark};
use sluice_tokenizer::Tokenizer;
use sluice_weights::END_TOKENS_MAX;

use super::{
    LoadedModel, Shared,
    converted_weights::WeightCache,
    current_model::CurrentModel,
    load::{ReadyModel, RunningLoad},
    memory_watch::GpuMemoryWatch,
    state::{PassTotals, PlanInForce},
};
use crate::{
    decode::Vocabulary,
    error::EngineError,
    model::{ModelInfo, transformer::Transformer},
    request::ModelId,
    schedule::{Command, UnloadCommand},
};

/// How long a plan for a long canvas stays after its request: the next request is often like it.
const NARROWING_PATIENCE: Duration = Duration::from_secs(2);

/// State that only the thread has.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) ops: Arc<Ops>,
    pub(super) current: Option<CurrentModel>,
    /// Where converted weights are kept.
    pub(super) weight_cache: Arc<WeightCache>,
    /// Times and bytes of passes under the plan in force.
    pub(super) totals: PassTotals,
    /// Set to cancel the running requests.
    pub(super) cancel: Arc<AtomicBool>,
    /// Most requests that share a pass.
    pub(super) parallel: usize,
    /// Rates of the device, where memory allowed to measure them; `None` until they are first needed.
    pub(super) rates: Option<Option<Rates>>,
    /// The load of another model in progress.
    pub(super) loading: Option<RunningLoad>,
    /// The watch over the GPU's memory.
    pub(super) memory_watch: GpuMemoryWatch,
}

/// Reports the end of the thread, in whichever way it ends.
struct AliveGuard(Arc<Shared>);

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
        // Refuses what waits and comes: otherwise callers would wait for a thread that has panicked.
        self.0.queue.stop();
    }
}

impl Worker {
    /// A worker; the default budget leaves `spare_bytes` of the device's memory free.
    pub(super) fn new(
        shared: Arc<Shared>,
        ops: Ops,
        keeping: Arc<WeightCache>,
        parallel: usize,
        spare_bytes: u64,
    ) -> Self {
        let account = GpuMemoryWatch::new(ops.device(), &shared.ledger, spare_bytes);
        Self {
            shared,
            ops: Arc::new(ops),
            current: None,
            weight_cache: keeping,
            totals: PassTotals::default(),
            cancel: Arc::default(),
            parallel,
            rates: None,
            loading: None,
            memory_watch: account,
        }
    }

    pub(super) fn run(mut self) {
        let _guard = AliveGuard(Arc::clone(&self.shared));
        loop {
            let is_switching = self
                .current
                .as_ref()
                .is_some_and(|current| current.switch.is_some());
            let queue = &self.shared.queue;
            // A switch makes steps while the queue is empty; everything queued goes first.
            let command = match is_switching {
                true => queue.try_next(),
                false if self.may_narrow() => queue.next_within(NARROWING_PATIENCE),
                false => Some(queue.next()),
            };
            match command {
                Some(Command::Stop) => return,
                // If the caller is gone, nobody waits for the answer.
                Some(Command::Measure(measured)) => drop(measured.send(self.rates())),
                Some(Command::Load(load)) => self.begin_load(load),
                Some(Command::LoadStep(step)) => self.step_load(step),
                Some(Command::Unload(unload)) => self.unload(unload),
                Some(Command::Apply(apply)) => self.begin_switch(apply),
                Some(Command::Run(job, stop)) => self.serve(*job, &stop),
                None if is_switching => self.advance_switch_idle(),
                None => self.narrow(),
            }
            // Whoever asked has been told. Nothing more can be done on a failed device: the thread ends, and the daemon
            // with it.
            if self.ops.device().has_failed() {
                return;
            }
        }
    }

    /// Replaces the present model by one that is completely loaded.
    pub(super) fn install(&mut self, loaded: ReadyModel) -> Result<Arc<LoadedModel>, EngineError> {
        let ReadyModel {
            opened,
            planner,
            plan,
            reader,
            weights,
            settings,
            substitution,
        } = loaded;
        // The only step that can fail comes first, while the old model is still in place.
        let mut model = Transformer::new(opened.config, &self.ops)?;
        model.set_mlp_rows(planner.mlp_rows);
        let mut info = model.info(&weights);
        add_end_of_turn(&mut info, opened.tokenizer.as_deref());
        let id = ModelId(self.shared.last_model_id.fetch_add(1, Ordering::Relaxed) + 1);
        self.current = Some(CurrentModel {
            vocabulary: Arc::new(Vocabulary {
                size: info.vocab_size,
                mask: info.mask,
                ends: info.eos_token_ids.clone(),
            }),
            model,
            weights,
            id,
            planner: Arc::clone(&planner),
            reader,
            plan,
            switch: None,
            serving: None,
            serving_kv_cache_format: None,
            prefix_cache: Vec::new(),
            holds_others: false,
            stays_wide: false,
            mlp_rows: planner.mlp_rows,
        });
        let loaded = Arc::new(LoadedModel {
            id,
            info,
            recommended: opened.checkpoint.recommended(),
            tokenizer: opened.tokenizer,
        });
        // Published before the model, so that whoever sees it also sees the settings that it was loaded with.
        self.shared.state.set_settings(settings);
        self.shared.state.set_loaded_with(settings, substitution);
        self.shared.state.set_model(Arc::clone(&loaded), planner);
        self.start_measuring();
        self.tell_state();
        Ok(loaded)
    }

    /// Unloads a model if it is the present one, with its prefix cache.
    fn unload(&mut self, unload: UnloadCommand) {
        let present = self.current.as_ref();
        let goes = present.is_some_and(|current| {
            let is_idle = || current.switch.is_none() && self.shared.queue.is_idle();
            current.id == unload.model && (!unload.only_idle || is_idle())
        });
        if goes {
            // Whoever asked for the change is told before the model that it was for is gone.
            self.abandon_switch(EngineError::Superseded);
            self.current = None;
            self.ops.rest();
            self.update_limit();
            // Published last: whoever sees that there is no model sees its memory free, too.
            self.shared.state.clear();
        }
        (unload.report)(goes);
    }

    /// Sets the ledger's limit by the settings in force, or those of the load in progress. What is already held stays.
    pub(super) fn update_limit(&self) {
        let state = &self.shared.state;
        let of_load = self.loading.as_ref().and_then(RunningLoad::limit_bytes);
        let limit = of_load.unwrap_or_else(|| state.allowed_bytes(&state.settings()));
        self.shared.ledger.set_limit(limit);
    }

    /// Resets the measurements, since another plan is in force.
    pub(super) fn start_measuring(&mut self) {
        self.totals = PassTotals::default();
        self.shared.ledger.mark(PeakMark::Plan);
    }

    /// Publishes the state of the weights.
    pub(super) fn tell_state(&self) {
        let Some(current) = &self.current else { return };
        self.shared.state.set_in_force(PlanInForce {
            plan: Arc::clone(&current.plan),
            switch: current.switch.as_ref().map(|switch| switch.state()),
            weights_version: current.weights.weights_version(),
            groups: current.weights.groups(),
            passes: self.totals,
        });
    }
}

/// The strings that end a chat model's turn: LLaDA's and Llama 3's, and Qwen's and Dream's, whatever their
/// configurations say. LLaDA and Dream then fill the canvas with EOS; both end the visible answer.
const ENDS_OF_TURN: [&str; 2] = ["<|eot_id|>", "<|im_end|>"];

fn add_end_of_turn(info: &mut ModelInfo, tokenizer: Option<&Tokenizer>) {
    let known = ENDS_OF_TURN
        .iter()
        .filter_map(|token| tokenizer?.token_id(token));
    for id in known.filter(|&id| (id as usize) < info.vocab_size) {
        let ends = &mut info.eos_token_ids;
        if !ends.contains(&id) && ends.len() < END_TOKENS_MAX {
            ends.push(id);
        }
    }
}
