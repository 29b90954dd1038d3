//! Room for a model beside those that are loaded: which of them are evicted for it, and how they are waited for.

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
use sluice_plan::sharing::{LoadedShare, LoadedShares, MadeRoom};
use sluice_shared::units;

use super::{Known, ModelName, Models, ServingModel, SleepingModel, WantedModel};
use crate::{allocator, engines::Engines, limits::SLEEPING_MAX, operations::Operation};

/// How often it is looked whether the models that are to go are idle, and whether the load was cancelled.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long others may take to give up what they only keep for speed. One that is busy does it later, and it is planned without.
const DROP_CACHES_TIMEOUT: Duration = Duration::from_millis(500);

/// Makes room for a load.
pub(super) struct RoomForLoad {
    models: Arc<Models>,
    engine: Weak<Engine>,
    /// The budget of the model's own settings.
    asked_bytes: u64,
    operation: Arc<Operation>,
    /// What requests wait for, where they asked for the load.
    wanted: Option<Arc<WantedModel>>,
    /// Those that are to be evicted.
    chosen: Vec<ModelName>,
}

impl RoomForLoad {
    pub(super) fn new(
        models: Arc<Models>,
        engine: &Arc<Engine>,
        asked_bytes: u64,
        operation: Arc<Operation>,
        wanted: Option<Arc<WantedModel>>,
    ) -> Self {
        Self {
            models,
            engine: Arc::downgrade(engine),
            asked_bytes,
            operation,
            wanted,
            chosen: Vec::new(),
        }
    }

    /// Whether nobody waits any more for the load of a model that requests asked for.
    fn is_unwanted(&self) -> bool {
        let wanted = self.wanted.as_ref();
        wanted.is_some_and(|wanted| !self.models.is_waited_for(&wanted.name))
    }

    /// Whether those that are to go may still be unloaded.
    fn may_evict(&self) -> bool {
        let models = &self.models;
        (self.chosen.iter()).all(|name| match models.lock().find(name).cloned() {
            Some(model) => models.may_be_evicted(&model),
            None => true,
        })
    }
}

impl LoadRoom for RoomForLoad {
    fn budget(&mut self, fit: FitFn<'_>) -> Result<u64, EngineError> {
        let engine = self.engine.upgrade().ok_or(EngineError::Stopped)?;
        // What the engine has itself goes for the new model in any case.
        let models = self.models.in_order_of_going(&engine);
        drop_caches(&models);
        let shares = models.iter().map(|model| self.models.share_of(model));
        let (loaded, unheld): (Vec<_>, Vec<_>) = shares.unzip();
        let models_max = self.models.settings.loaded_models();
        let shares = LoadedShares {
            budget_bytes: engine.shared_budget_bytes(),
            models_max,
            loaded: &loaded,
        };
        let room = |gone: &[usize]| {
            let room = shares.room_bytes(self.asked_bytes, gone);
            // Other programs may have taken some of a GPU's memory. What those that stay have claimed and do not hold yet is among
            // what is free of it.
            let Some(mut available) = engine.available_bytes() else {
                return room;
            };
            for (index, (share, unheld)) in loaded.iter().zip(&unheld).enumerate() {
                match gone.contains(&index) {
                    true => available += share.taken_bytes - unheld,
                    false => available = available.saturating_sub(*unheld),
                }
            }
            room.min(available)
        };
        let made = shares.make_room(&room, fit)?;
        let Some(MadeRoom { evicted, bytes }) = made else {
            return Err(EngineError::NoPlace { max: models_max });
        };
        let evicted = evicted.into_iter();
        self.chosen = evicted.map(|index| models[index].name.clone()).collect();
        for name in &self.chosen {
            let notice = format!("evicting the model {} to make room", name.name);
            tracing::info!(
                model = self.operation.description().model,
                notice,
                "while loading"
            );
            self.operation.notice(notice);
        }
        Ok(bytes)
    }

    fn make(&mut self, cancel: &AtomicBool) -> Result<bool, EngineError> {
        let _closed = ClosedModels::new(&self.models, &self.chosen);
        let mut has_told = false;
        // The load looks at the flag itself.
        while !self.chosen.is_empty() && !cancel.load(Ordering::Relaxed) {
            if self.is_unwanted() {
                // Nobody is evicted for those who left.
                if let Some(wanted) = &self.wanted {
                    wanted.abandon();
                }
                return Err(EngineError::LoadCancelled);
            }
            if !self.may_evict() {
                return Ok(false);
            }
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
        Ok(true)
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
fn drop_caches(models: &[ServingModel]) {
    let (tell, told) = mpsc::channel();
    let mut asked = 0;
    for engine in models.iter().filter_map(|model| model.engine.upgrade()) {
        let tell = tell.clone();
        // Nobody waits any more for one that took long.
        engine.drop_caches(move || {
            let _ = tell.send(());
        });
        asked += 1;
    }
    let until = Instant::now() + DROP_CACHES_TIMEOUT;
    for _ in 0..asked {
        let left = until.saturating_duration_since(Instant::now());
        if told.recv_timeout(left).is_err() {
            return;
        }
    }
}

impl Models {
    /// The models of other engines in the order in which they are evicted: those without requests first, and of these the one first
    /// that was used least recently.
    fn in_order_of_going(&self, engine: &Arc<Engine>) -> Vec<ServingModel> {
        let is_own = |model: &ServingModel| model.engine.ptr_eq(&Arc::downgrade(engine));
        let mut models = self.all_loaded();
        models.retain(|model| !is_own(model));
        models.sort_by_key(|model| (self.is_busy(model), self.uses.of(&model.name).last_use));
        models
    }

    /// A model's share of the budget, and how many bytes of it are claimed and not held yet.
    fn share_of(&self, model: &ServingModel) -> (LoadedShare, u64) {
        let engine = model.engine.upgrade();
        let (taken, budget, unheld) = engine.map_or((0, 0, 0), |engine| {
            let taken = engine.taken_bytes();
            let budget = engine.allowed_bytes(&engine.settings());
            // Asked for one after the other: passes go on meanwhile.
            (taken, budget, engine.unheld_bytes().min(taken))
        });
        let share = LoadedShare {
            taken_bytes: taken,
            budget_bytes: budget,
            may_go: self.may_be_evicted(model),
        };
        (share, unheld)
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
        let fell_asleep = self.lock().put_to_sleep(&model, engine.settings());
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
            if fell_asleep {
                self.lock().stays_awake(name);
            }
            return false;
        }
        self.forget_gone();
        tracing::info!(
            model = name.name,
            freed = units::bytes(before.saturating_sub(engine.memory_of_all().used_bytes)),
            "unloaded to make room"
        );
        true
    }

    /// Forgets models that their engines have let go, and ends engines that were started for models and have none.
    pub(crate) fn forget_gone(&self) {
        let (gone, unused) = {
            let mut known = self.lock();
            let loading = known.loading.as_ref().map(|loading| &loading.engine);
            let is_loading = |engine: &Arc<Engine>| {
                loading.is_some_and(|loading| loading.ptr_eq(&Arc::downgrade(engine)))
            };
            // Under the lock, so that no load is about to begin there.
            let engines = self.engines.upgrade();
            let unused = engines.map_or_else(Vec::new, |engines| {
                engines.take_unused(|engine| engine.model().is_some() || is_loading(engine))
            });
            (known.forget_gone(), unused)
        };
        for model in &gone {
            self.uses.set_loaded(&model.name, false);
        }
        if gone.is_empty() && unused.is_empty() {
            return;
        }
        unused.into_iter().for_each(Engines::end);
        // The records hold tokenizers. Freed outside the lock, for which calls wait.
        drop(gone);
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
        });
        true
    }

    /// A model that was put to sleep was not unloaded by that, as it was used again, or since it was unloaded already.
    pub(super) fn stays_awake(&mut self, name: &ModelName) {
        if self.find(name).is_some() {
            self.wake_up(name);
        }
    }

    /// Forgets that the next request loads a model again.
    pub(super) fn wake_up(&mut self, name: &ModelName) {
        self.asleep.retain(|asleep| !asleep.name.is_same(name));
    }
}
