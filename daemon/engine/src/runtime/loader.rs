//! The thread of a load: opens, converts and reads a model, while requests for the present one are served.

mod level;

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

use sluice_checkpoint::{Source, weight_cache::Mixes};
use sluice_machine::{MemoryKind, Rates};
use sluice_ops::{Ops, OpsError};
use sluice_plan::Plan;
use sluice_shared::level::Level;
use sluice_weights::WeightGroupPlan;

use self::level::PreparedPlan;
use super::{
    CommandStage, LoadEvent, LoadReport, LoadRoom, PlanSettings,
    load_step::{LoadResult, LoadStep, OpenedCheckpoint, ReadyModel},
    mixes::ModelMixes,
    planner::Planner,
    shared::Shared,
    weight_cache::WeightCache,
};
use crate::{
    error::EngineError,
    prior::Prior,
    residency::{LoadOutcome, Residency},
    schedule::{self, LoadCommand},
};

/// How often a load that waits for memory checks whether it was cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

/// How often a plan is made for a load that finds its memory taken by other engines.
const PLANS_MAX: usize = 3;

/// The load in progress.
pub(super) struct RunningLoad {
    /// The budget that both models together must keep, and what they may take of it, once memory was granted.
    granted: Option<(u64, u64)>,
    thread: Option<JoinHandle<()>>,
}

impl RunningLoad {
    /// Starts its thread; the end of the load where that is not possible.
    pub(super) fn start(loader: Loader, load: LoadCommand) -> Result<Self, LoadResult> {
        // Passed by channel and not by the closure: if the thread cannot start, the command is still here to be
        // refused.
        let (send, receive) = mpsc::channel::<LoadCommand>();
        let spawned = thread::Builder::new()
            .name("sluice-load".to_owned())
            .spawn(move || {
                if let Ok(load) = receive.recv() {
                    loader.load(load);
                }
            });
        match spawned {
            Ok(thread) => {
                // The thread is waiting for it.
                let _ = send.send(load);
                Ok(Self {
                    granted: None,
                    thread: Some(thread),
                })
            }
            Err(error) => {
                let error = EngineError::Ops(OpsError::Threads(error.to_string()));
                Err(LoadResult::failed(load, error))
            }
        }
    }

    /// Memory was granted: the budget, and what was promised of it.
    pub(super) fn grant(&mut self, limit_bytes: u64, promised_bytes: u64) {
        self.granted = Some((limit_bytes, promised_bytes));
    }

    pub(super) fn limit_bytes(&self) -> Option<u64> {
        self.granted.map(|(limit, _)| limit)
    }

    pub(super) fn promised_bytes(&self) -> u64 {
        self.granted.map_or(0, |(_, promised)| promised)
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

/// What the load's thread works with.
pub(super) struct Loader {
    pub(super) shared: Arc<Shared>,
    pub(super) ops: Arc<Ops>,
    pub(super) weight_cache: Arc<WeightCache>,
    pub(super) rates: Option<Rates>,
}

impl Loader {
    fn load(&self, load: LoadCommand) {
        let LoadCommand {
            source,
            settings,
            mut report,
            room,
            cancel,
        } = load;
        let read = || self.read((&source, room), settings, &cancel, &mut report);
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
        (source, mut room): (&Source, Option<Box<dyn LoadRoom>>),
        settings: PlanSettings,
        cancel: &Arc<AtomicBool>,
        report: &mut LoadReport,
    ) -> Result<ReadyModel, EngineError> {
        let (ops, ledger) = (&self.ops, &self.shared.ledger);
        let opened = OpenedCheckpoint::new(
            source,
            self.shared.group.options.tokenizer_program.as_deref(),
            cancel,
        )?;
        let profile = ops.device().profile();
        let machine = (self.shared).machine(profile, self.rates.clone());
        let mut planner =
            Planner::of_checkpoint(&opened.checkpoint, opened.config.clone(), machine)?;
        planner.can_compress = self.weight_cache.folder.is_some();
        planner.checkpoint = Some(Arc::clone(&opened.checkpoint));
        if let Some(folder) = &self.weight_cache.folder {
            planner.mixes = ModelMixes::new(Mixes::new(folder, &opened.checkpoint)?);
        }
        let settings = planner.mixes.settle(settings.with_unresolved_mix());
        let planner = Arc::new(planner);
        // Before anything is computed, converted or replaced: damaged weights give other answers without a word.
        let folder = self.weight_cache.folder.as_deref();
        let mut progress = |done, total| {
            report(LoadEvent::Progress {
                stage: CommandStage::Verifying,
                done,
                total,
            });
        };
        if !opened.checkpoint.verify(folder, cancel, &mut progress)? {
            return Err(EngineError::LoadCancelled);
        }
        // Other levels use a copy only where they aren't possible; it is compared then.
        if matches!(settings.level, Level::Mild | Level::Auto) {
            (self.weight_cache).compare_compressed(&opened.checkpoint, &planner, cancel, report)?;
        } else {
            let notice = &mut |notice| report(LoadEvent::Notice(notice));
            (self.weight_cache).look_for_compressed(&opened.checkpoint, &planner, notice)?;
        }
        // Before any model may have to go: conversion takes long, and if the disk is full the others stay.
        let mut prepare = || -> Result<_, EngineError> {
            let budget_bytes = match &mut room {
                Some(room) => room.budget(&mut |bytes| {
                    let (fit, _) = planner.fit(settings, bytes)?;
                    Ok(fit)
                })?,
                None => self.shared.state.budget_bytes(&settings),
            };
            let model = (&opened.checkpoint, &planner);
            let prepared = self.prepare(model, settings, budget_bytes, cancel, report)?;
            let is_made = match &mut room {
                Some(room) => room.make(cancel)?,
                None => true,
            };
            let has_room = is_made && self.wait_for_budget(&prepared.plan, cancel)?;
            Ok((prepared, has_room))
        };
        let mut plans = 1;
        let prepared = loop {
            let (prepared, has_room) = prepare()?;
            if has_room {
                break prepared;
            }
            if plans == PLANS_MAX {
                let bytes = prepared.plan.peak_bytes();
                return Err(ledger.refusal(MemoryKind::Weights, bytes).into());
            }
            // Others have taken some of the memory since it was made, or keep what they were to leave.
            plans += 1;
        };
        let PreparedPlan {
            plan,
            reader,
            settings,
            substitution,
        } = prepared;
        let prior = (planner.prior.as_ref())
            .map(|file| Prior::read(file, ops))
            .transpose()?;
        let total_bytes: u64 = plan.groups.iter().map(WeightGroupPlan::bytes).sum();
        let mut progress = |groups: usize| {
            let done = plan.groups[..groups].iter().map(WeightGroupPlan::bytes);
            report(LoadEvent::Progress {
                stage: CommandStage::Loading,
                done: done.sum(),
                total: total_bytes,
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
            prior,
            settings,
            substitution,
        })
    }

    /// Waits for the running requests to end, and for memory; whether there is enough.
    fn wait_for_budget(&self, plan: &Arc<Plan>, cancel: &AtomicBool) -> Result<bool, EngineError> {
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
                Ok(is_granted) => return Ok(is_granted),
                Err(mpsc::RecvTimeoutError::Timeout) if !cancel.load(Ordering::Relaxed) => {}
                Err(_) => return Err(EngineError::LoadCancelled),
            }
        }
    }
}
