//! The models that are loaded, the one that loads, the one that failed, those that sleep; and the embedded one.

mod known;
mod load;
mod room;
mod serving;
mod unload;
mod uses;
mod wanted;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use sluice_engine::{Engine, EngineError, PlanOptions, PlanSettings as EngineSettings};
use sluice_proto::v1;

use self::{
    load::{LoadDescription, LoadReporter},
    room::RoomForLoad,
    wanted::WantedModels,
};
pub use self::{
    serving::{MeantModel, RestorePoint, ServingModel},
    unload::UnloadReason,
    uses::{ModelInUse, ModelUses, UseFigures},
    wanted::{Pending, PendingModel, WantedModel, WantedProgress},
};
use crate::{
    engines::Engines,
    failure::Failure,
    model_name::ModelName,
    operations::{ChangeNotifier, Operation, OperationDescription, Operations, Outcome},
    settings::ModelSettings,
};

/// What to load, and with which settings from then on.
#[derive(Debug, Clone)]
pub struct LoadRequest {
    /// The model to load.
    pub name: ModelName,
    /// Requested settings; [`ModelSettings`] say what they leave out.
    pub requested: PlanOptions,
    /// Whether it is to stay until it is unloaded by name.
    pub pin: bool,
}

impl LoadRequest {
    /// A load without requested settings.
    #[must_use]
    pub fn of(name: ModelName) -> Self {
        Self {
            name,
            requested: PlanOptions::default(),
            pin: false,
        }
    }
}

/// Who asked for a load, and so who hears of its failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requester {
    /// The configuration: nobody reads an answer, so a failure is logged as an error.
    Configuration,
    /// A client, which gets the failure itself.
    Client,
    /// A request for a model that is not loaded; others like it wait with it.
    Request,
}

/// The models that are loaded, load, failed or sleep.
pub struct Models {
    /// Weak, since the engines' threads hold reporters that own this.
    engines: Weak<Engines>,
    known: Mutex<Known>,
    uses: Arc<ModelUses>,
    /// Settings that models are loaded with.
    settings: Arc<ModelSettings>,
    operations: Arc<Operations>,
    changes: ChangeNotifier,
    /// Held by whoever waits for an engine to unload.
    unloading: Arc<tokio::sync::Mutex<()>>,
}

/// What is known of models, under one lock.
#[derive(Default)]
struct Known {
    /// In the order in which they were loaded. An engine may have let one go already.
    loaded: Vec<ServingModel>,
    loading: Option<LoadingModel>,
    failed: Option<(ModelName, String)>,
    /// Unloaded as idle, or to make room; the next request loads it again.
    asleep: Vec<SleepingModel>,
    /// The one that requests mean which name none.
    present: Option<ModelName>,
    /// Models that requests wait for.
    wanted: WantedModels,
}

/// The model being loaded, and the operation that loads it.
struct LoadingModel {
    name: ModelName,
    operation: Arc<Operation>,
    requester: Requester,
    /// The engine that loads it.
    engine: Weak<Engine>,
}

/// A model that the next request loads again.
#[derive(Debug, Clone, PartialEq)]
struct SleepingModel {
    name: ModelName,
    /// The settings that it had.
    settings: EngineSettings,
}

/// Why a model is loaded.
struct LoadCause {
    requester: Requester,
    /// Whether somebody said that it is to be loaded, and not only a request.
    is_chosen: bool,
    /// What requests wait for, where they ask for the load.
    wanted: Option<Arc<WantedModel>>,
}

impl Models {
    /// Without any model.
    #[must_use]
    pub fn new(
        engines: Weak<Engines>,
        settings: Arc<ModelSettings>,
        operations: Arc<Operations>,
        changes: ChangeNotifier,
    ) -> Self {
        Self {
            engines,
            known: Mutex::default(),
            uses: Arc::new(ModelUses::new(changes.clone())),
            settings,
            operations,
            changes,
            unloading: Arc::default(),
        }
    }

    /// The uses of all models.
    #[must_use]
    pub fn uses(&self) -> &Arc<ModelUses> {
        &self.uses
    }

    /// The model to serve with where none is named.
    ///
    /// # Errors
    /// Why there is none.
    pub fn serving(&self) -> Result<ServingModel, Failure> {
        let known = self.lock();
        if let Some(serving) = known.present() {
            return Ok(serving.clone());
        }
        if let Some(loading) = &known.loading {
            let model = loading.name.name.clone();
            return Err(Failure::ModelLoading { model });
        }
        if let Some((name, reason)) = &known.failed {
            return Err(Failure::ModelFailed {
                model: name.name.clone(),
                reason: reason.clone(),
            });
        }
        Err(EngineError::NoModel.into())
    }

    /// The model to serve a request with.
    ///
    /// # Errors
    /// Why there is none, or that it is not loaded.
    pub fn serving_as(&self, meant: &MeantModel) -> Result<ServingModel, Failure> {
        let MeantModel::Named(name) = meant else {
            return self.serving();
        };
        let serving = self.lock().find(name).cloned();
        serving.ok_or_else(|| Failure::ModelNotLoaded {
            model: name.name.clone(),
        })
    }

    /// The loaded model that somebody calls so.
    #[must_use]
    pub fn loaded_as(&self, name: &str) -> Option<ServingModel> {
        let known = self.lock();
        known.held().find(|model| model.name.name == name).cloned()
    }

    /// The name of the model that a request is for; `None` while nobody knows which it will be.
    #[must_use]
    pub fn name_of(&self, meant: &MeantModel) -> Option<ModelName> {
        if let MeantModel::Named(name) = meant {
            return Some(name.clone());
        }
        let known = self.lock();
        let present = known.present.as_ref();
        let loading = known.loading.as_ref().map(|loading| &loading.name);
        present.filter(|name| known.has(name)).or(loading).cloned()
    }

    /// The loaded model that lies there. The line of those for whom nobody knows which it will be has that of the embedded one.
    #[must_use]
    pub fn in_line_for(&self, path: &Option<PathBuf>) -> Option<ServingModel> {
        let known = self.lock();
        known.held().find(|model| model.name.path == *path).cloned()
    }

    /// All loaded models, in the order in which they were loaded.
    #[must_use]
    pub fn all_loaded(&self) -> Vec<ServingModel> {
        self.lock().held().cloned().collect()
    }

    /// The model that stands for all in pictures that show one: the present one, or while that is not loaded the one that was
    /// used last.
    #[must_use]
    pub fn shown(&self) -> Option<ServingModel> {
        let known = self.lock();
        self.shown_of(&known).cloned()
    }

    fn shown_of<'a>(&self, known: &'a Known) -> Option<&'a ServingModel> {
        let last_use = |model: &&ServingModel| self.uses.of(&model.name).last_use;
        let last = || known.held().max_by_key(last_use);
        known.present().or_else(last)
    }

    /// Whether a model stays until it is unloaded by name.
    #[must_use]
    pub fn is_pinned(&self, model: &ServingModel) -> bool {
        model.is_pinned || self.settings.table(&model.name).pinned
    }

    /// Whether a change, a request or a job works with it.
    #[must_use]
    pub fn is_busy(&self, model: &ServingModel) -> bool {
        !self.uses.is_idle(&model.name) || model.switch_target.get().is_some()
    }

    /// Whether a model may be unloaded for another one, once its requests have ended. A job may take hours, for which nobody waits.
    fn may_be_evicted(&self, model: &ServingModel) -> bool {
        !self.is_pinned(model) && self.uses.of(&model.name).jobs == 0
    }

    /// The names of loaded models beside the one that an operation is for, of which nobody wants anything now.
    #[must_use]
    pub fn unused_beside(&self, operation: &Operation) -> Vec<String> {
        let own = operation.model();
        let loaded = self.all_loaded().into_iter();
        let unused = loaded.filter(|model| model.name.name != own && !self.is_busy(model));
        unused.map(|model| model.name.name).collect()
    }

    /// Keeps a model until an operation with it ends.
    pub(crate) fn keep_for(operation: &Arc<Operation>, in_use: ModelInUse) {
        let operation = operation.clone();
        tokio::spawn(async move {
            operation.ended().await;
            drop(in_use);
        });
    }

    /// All that can be said of models: the present one first, the embedded one always.
    #[must_use]
    pub fn list(&self) -> Vec<v1::Model> {
        let known = self.lock();
        let mut list: Vec<_> = known
            .present()
            .map(ServingModel::to_wire)
            .into_iter()
            .collect();
        let is_listed = |list: &[v1::Model], name: &ModelName| {
            let same =
                |model: &v1::Model| name.is_of(model) && model.state() != v1::ModelState::Failed;
            list.iter().any(same)
        };
        for model in known.held() {
            if !is_listed(&list, &model.name) {
                list.push(model.to_wire());
            }
        }
        list.extend(known.loading.iter().map(LoadingModel::to_wire));
        list.extend(known.failed.iter().map(failed_to_wire));
        let failed = known.failed.as_ref().map(|(name, _)| name);
        for asleep in &known.asleep {
            // A sleeping model whose load failed is shown once, with the reason.
            let has_failed = failed.is_some_and(|failed| failed.is_same(&asleep.name));
            if !has_failed && !is_listed(&list, &asleep.name) {
                list.push(asleep.to_wire());
            }
        }
        if !list.iter().any(|model| model.is_demonstration) {
            list.push(ModelName::embedded().to_wire(v1::ModelState::Available));
        }
        list
    }

    /// Where those lie that are loaded, load or sleep until a request.
    #[must_use]
    pub fn paths_in_use(&self) -> Vec<PathBuf> {
        let names = self.names_in_use().into_iter();
        names.filter_map(|name| name.path).collect()
    }

    /// Those that are loaded, load or sleep until a request.
    #[must_use]
    pub fn names_in_use(&self) -> Vec<ModelName> {
        let known = self.lock();
        let loaded = known.held().map(|model| &model.name);
        let loading = known.loading.as_ref().map(|loading| &loading.name);
        let asleep = known.asleep.iter().map(|asleep| &asleep.name);
        loaded.chain(loading).chain(asleep).cloned().collect()
    }

    /// The model that matters most: the one that is shown, else the loading, the failed or the sleeping one. `None` without any.
    #[must_use]
    pub fn present(&self) -> Option<v1::Model> {
        let known = self.lock();
        let asleep = || {
            let present = known.present.as_ref();
            let present = present.and_then(|name| known.sleeping(name));
            present.or_else(|| known.asleep.last())
        };
        self.shown_of(&known)
            .map(ServingModel::to_wire)
            .or_else(|| known.loading.as_ref().map(LoadingModel::to_wire))
            .or_else(|| known.failed.as_ref().map(failed_to_wire))
            .or_else(|| asleep().map(SleepingModel::to_wire))
    }

    /// The settings that a load of a model begins with, before what holds for it.
    #[must_use]
    pub fn base_settings(&self) -> EngineSettings {
        let Some(engines) = self.engines.upgrade() else {
            return EngineSettings::default();
        };
        // One that takes another's place goes on with what was in force there.
        let before = (self.settings.loaded_models() == 1).then(|| self.shown());
        let engine = before.flatten().and_then(|model| model.engine.upgrade());
        match (engine, self.settings.loaded_models()) {
            (Some(engine), _) => engine.settings(),
            (None, 1) => engines.first().settings(),
            (None, _) => engines.first().start_settings(),
        }
    }

    /// Begins to load.
    ///
    /// # Errors
    /// When another load is under way, or the daemon is about to end.
    pub fn load(
        self: &Arc<Self>,
        request: LoadRequest,
        asked_by: Requester,
    ) -> Result<Arc<Operation>, Failure> {
        let base = self.base_settings();
        let cause = LoadCause {
            requester: asked_by,
            is_chosen: asked_by != Requester::Request,
            wanted: None,
        };
        self.begin_load(request, base, cause)
    }

    fn begin_load(
        self: &Arc<Self>,
        request: LoadRequest,
        base: EngineSettings,
        cause: LoadCause,
    ) -> Result<Arc<Operation>, Failure> {
        let LoadCause {
            requester,
            is_chosen,
            wanted,
        } = cause;
        let LoadRequest {
            name,
            requested: asked,
            pin,
        } = request;
        let engines = self.engines.upgrade().ok_or(Failure::EngineLost)?;
        let name = self.lock().own_name(name);
        let holds = self.settings.for_load(&name, &asked);
        let start = RestorePoint::new(asked, holds, self.settings.unremembered(&name, &asked));
        let card = engines.first().device().gpu();
        let card = card.map(|gpu| gpu.name().to_owned());
        let source = name.source();
        let cancel = Arc::new(AtomicBool::new(false));
        let settings = base.with(&holds.change().over(asked));
        let (mut report, operation, engine) = {
            // Check, operation and `loading` under one lock, so that only one of two callers begins a load.
            let mut known = self.lock();
            if let Some(other) = &known.loading {
                let model = other.name.name.clone();
                return Err(Failure::LoadInProgress { model });
            }
            let description = OperationDescription {
                kind: v1::OperationKind::Load,
                model: name.name.clone(),
                ..Default::default()
            };
            if wanted.is_some() && !known.wanted.has(&name) {
                let model = name.name;
                return Err(Failure::ModelUnloaded { model });
            }
            if pin && asked == PlanOptions::default() && known.find(&name).is_some() {
                let running = self.operations.begin(description, None)?;
                let operation = running.operation();
                let result = known.pin(&name);
                drop(known);
                running.finish(Ok(Outcome::Load(result)));
                return Ok(operation);
            }
            let engine = self.engine_for(&known, &engines, &name, requester)?;
            let cancels = cancel.clone();
            // Relaxed: the flag guards no other memory.
            let cancels = Box::new(move || cancels.store(true, Ordering::Relaxed));
            let running = self.operations.begin(description, Some(cancels))?;
            let operation = running.operation();
            known.loading = Some(LoadingModel {
                name: name.clone(),
                operation: operation.clone(),
                requester,
                engine: Arc::downgrade(&engine),
            });
            if requester != Requester::Request {
                known.failed = None;
            }
            let about = LoadDescription {
                name,
                requester,
                engine: Arc::downgrade(&engine),
                start,
                is_pinned: pin,
                is_chosen,
                gpu: card,
            };
            let report = LoadReporter::new(self.clone(), about, running);
            (report, operation, engine)
        };
        if let Some(problem) = self.settings.problem() {
            operation.notice(problem);
        }
        let report = Box::new(move |event| report.take(event));
        let asked_bytes = engine.allowed_bytes(&settings);
        let room = RoomForLoad::new(
            self.clone(),
            &engine,
            asked_bytes,
            operation.clone(),
            wanted,
        );
        engine.load_beside(source, settings, cancel, report, Box::new(room));
        Ok(operation)
    }

    /// The engine that loads a model: its own, whose model goes, or another one without a model.
    fn engine_for(
        &self,
        known: &Known,
        engines: &Engines,
        name: &ModelName,
        requester: Requester,
    ) -> Result<Arc<Engine>, Failure> {
        let engine = |model: &ServingModel| model.engine.upgrade();
        if let Some(engine) = known.find(name).and_then(engine) {
            return Ok(engine);
        }
        let max = self.settings.loaded_models();
        match known.held().next() {
            // As much as serves goes on serving until the new one is whole; a request waits until the present one is idle.
            Some(model) if max == 1 && requester != Requester::Request => {
                match self.is_pinned(model) {
                    true => Err(EngineError::NoPlace { max }.into()),
                    false => model.engine(),
                }
            }
            _ => Ok(engines.free()?),
        }
    }

    /// A load that a test controls and that no engine knows of.
    #[cfg(test)]
    pub(crate) fn load_by_hand(&self, name: ModelName) -> crate::operations::RunningOperation {
        let description = OperationDescription {
            kind: v1::OperationKind::Load,
            model: name.name.clone(),
            ..Default::default()
        };
        let load = self.operations.begin(description, None);
        let load = load.expect("the daemon of a test is not about to end");
        self.lock().loading = Some(LoadingModel {
            name,
            operation: load.operation(),
            requester: Requester::Client,
            engine: Weak::new(),
        });
        load
    }

    /// Ends the load of [`Models::load_by_hand`].
    #[cfg(test)]
    pub(crate) fn end_by_hand(&self, load: &crate::operations::RunningOperation) {
        self.lock().loading = None;
        let result = v1::LoadResult::default();
        load.finish(Ok(Outcome::Load(result)));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl LoadingModel {
    fn to_wire(&self) -> v1::Model {
        v1::Model {
            operation_id: Some(self.operation.id()),
            ..self.name.to_wire(v1::ModelState::Loading)
        }
    }
}

impl SleepingModel {
    fn to_wire(&self) -> v1::Model {
        self.name.to_wire(v1::ModelState::Asleep)
    }
}

fn failed_to_wire((name, reason): &(ModelName, String)) -> v1::Model {
    v1::Model {
        error: reason.clone(),
        ..name.to_wire(v1::ModelState::Failed)
    }
}

#[cfg(test)]
mod tests;
