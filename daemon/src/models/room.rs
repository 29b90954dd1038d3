//! Room for a model beside those that are loaded: which of them go for it, and how they are waited for.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use sluice_engine::{Engine, EngineError, FitFn, LoadRoom, PlanSettings};
use sluice_plan::sharing::{LoadedShare, LoadedShares, RoomChoice};
use sluice_shared::units;

use super::{Known, ModelName, Models, ServingModel, SleepingModel};
use crate::{allocator, limits::SLEEPING_MAX, operations::Operation};

/// How often it is looked whether the models that are to go are idle, and whether the load was cancelled.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long others may take to give up what they only keep for speed. One that is busy does it later, and it is planned without.
const GIVE_UP_TIMEOUT: Duration = Duration::from_millis(500);

/// Makes room for a load.
pub(super) struct RoomForLoad {
    models: Arc<Models>,
    engine: Weak<Engine>,
    /// The budget of the model's own settings.
    asked_bytes: u64,
    operation: Arc<Operation>,
    /// Those that are to go.
    chosen: Vec<ModelName>,
}

impl RoomForLoad {
    pub(super) fn new(
        models: Arc<Models>,
        engine: &Arc<Engine>,
        asked_bytes: u64,
        operation: Arc<Operation>,
    ) -> Self {
        Self {
            models,
            engine: Arc::downgrade(engine),
            asked_bytes,
            operation,
            chosen: Vec::new(),
        }
    }
}

impl LoadRoom for RoomForLoad {
    fn budget(&mut self, fit: FitFn<'_>) -> Result<u64, EngineError> {
        let engine = self.engine.upgrade().ok_or(EngineError::Stopped)?;
        let models = self.models.in_order_of_going();
        give_up_caches(&models);
        let loaded: Vec<LoadedShare> = models
            .iter()
            .map(|model| self.models.share_of(model))
            .collect();
        let models_max = self.models.settings.loaded_models();
        let shares = LoadedShares {
            budget_bytes: engine.shared_budget_bytes(),
            models_max,
            loaded: &loaded,
        };
        let room = |gone: &[usize]| {
            let freed: u64 = gone.iter().map(|&index| loaded[index].taken_bytes).sum();
            // Other programs may have taken some of a GPU's memory.
            let available = engine.available_bytes();
            let available = available.map_or(u64::MAX, |bytes| bytes.saturating_add(freed));
            shares.room_bytes(self.asked_bytes, gone).min(available)
        };
        let choice = shares.make_room(&mut |gone| fit(room(gone)))?;
        let gone = match choice {
            RoomChoice::Evict(gone) => gone,
            // Nobody goes for what then fails with the figures of what there could be.
            RoomChoice::TooLarge => {
                self.chosen.clear();
                let all = (0..loaded.len()).filter(|&index| loaded[index].may_go);
                return Ok(room(&all.collect::<Vec<_>>()));
            }
            RoomChoice::NoPlace => return Err(EngineError::NoPlace { max: models_max }),
        };
        self.chosen = gone
            .iter()
            .map(|&index| models[index].name.clone())
            .collect();
        for name in &self.chosen {
            let notice = format!("the model {} goes for it", name.name);
            tracing::info!(
                model = self.operation.description().model,
                notice,
                "while loading"
            );
            self.operation.notice(notice);
        }
        Ok(room(&gone))
    }

    fn make(&mut self, cancel: &AtomicBool) -> Result<(), EngineError> {
        let _closed = ClosedModels::new(&self.models, &self.chosen);
        let mut has_told = false;
        // The load looks at the flag itself.
        while !cancel.load(Ordering::Relaxed) {
            // All at once: as long as one is busy, the others may serve on.
            match self.chosen.iter().find(|name| self.models.is_used(name)) {
                None => {
                    let mut chosen = self.chosen.iter();
                    if chosen.all(|name| self.models.evict(name, cancel)) {
                        break;
                    }
                }
                Some(busy) if !has_told => {
                    has_told = true;
                    let model = &busy.name;
                    let notice = format!("waiting for requests of the model {model} to end");
                    self.operation.notice(notice);
                }
                Some(_) => {}
            }
            thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }
}

/// Models that let nobody in any more, for as long as this lives.
struct ClosedModels<'a> {
    models: &'a Models,
    names: &'a [ModelName],
}

impl<'a> ClosedModels<'a> {
    fn new(models: &'a Models, names: &'a [ModelName]) -> Self {
        for name in names {
            models.uses.close(name);
        }
        Self { models, names }
    }
}

impl Drop for ClosedModels<'_> {
    fn drop(&mut self) {
        for name in self.names {
            self.models.uses.open(name);
        }
    }
}

/// Has engines give up what is only kept for speed, so that it does not count as taken.
fn give_up_caches(models: &[ServingModel]) {
    let (tell, told) = mpsc::channel();
    let mut asked = 0;
    for engine in models.iter().filter_map(|model| model.engine.upgrade()) {
        let tell = tell.clone();
        // Nobody waits any more for one that took long.
        engine.give_up_caches(move || {
            let _ = tell.send(());
        });
        asked += 1;
    }
    let until = Instant::now() + GIVE_UP_TIMEOUT;
    for _ in 0..asked {
        let left = until.saturating_duration_since(Instant::now());
        if told.recv_timeout(left).is_err() {
            return;
        }
    }
}

impl Models {
    /// The loaded models in the order in which they go: those without requests first, and of these the one first that was used
    /// least recently.
    fn in_order_of_going(&self) -> Vec<ServingModel> {
        let mut models = self.all_loaded();
        models.sort_by_key(|model| (self.is_busy(model), self.uses.of(&model.name).last_use));
        models
    }

    fn share_of(&self, model: &ServingModel) -> LoadedShare {
        let engine = model.engine.upgrade();
        let (taken, budget) = engine.map_or((0, 0), |engine| {
            let budget = engine.settings().budget.bytes();
            let budget = budget.unwrap_or_else(|| engine.budget_default());
            (engine.taken_bytes(), budget)
        });
        LoadedShare {
            taken_bytes: taken,
            budget_bytes: budget,
            may_go: !self.is_pinned(model),
        }
    }

    /// Whether a model that is loaded has requests, jobs or a change.
    fn is_used(&self, name: &ModelName) -> bool {
        let found = self.lock().find(name).cloned();
        found.is_some_and(|model| self.is_busy(&model))
    }

    /// Unloads a model for another; true once it has gone. The next request for it loads it again, if somebody chose to have it
    /// loaded or requests may do that.
    fn evict(&self, name: &ModelName, cancel: &AtomicBool) -> bool {
        let Some(model) = self.lock().find(name).cloned() else {
            return true;
        };
        let Some(engine) = model.engine.upgrade() else {
            return true;
        };
        // Before it goes: a request that comes in between finds it asleep, and not gone.
        let sleeps = self.lock().put_to_sleep(&model, engine.settings());
        let before = engine.memory_of_all().used_bytes;
        let (tell, told) = mpsc::channel();
        // Fails if nobody waits any more.
        let report = Box::new(move |goes| {
            let _ = tell.send(goes);
        });
        engine.unload(model.loaded.id, true, report);
        let went = loop {
            match told.recv_timeout(LOOK_INTERVAL) {
                Ok(went) => break went,
                Err(RecvTimeoutError::Timeout) if !cancel.load(Ordering::Relaxed) => {}
                // A load that was cancelled waits for nobody; if the model goes all the same, it sleeps.
                Err(_) => return false,
            }
        };
        if !went {
            if sleeps {
                self.lock().wake_up(name);
            }
            return false;
        }
        self.let_go(&engine);
        tracing::info!(
            model = name.name,
            freed = units::bytes(before.saturating_sub(engine.memory_of_all().used_bytes)),
            "unloaded to make room"
        );
        true
    }

    /// Forgets a model that its engine has let go, and ends that engine if it was started for it.
    pub(super) fn let_go(&self, engine: &Arc<Engine>) {
        let gone = self.lock().forget_gone();
        for model in &gone {
            self.uses.set_loaded(&model.name, false);
        }
        // The record holds the tokenizer. Freed outside the lock, for which calls wait.
        drop(gone);
        if engine.model().is_none()
            && let Some(engines) = self.engines.upgrade()
        {
            engines.end(engine);
        }
        allocator::give_back();
        self.changes.tell();
    }
}

impl Known {
    /// Remembers that the next request loads a model again; whether that was not so before. Of those that only requests had
    /// loaded, the present one alone.
    pub(super) fn put_to_sleep(&mut self, model: &ServingModel, settings: PlanSettings) -> bool {
        let present = self.present.as_ref();
        let is_present = present.is_some_and(|present| present.is_same(&model.name));
        if self.sleeping(&model.name).is_some() || !(model.is_chosen || is_present) {
            return false;
        }
        if self.asleep.len() == SLEEPING_MAX {
            self.asleep.remove(0);
        }
        self.asleep.push(SleepingModel {
            name: model.name.clone(),
            settings,
            is_pinned: model.is_pinned,
        });
        true
    }

    /// A model stayed after all.
    pub(super) fn wake_up(&mut self, name: &ModelName) {
        self.asleep.retain(|asleep| !asleep.name.is_same(name));
    }
}
