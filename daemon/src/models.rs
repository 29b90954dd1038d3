//! The models that are loaded, the one that loads, the one that failed, those that sleep; and the embedded one.

mod load;
mod room;
mod serving;
mod unload;
mod uses;
mod wanted;

use std::{
    collections::VecDeque,
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
    wanted::WantedModel,
};
pub use self::{
    serving::{MeantModel, RestorePoint, ServingModel},
    unload::UnloadReason,
    uses::{ModelInUse, ModelUses, UseFigures},
    wanted::{Coming, ComingModel, WantedProgress},
};
use crate::{
    engines::Engines,
    failure::Failure,
    model_name::ModelName,
    operations::{ChangeNotifier, Operation, OperationDescription, Operations},
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
    /// Models that requests wait for, in the order in which they are loaded.
    wanted: VecDeque<Arc<WantedModel>>,
    /// Whether a task loads them.
    loads_wanted: bool,
}

/// The model being loaded, and the operation that loads it.
struct LoadingModel {
    name: ModelName,
    operation: Arc<Operation>,
    requester: Requester,
}

/// A model that the next request loads again.
#[derive(Debug, Clone, PartialEq)]
struct SleepingModel {
    name: ModelName,
    /// The settings that it had.
    settings: EngineSettings,
    is_pinned: bool,
}

impl Known {
    /// The loaded model of this name.
    fn find(&self, name: &ModelName) -> Option<&ServingModel> {
        let mut held = self.loaded.iter().filter(|model| model.is_held());
        held.find(|model| model.name.is_same(name))
    }

    /// The model that requests mean which name none, if it is loaded.
    fn present(&self) -> Option<&ServingModel> {
        self.find(self.present.as_ref()?)
    }

    fn sleeping(&self, name: &ModelName) -> Option<&SleepingModel> {
        self.asleep.iter().find(|asleep| asleep.name.is_same(name))
    }

    /// Forgets those that engines have let go.
    fn forget_gone(&mut self) -> Vec<ServingModel> {
        let loaded = std::mem::take(&mut self.loaded).into_iter();
        let (held, gone) = loaded.partition(ServingModel::is_held);
        self.loaded = held;
        gone
    }
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
        let mut held = known.loaded.iter().filter(|model| model.is_held());
        held.find(|model| model.name.name == name).cloned()
    }

    /// The name of the model that a request is for; `None` while nobody knows which it will be.
    #[must_use]
    pub fn name_of(&self, meant: &MeantModel) -> Option<ModelName> {
        if let MeantModel::Named(name) = meant {
            return Some(name.clone());
        }
        let known = self.lock();
        let present = known.present.as_ref();
        let is_there =
            |name: &&ModelName| known.find(name).is_some() || known.sleeping(name).is_some();
        let loading = known.loading.as_ref().map(|loading| &loading.name);
        present.filter(is_there).or(loading).cloned()
    }

    /// The loaded model that lies there. The line of those for whom nobody knows which it will be has that of the embedded one.
    #[must_use]
    pub fn in_line_for(&self, path: &Option<PathBuf>) -> Option<ServingModel> {
        let known = self.lock();
        let mut held = known.loaded.iter().filter(|model| model.is_held());
        held.find(|model| model.name.path == *path).cloned()
    }

    /// All loaded models, in the order in which they were loaded.
    #[must_use]
    pub fn all_loaded(&self) -> Vec<ServingModel> {
        let known = self.lock();
        let held = known.loaded.iter().filter(|model| model.is_held());
        held.cloned().collect()
    }

    /// The model that stands for all in pictures that show one: the present one, or while that is not loaded the one that was
    /// used last.
    #[must_use]
    pub fn shown(&self) -> Option<ServingModel> {
        let known = self.lock();
        self.shown_of(&known).cloned()
    }

    fn shown_of<'a>(&self, known: &'a Known) -> Option<&'a ServingModel> {
        let held = || known.loaded.iter().filter(|model| model.is_held());
        let last = || held().max_by_key(|model| self.uses.of(&model.name).last_use);
        known.present().or_else(last)
    }

    /// The name of the model that requests mean which name none.
    #[must_use]
    pub fn present_name(&self) -> Option<ModelName> {
        let known = self.lock();
        let loading = || Some(known.loading.as_ref()?.name.clone());
        known.present.clone().or_else(loading)
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

    /// Keeps a model while an operation works with it.
    pub(crate) fn keep_for(&self, model: &ServingModel, operation: &Arc<Operation>) {
        let (in_use, operation) = (self.uses.begin(&model.name), operation.clone());
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
        for model in known.loaded.iter().filter(|model| model.is_held()) {
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
        let loaded = known.loaded.iter().filter(|model| model.is_held());
        let loaded = loaded.map(|model| &model.name);
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
        let is_chosen = asked_by != Requester::Request;
        self.begin_load(request, base, (asked_by, is_chosen))
    }

    fn begin_load(
        self: &Arc<Self>,
        request: LoadRequest,
        base: EngineSettings,
        (asked_by, is_chosen): (Requester, bool),
    ) -> Result<Arc<Operation>, Failure> {
        let LoadRequest {
            name,
            requested: asked,
            pin,
        } = request;
        let engines = self.engines.upgrade().ok_or(Failure::EngineLost)?;
        let holds = self.settings.for_load(&name, &asked);
        let start = RestorePoint::new(asked, holds, self.settings.unremembered(&name, &asked));
        let card = engines.first().device().gpu();
        let card = card.map(|gpu| gpu.name().to_owned());
        let source = name.source();
        let cancel = Arc::new(AtomicBool::new(false));
        let settings = base.with(&holds.change().over(asked));
        let (mut report, operation, place) = {
            // Check, operation and `loading` under one lock, so that only one of two callers begins a load.
            let mut known = self.lock();
            if let Some(other) = &known.loading {
                let model = other.name.name.clone();
                return Err(Failure::LoadInProgress { model });
            }
            let place = self.place_for(&known, &engines, &name, asked_by)?;
            let description = OperationDescription {
                kind: v1::OperationKind::Load,
                model: name.name.clone(),
                ..Default::default()
            };
            let cancels = cancel.clone();
            // Relaxed: the flag guards no other memory.
            let cancels = Box::new(move || cancels.store(true, Ordering::Relaxed));
            let running = self.operations.begin(description, Some(cancels))?;
            let operation = running.operation();
            known.loading = Some(LoadingModel {
                name: name.clone(),
                operation: operation.clone(),
                requester: asked_by,
            });
            known.failed = None;
            let about = LoadDescription {
                name,
                requester: asked_by,
                engine: Arc::downgrade(place.engine()),
                start,
                is_pinned: pin,
                is_chosen,
                gpu: card,
            };
            let report = LoadReporter::new(self.clone(), about, running);
            (report, operation, place)
        };
        if let Some(problem) = self.settings.problem() {
            operation.notice(problem);
        }
        let report = Box::new(move |event| report.take(event));
        match place {
            LoadPlace::Own(engine) => engine.load(source, settings, cancel, report),
            LoadPlace::Beside(engine) => {
                let asked_bytes = settings.budget.bytes();
                let asked_bytes = asked_bytes.unwrap_or_else(|| engine.budget_default());
                let room = RoomForLoad::new(self.clone(), &engine, asked_bytes, operation.clone());
                engine.load_beside(source, settings, cancel, report, Box::new(room));
            }
        }
        Ok(operation)
    }

    /// Where a model is loaded.
    fn place_for(
        &self,
        known: &Known,
        engines: &Engines,
        name: &ModelName,
        asked_by: Requester,
    ) -> Result<LoadPlace, Failure> {
        let engine = |model: &ServingModel| model.engine.upgrade();
        if let Some(engine) = known.find(name).and_then(engine) {
            return Ok(LoadPlace::Own(engine));
        }
        let mut held = known.loaded.iter().filter(|model| model.is_held());
        match held.next().and_then(engine) {
            None => Ok(LoadPlace::Own(engines.free()?)),
            // As much as serves goes on serving until the new one is whole; a request waits until the present one is idle.
            Some(engine)
                if self.settings.loaded_models() == 1 && asked_by != Requester::Request =>
            {
                Ok(LoadPlace::Own(engine))
            }
            Some(_) => Ok(LoadPlace::Beside(engines.free()?)),
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
        });
        load
    }

    /// Ends the load of [`Models::load_by_hand`].
    #[cfg(test)]
    pub(crate) fn end_by_hand(&self, load: &crate::operations::RunningOperation) {
        self.lock().loading = None;
        let result = v1::LoadResult::default();
        load.finish(Ok(crate::operations::Outcome::Load(result)));
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

/// Where a model is loaded.
enum LoadPlace {
    /// In an engine that needs nobody else's room: its own model goes, if it has one.
    Own(Arc<Engine>),
    /// In an engine without a model, for which others may have to go.
    Beside(Arc<Engine>),
}

impl LoadPlace {
    fn engine(&self) -> &Arc<Engine> {
        let (Self::Own(engine) | Self::Beside(engine)) = self;
        engine
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
mod tests {
    use std::path::Path;

    use sluice_engine::EngineOptions;

    use super::*;
    use crate::model_name::EMBEDDED_NAME;

    fn with(engines: Weak<Engines>) -> Models {
        let changes = ChangeNotifier::default();
        let operations = Arc::new(Operations::new(changes.clone()));
        Models::new(engines, Arc::default(), operations, changes)
    }

    fn without_engine() -> Models {
        with(Weak::new())
    }

    fn engines() -> Arc<Engines> {
        let options = EngineOptions {
            threads: 1,
            ..EngineOptions::default()
        };
        Arc::new(Engines::new(Arc::new(Engine::start(options).unwrap())))
    }

    async fn over(coming: ComingModel) -> String {
        let Coming::Wanted(wanted) = coming.coming else {
            panic!("it is wanted")
        };
        let mut progress = wanted.subscribe();
        let ended = progress.wait_for(|now| matches!(now, WantedProgress::Ended(_)));
        match &*ended.await.unwrap() {
            WantedProgress::Ended(Err(reason)) => reason.clone(),
            _ => panic!("it fails"),
        }
    }

    fn asleep(models: &Models) -> Vec<String> {
        let known = models.lock();
        let asleep = known.asleep.iter();
        asleep.map(|asleep| asleep.name.name.clone()).collect()
    }

    #[test]
    fn while_one_loads_callers_are_told_to_come_back() {
        let models = without_engine();
        let load = models.load_by_hand(ModelName::embedded());
        assert!(matches!(
            models.serving(),
            Err(Failure::ModelLoading { .. })
        ));
        let present = models.present().unwrap();
        assert_eq!(present.state(), v1::ModelState::Loading);
        assert_eq!(present.operation_id, Some(load.id()));
        assert_eq!(models.list().len(), 1);
    }

    #[tokio::test]
    async fn a_model_that_could_not_be_had_back_is_tried_again() {
        let engines = engines();
        let models = Arc::new(with(Arc::downgrade(&engines)));
        let name = ModelName::at(Path::new("/nowhere/m"));
        {
            let mut known = models.lock();
            known.present = Some(name.clone());
            known.asleep.push(SleepingModel {
                name: name.clone(),
                settings: EngineSettings::default(),
                is_pinned: false,
            });
        }
        let _request = models.uses().stand_in_line(&name);
        for _ in 0..2 {
            let coming = models.coming(&MeantModel::Present).unwrap();
            over(coming.expect("it sleeps")).await;
            assert!(models.is_asleep());
        }
        let list = models.list();
        let shown: Vec<_> = list.iter().filter(|model| model.name == "m").collect();
        assert!(matches!(&shown[..], [model] if model.state() == v1::ModelState::Failed));
        // Another that fails takes nothing from it.
        let other = LoadRequest::of(ModelName::at(Path::new("/nowhere/other")));
        let load = models.load(other, Requester::Client).unwrap();
        assert!(load.ended().await.error().is_some());
        assert_eq!(asleep(&models), ["m"]);
        // Who wants its memory ends that.
        models.unload(None, UnloadReason::Requested).await.unwrap();
        assert!(!models.is_asleep());
        assert!(matches!(
            models.serving(),
            Err(Failure::Engine(EngineError::NoModel))
        ));
    }

    #[tokio::test]
    async fn wanted_models_are_loaded_in_the_order_in_which_they_were_wanted() {
        let engines = engines();
        let models = Arc::new(with(Arc::downgrade(&engines)));
        let names = ["one", "two"].map(|name| ModelName::at(&Path::new("/nowhere").join(name)));
        let _requests = names.each_ref().map(|name| models.uses().begin(name));
        let coming = |name: &ModelName| {
            let meant = MeantModel::Named(name.clone());
            models.coming(&meant).unwrap().expect("it is wanted")
        };
        let [one, two] = names.each_ref().map(coming);
        // Who wants the same waits for the same.
        let again = coming(&names[0]);
        assert_eq!(models.lock().wanted.len(), 2);
        let one = over(one).await;
        assert_eq!(over(again).await, one);
        over(two).await;
        let loads: Vec<_> = (models.operations.all().iter())
            .map(|load| load.description().model.clone())
            .collect();
        assert_eq!(loads, ["one", "two"]);
        // The reason is for those who asked; the list has nothing of it.
        assert_eq!(models.list().len(), 1);
    }

    #[tokio::test]
    async fn nothing_is_loaded_that_nobody_waits_for_any_more() {
        let engines = engines();
        let models = Arc::new(with(Arc::downgrade(&engines)));
        let name = ModelName::at(Path::new("/nowhere/m"));
        let request = models.uses().begin(&name);
        let coming = models.coming(&MeantModel::Named(name)).unwrap();
        drop(request);
        let reason = over(coming.expect("it is wanted")).await;
        assert_eq!(reason, "nobody waits for it any more");
        assert!(models.operations.all().is_empty());
    }

    #[test]
    fn without_a_model_the_embedded_one_is_available() {
        let models = without_engine();
        let list = models.list();
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].name, EMBEDDED_NAME);
        assert_eq!(list[0].state(), v1::ModelState::Available);
        assert_eq!(list[0].family, "llada");
        assert_eq!(list[0].parameters, Some(3_934_976));
        assert!(list[0].disk_bytes > 7_000_000);
        assert!(models.present().is_none());
        assert!(models.serving().is_err());
    }
}
