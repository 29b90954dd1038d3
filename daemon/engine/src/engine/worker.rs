//! The engine's thread: what it does between requests.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    LoadEvent, LoadedModel, Settings, Shared,
    current::{Current, Planner, usual_workload},
    derive::Keeping,
    serve::Served,
    state::{InForce, Measured},
};
use crate::{
    checkpoint::Checkpoint,
    decode::{Vocabulary, diffusion, score},
    device::{self, Rates},
    error::EngineError,
    event::{Event, Outcome, Sink},
    ledger::Mark,
    model::{
        ModelInfo,
        llada::{Config, Llada, MLP_ROWS},
    },
    ops::Ops,
    plan::{self, Machine, Plan},
    request::{ModelId, Work},
    residency::{LoadOutcome, Reader, Residency},
    schedule::{Command, Job, Load},
    text::Text,
};

/// What the thread alone has.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) ops: Arc<Ops>,
    pub(super) current: Option<Current>,
    /// Which converted copies of checkpoints are kept, and where.
    pub(super) keeping: Keeping,
    /// Of passes under the plan in force.
    pub(super) measured: Measured,
    /// Set to stop the request that runs.
    pub(super) cancel: Arc<AtomicBool>,
    /// Of the device; measured when first needed.
    rates: Option<Rates>,
}

/// Tells the others that the thread has ended, however it did.
struct AliveGuard(Arc<Shared>);

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
        self.0.queue.stop();
    }
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, ops: Ops, keeping: Keeping) -> Self {
        Self {
            shared,
            ops: Arc::new(ops),
            current: None,
            keeping,
            measured: Measured::default(),
            cancel: Arc::default(),
            rates: None,
        }
    }

    pub(super) fn run(mut self) {
        let _guard = AliveGuard(Arc::clone(&self.shared));
        loop {
            let is_switching = self
                .current
                .as_ref()
                .is_some_and(|current| current.switch.is_some());
            let command = match is_switching {
                true => self.shared.queue.try_next(),
                false => Some(self.shared.queue.next()),
            };
            match command {
                Some(Command::Stop) => return,
                Some(Command::Load(load)) => self.load(load),
                Some(Command::Apply(apply)) => self.begin_switch(apply),
                Some(Command::Run(job)) => self.serve(job),
                None => self.advance_switch_idle(),
            }
        }
    }

    fn load(&mut self, load: Load) {
        let Load {
            source,
            settings,
            mut report,
            cancel,
        } = load;
        let result = catch_unwind(AssertUnwindSafe(|| -> Result<_, EngineError> {
            let opened = Opened::new(&source)?;
            let planner = Arc::new(self.planner(&opened)?);
            let budget = self.shared.state.budget_bytes(&settings);
            let workload = usual_workload(&planner.shape);
            let plan = planner.plan(settings.level, budget, workload)?;
            plan.check_loadable()?;
            let plan = Arc::new(plan);
            report(LoadEvent::Planned(Arc::clone(&plan)));
            // Before the present model may have to go: this takes long, and a full disk leaves it there.
            let reader = self.reader(&opened.checkpoint, &planner, &plan, &cancel, &mut report)?;
            self.abandon_switch(EngineError::Superseded);
            self.make_room(&plan);
            self.shared.ledger.set_limit(budget);
            let total_bytes: u64 = plan.units.iter().map(plan::UnitPlan::bytes).sum();
            let mut progress = |units: usize| {
                let done = plan.units[..units].iter().map(plan::UnitPlan::bytes);
                report(LoadEvent::Progress {
                    loaded_bytes: done.sum(),
                    total_bytes,
                });
            };
            let weights = Residency::load(
                &plan,
                Arc::clone(&reader),
                self.ops.device(),
                &self.shared.ledger,
                &cancel,
                &mut progress,
            )?;
            let LoadOutcome::Done(weights) = weights else {
                return Err(EngineError::LoadCancelled);
            };
            self.install(opened, planner, plan, reader, weights, settings)
        }));
        // Unlike a pass, a load changes nothing before its end, but for what had to make room.
        let result = result.unwrap_or(Err(EngineError::Panicked));
        self.update_limit();
        report(LoadEvent::Finished(result));
    }

    /// What plans for a checkpoint are made from.
    fn planner(&mut self, opened: &Opened) -> Result<Planner, EngineError> {
        let rates = match &self.rates {
            Some(rates) => rates.clone(),
            None => self.rates.insert(device::measure(&self.ops)?).clone(),
        };
        let held_bytes = self.shared.ledger.used_bytes();
        let machine = Machine::here(self.ops.device().threads(), rates, held_bytes);
        Planner::of_checkpoint(&opened.checkpoint, &opened.config, machine)
    }

    /// Lets the present model go when there is no room for two.
    fn make_room(&mut self, plan: &Plan) {
        let new = plan.resident_bytes() + plan.slots.total_bytes() + plan.working.tables_bytes;
        let held = self.shared.ledger.used_bytes();
        if held + new > plan.budget_bytes && self.current.is_some() {
            self.current = None;
            self.shared.state.clear();
        }
    }

    fn install(
        &mut self,
        opened: Opened,
        planner: Arc<Planner>,
        plan: Arc<Plan>,
        reader: Arc<Reader>,
        weights: Residency,
        settings: Settings,
    ) -> Result<Arc<LoadedModel>, EngineError> {
        let model = Llada::new(opened.config, &self.shared.ledger)?;
        let mut info = model.info(&weights);
        add_end_of_turn(&mut info, opened.text.as_ref());
        let id = ModelId(self.shared.last_model_id.fetch_add(1, Ordering::Relaxed) + 1);
        self.current = Some(Current {
            vocabulary: Vocabulary {
                size: info.vocabulary,
                mask: info.mask_token_id,
                ends: info.eos_token_ids.clone(),
            },
            model,
            weights,
            id,
            planner: Arc::clone(&planner),
            reader,
            plan,
            switch: None,
            serving: None,
            mlp_rows: MLP_ROWS,
        });
        let loaded = Arc::new(LoadedModel {
            id,
            info,
            text: opened.text,
        });
        self.shared.state.set_settings(settings);
        self.shared.state.set_model(Arc::clone(&loaded), planner);
        self.start_measuring();
        self.tell_state();
        Ok(loaded)
    }

    /// The ledger's limit, from the settings in force. What is held already stays, whatever they say.
    pub(super) fn update_limit(&self) {
        let state = &self.shared.state;
        self.shared
            .ledger
            .set_limit(state.budget_bytes(&state.settings()));
    }

    /// Another plan is in force: what was measured under the one before says nothing of it.
    pub(super) fn start_measuring(&mut self) {
        self.measured = Measured::default();
        self.shared.ledger.mark(Mark::Plan);
    }

    /// Tells everybody how the weights stand.
    pub(super) fn tell_state(&self) {
        let Some(current) = &self.current else { return };
        self.shared.state.set_in_force(InForce {
            plan: Arc::clone(&current.plan),
            switch: current.switch.as_ref().map(|switch| switch.state()),
            epoch: current.weights.epoch(),
            units: current.weights.units(),
            measured: self.measured,
        });
    }

    fn serve(&mut self, job: Job) {
        let Job {
            work,
            mut sink,
            cancel,
            ..
        } = job;
        self.cancel = Arc::clone(&cancel);
        let result = catch_unwind(AssertUnwindSafe(|| self.compute(&work, &mut sink, &cancel)));
        self.cancel = Arc::default();
        self.ops.release();
        match result {
            Ok(result) => sink(Event::Finished(result)),
            Err(panic) => {
                sink(Event::Finished(Err(EngineError::Panicked)));
                // Half-finished state is not reused: the thread ends, and the daemon with it.
                resume_unwind(panic);
            }
        }
    }

    fn compute(
        &mut self,
        work: &Work,
        sink: &mut Sink,
        cancel: &AtomicBool,
    ) -> Result<Outcome, EngineError> {
        let current = self.current.as_ref().ok_or(EngineError::NoModel)?;
        if current.id != work.model() {
            return Err(EngineError::ModelReplaced);
        }
        self.shared.ledger.mark(Mark::Request);
        let ledger = self.shared.ledger.clone();
        let mut served = match Served::start(self, work.workload(), cancel) {
            Err(_) if cancel.load(Ordering::Relaxed) => return Ok(Outcome::Cancelled),
            served => served?,
        };
        match work {
            Work::Compare(request) => served.compare(request, sink),
            Work::Generate(request) => {
                let mut generated = diffusion::generate(request, &mut served, sink)?;
                generated.peak_device_bytes = ledger.peak_since(Mark::Request);
                Ok(Outcome::Generated(generated))
            }
            Work::Score(request) => score::score(request, &mut served, sink),
        }
    }
}

/// A checkpoint whose small files have been read.
pub(super) struct Opened {
    pub(super) checkpoint: Arc<Checkpoint>,
    config: Config,
    text: Option<Text>,
}

impl Opened {
    fn new(source: &crate::checkpoint::Source) -> Result<Self, EngineError> {
        let checkpoint = Checkpoint::open(source)?;
        let config = Config::read(
            &checkpoint.config()?,
            checkpoint.generation_config()?.as_ref(),
        )?;
        // The tokenizer first: it is small, and a broken one should not cost a long read.
        let text = checkpoint
            .tokenizer()?
            .map(|files| Text::new(&files.tokenizer, files.config.as_deref()))
            .transpose()
            .map_err(crate::checkpoint::CheckpointError::from)?;
        Ok(Self {
            checkpoint: Arc::new(checkpoint),
            config,
            text,
        })
    }
}

/// A chat model ends its turn with `<|eot_id|>` before it fills the canvas with EOS; both end
/// the visible answer.
fn add_end_of_turn(info: &mut ModelInfo, text: Option<&Text>) {
    let end_of_turn = text.and_then(|text| text.token_id("<|eot_id|>"));
    if let Some(id) = end_of_turn.filter(|&id| (id as usize) < info.vocabulary)
        && !info.eos_token_ids.contains(&id)
    {
        info.eos_token_ids.push(id);
    }
}
