//! Loading a model beside the present one: opening, converting and reading happen on a thread of their own, so that
//! requests for the present model are served meanwhile. The engine's thread is asked for memory between two requests,
//! and installs the new model when it is whole.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

mod level;

use sluice_checkpoint::{Checkpoint, Source, family::ModelConfig};
use sluice_machine::Rates;
use sluice_ops::{Ops, OpsError, measure::measure};
use sluice_plan::Plan;
use sluice_tokenizer::Tokenizer;
use sluice_weights::WeightGroupPlan;

use self::level::PreparedPlan;
use super::{
    LevelSubstitution, LoadEvent, LoadReport, PlanSettings, Shared, converted_weights::WeightCache,
    current_model::Planner, worker::Worker,
};
use crate::{
    error::EngineError,
    residency::{LoadOutcome, Residency, WeightReader},
    schedule::{self, LoadCommand},
};

/// How often a load that waits for memory checks whether it was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

/// What a load needs from the engine's thread.
pub(crate) enum LoadStep {
    /// Memory for this plan.
    Budget {
        plan: Arc<Plan>,
        granted: mpsc::Sender<()>,
    },
    /// The end of the load.
    Finished(LoadResult),
}

/// How a load ended, and whom to tell.
pub(crate) struct LoadResult {
    result: Result<Box<ReadyModel>, EngineError>,
    report: LoadReport,
}

impl schedule::LoadStep for LoadStep {
    fn refuse(self) {
        // A load that waits for memory notices that its sender is gone.
        if let Self::Finished(LoadResult { result, mut report }) = self {
            drop(result);
            report(LoadEvent::Finished(Err(EngineError::Stopped)));
        }
    }
}

/// A model that is completely read.
pub(super) struct ReadyModel {
    pub(super) opened: OpenedCheckpoint,
    pub(super) planner: Arc<Planner>,
    pub(super) plan: Arc<Plan>,
    pub(super) reader: Arc<WeightReader>,
    pub(super) weights: Residency,
    pub(super) settings: PlanSettings,
    pub(super) substitution: Option<LevelSubstitution>,
}

/// The load in progress.
pub(super) struct RunningLoad {
    /// The budget that both models together must keep, once memory was granted.
    limit_bytes: Option<u64>,
    thread: Option<JoinHandle<()>>,
}

impl RunningLoad {
    pub(super) fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }
}

impl Drop for RunningLoad {
    /// Whoever drops it has taken its end, or has stopped the queue, which ends it.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic was reported to whoever asked for the load.
            drop(thread.join());
        }
    }
}

impl Worker {
    /// Begins a load.
    pub(super) fn begin_load(&mut self, mut load: LoadCommand) {
        let notices = self.look_at_memory_now().notices;
        (notices.into_iter()).for_each(|notice| (load.report)(LoadEvent::Notice(notice)));
        let rates = match self.rates() {
            Ok(rates) => rates,
            Err(error) => return self.end_load(error_of(load, error)),
        };
        let beside = Loader {
            shared: Arc::clone(&self.shared),
            ops: Arc::clone(&self.ops),
            weight_cache: Arc::clone(&self.weight_cache),
            rates,
        };
        // Passed by channel and not by the closure: if the thread cannot start, the command is still here to be
        // refused.
        let (send, receive) = mpsc::channel::<LoadCommand>();
        let spawned = thread::Builder::new()
            .name("sluice-load".to_owned())
            .spawn(move || {
                if let Ok(load) = receive.recv() {
                    beside.load(load);
                }
            });
        match spawned {
            Ok(thread) => {
                self.loading = Some(RunningLoad {
                    limit_bytes: None,
                    thread: Some(thread),
                });
                // The thread is waiting for it.
                let _ = send.send(load);
            }
            Err(error) => {
                self.end_load(error_of(
                    load,
                    EngineError::Ops(OpsError::Threads(error.to_string())),
                ));
            }
        }
    }

    /// Does what the load in progress needs.
    pub(super) fn step_load(&mut self, step: LoadStep) {
        match step {
            LoadStep::Budget { plan, granted } => {
                // A switch of the old model would compete for the memory that is promised now.
                self.abandon_switch(EngineError::Superseded);
                self.grant_budget(&plan);
                if let Some(loading) = &mut self.loading {
                    loading.limit_bytes = Some(plan.budget_bytes);
                }
                self.update_limit();
                // A load that was cancelled meanwhile is gone.
                let _ = granted.send(());
            }
            LoadStep::Finished(end) => self.end_load(end),
        }
    }

    fn end_load(&mut self, end: LoadResult) {
        let LoadResult { result, mut report } = end;
        self.loading = None;
        self.shared.queue.end_load();
        let result = result.and_then(|loaded| {
            // Installing changes nothing before its end, so after a panic the present model is still whole.
            let installed = catch_unwind(AssertUnwindSafe(|| self.install(*loaded)));
            installed.unwrap_or(Err(EngineError::Panicked))
        });
        self.update_limit();
        report(LoadEvent::Finished(result));
    }

    /// Unloads the present model if both do not fit while it serves.
    fn grant_budget(&mut self, plan: &Plan) {
        let Some(current) = &mut self.current else {
            return;
        };
        // The cheapest memory to give up, and of no use once another model answers.
        current.prefix_cache.clear();
        let new = plan.resident_bytes() + plan.staging.total_bytes() + plan.working.tables_bytes;
        let serving = current.plan.working;
        let serving = serving.activation_bytes + serving.kv_cache_bytes + serving.logits_bytes;
        let held = self.shared.ledger.used_bytes();
        if held + serving + new > plan.budget_bytes {
            self.current = None;
            self.shared.state.clear();
        }
    }

    /// Rates of the device, where memory allowed to measure them; measured when first needed.
    pub(super) fn rates(&mut self) -> Result<Option<Rates>, EngineError> {
        match &self.rates {
            Some(rates) => Ok(rates.clone()),
            None => Ok(self.rates.insert(measure(&self.ops)?).clone()),
        }
    }
}

fn error_of(load: LoadCommand, error: EngineError) -> LoadResult {
    LoadResult {
        result: Err(error),
        report: load.report,
    }
}

/// What the load's thread works with.
struct Loader {
    shared: Arc<Shared>,
    ops: Arc<Ops>,
    weight_cache: Arc<WeightCache>,
    rates: Option<Rates>,
}

impl Loader {
    fn load(&self, load: LoadCommand) {
        let LoadCommand {
            source,
            settings,
            mut report,
            cancel,
        } = load;
        let read = || self.read(&source, settings, &cancel, &mut report);
        let result = catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(EngineError::Panicked));
        let result = result.map(Box::new);
        let refused = self
            .shared
            .queue
            .post(LoadStep::Finished(LoadResult { result, report }));
        if let Err(step) = refused {
            schedule::LoadStep::refuse(step);
        }
    }

    fn read(
        &self,
        source: &Source,
        settings: PlanSettings,
        cancel: &AtomicBool,
        report: &mut LoadReport,
    ) -> Result<ReadyModel, EngineError> {
        let (ops, ledger) = (&self.ops, &self.shared.ledger);
        let opened = OpenedCheckpoint::new(source)?;
        let profile = ops.device().profile();
        let machine = (self.shared).machine(profile, self.rates.clone());
        let mut planner =
            Planner::of_checkpoint(&opened.checkpoint, opened.config.clone(), machine)?;
        planner.can_compress = self.weight_cache.folder.is_some();
        planner.checkpoint = Some(Arc::clone(&opened.checkpoint));
        let planner = Arc::new(planner);
        let notice = &mut |notice| report(LoadEvent::Notice(notice));
        (self.weight_cache).look_for_compressed(&opened.checkpoint, &planner, notice)?;
        // Before the present model may have to go: conversion takes long, and if the disk is full the old model stays.
        let PreparedPlan {
            plan,
            reader,
            settings,
            substitution,
        } = self.prepare(&opened.checkpoint, &planner, settings, cancel, report)?;
        self.wait_for_budget(&plan, cancel)?;
        let total_bytes: u64 = plan.groups.iter().map(WeightGroupPlan::bytes).sum();
        let mut progress = |units: usize| {
            let done = plan.groups[..units].iter().map(WeightGroupPlan::bytes);
            report(LoadEvent::Progress {
                loaded_bytes: done.sum(),
                total_bytes,
            });
        };
        let weights = Residency::load(
            &plan,
            Arc::clone(&reader),
            ops.device(),
            ledger,
            cancel,
            &mut progress,
        )?;
        let LoadOutcome::Done(weights) = weights else {
            return Err(EngineError::LoadCancelled);
        };
        Ok(ReadyModel {
            opened,
            planner,
            plan,
            reader,
            weights,
            settings,
            substitution,
        })
    }

    /// Waits for the running requests to end, and for memory.
    fn wait_for_budget(&self, plan: &Arc<Plan>, cancel: &AtomicBool) -> Result<(), EngineError> {
        if cancel.load(Ordering::Relaxed) {
            return Err(EngineError::LoadCancelled);
        }
        let (granted, room) = mpsc::channel();
        let plan = Arc::clone(plan);
        if self
            .shared
            .queue
            .post(LoadStep::Budget { plan, granted })
            .is_err()
        {
            return Err(EngineError::LoadCancelled);
        }
        loop {
            match room.recv_timeout(CANCEL_INTERVAL) {
                Ok(()) => return Ok(()),
                Err(mpsc::RecvTimeoutError::Timeout) if !cancel.load(Ordering::Relaxed) => {}
                Err(_) => return Err(EngineError::LoadCancelled),
            }
        }
    }
}

/// A checkpoint whose small files have been read.
pub(super) struct OpenedCheckpoint {
    pub(super) checkpoint: Arc<Checkpoint>,
    pub(super) config: ModelConfig,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
}

impl OpenedCheckpoint {
    fn new(source: &Source) -> Result<Self, EngineError> {
        let checkpoint = Checkpoint::open(source)?;
        let config = checkpoint.model()?;
        // The tokenizer first: it is small, and a broken one should not cost a long read.
        let text = checkpoint
            .tokenizer()?
            .map(|files| {
                let template = files.template.as_deref();
                Tokenizer::with_template(&files.tokenizer, files.config.as_deref(), template)
                    .map(Arc::new)
            })
            .transpose()?;
        Ok(Self {
            checkpoint: Arc::new(checkpoint),
            config,
            tokenizer: text,
        })
    }
}
