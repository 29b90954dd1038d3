//! The model that serves, the one that loads, the one that failed; and the embedded one.

mod load;
mod unload;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use sluice_checkpoint::family::Family;
use sluice_engine::{
    Engine, EngineError, LoadedModel, PlanOptions, PlanSettings as EngineSettings,
};
use sluice_proto::v1;
use sluice_tokenizer::Tokenizer;

use self::load::{LoadDescription, LoadReporter};
pub use self::unload::UnloadReason;
use crate::{
    failure::Failure,
    model_name::{ModelName, embedded},
    operations::{ChangeNotifier, Operation, OperationDescription, Operations},
    settings::{LoadSettings, ModelSettings},
    translate,
};

/// A model that requests can be made for.
#[derive(Clone)]
pub struct ServingModel {
    /// Name and path of the model.
    pub name: ModelName,
    /// What the engine holds.
    pub loaded: Arc<LoadedModel>,
    /// The settings that `restore` leads to.
    pub restore_point: RestorePoint,
}

/// The model that a request for text is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeantModel {
    /// Whichever is the present one.
    Present,
    /// The one that the request names.
    Named(ModelName),
}

/// Where `restore` leads: to what the model was loaded with, but for what was only remembered from before.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RestorePoint {
    /// Settings that the load's request named.
    pub requested: PlanOptions,
    /// The settings that came from memory, as they would have been without it.
    unremembered: PlanOptions,
}

impl RestorePoint {
    fn new(asked: PlanOptions, holds: LoadSettings, unremembered: LoadSettings) -> Self {
        let (holds, without) = (holds.change(), unremembered.change());
        Self {
            requested: asked,
            unremembered: PlanOptions {
                level: without.level.filter(|_| holds.level != without.level),
                budget: without.budget.filter(|_| holds.budget != without.budget),
                ..PlanOptions::default()
            },
        }
    }

    /// What the model was loaded with, but for what was remembered.
    #[must_use]
    pub fn restored(self, loaded: EngineSettings) -> EngineSettings {
        loaded.with(&self.unremembered)
    }
}

impl ServingModel {
    /// The tokenizer of the model.
    ///
    /// # Errors
    /// When the model has none.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>, Failure> {
        self.loaded
            .tokenizer
            .as_ref()
            .ok_or_else(|| Failure::NoTokenizer {
                model: self.name.name.clone(),
            })
    }

    /// Whether it takes part in conversations: it has a chat template, or is LLaDA, whose template is known and was published
    /// after some of its checkpoints.
    #[must_use]
    pub fn can_chat(&self) -> bool {
        let text = self.loaded.tokenizer.as_ref();
        let is_llada = self.loaded.info.family == Family::Llada.name();
        text.is_some_and(|text| is_llada || text.has_chat_template())
    }

    fn to_wire(&self) -> v1::Model {
        let info = &self.loaded.info;
        v1::Model {
            shape: Some(v1::ModelShape {
                family: info.family.to_owned(),
                parameters: info.parameters,
                weight_bytes: info.weight_bytes,
                formats: (info.formats.iter().copied())
                    .map(translate::format::weight_format)
                    .collect(),
                layers: info.layers as u32,
                hidden_size: info.hidden_size as u32,
                attention_heads: info.attention_heads as u32,
                kv_heads: info.kv_heads as u32,
                intermediate_size: info.intermediate_size as u32,
                vocab_size: info.vocab_size as u32,
                padded_vocab_size: info.padded_vocab_size as u32,
                context_length: info.context_length as u32,
                has_tokenizer: self.loaded.tokenizer.is_some(),
                takes_tools: (self.loaded.tokenizer.as_ref())
                    .is_some_and(|tokenizer| tokenizer.takes_tools()),
                mask_token_id: info.mask.map(|mask| mask.token_id),
                eos_token_ids: info.eos_token_ids.clone(),
                has_prior: info.has_prior,
                bos_token_id: info.bos_token_id,
                kind: match info.mask {
                    Some(_) => v1::ModelKind::MaskedDiffusion.into(),
                    None => v1::ModelKind::Autoregressive.into(),
                },
            }),
            ..self.name.to_wire(v1::ModelState::Ready)
        }
    }
}

/// What to load, and with which settings from then on.
#[derive(Debug, Clone)]
pub struct LoadRequest {
    /// The model to load.
    pub name: ModelName,
    /// Requested settings; [`ModelSettings`] say what they leave out.
    pub requested: PlanOptions,
}

impl LoadRequest {
    /// A load without requested settings.
    #[must_use]
    pub fn of(name: ModelName) -> Self {
        Self {
            name,
            requested: PlanOptions::default(),
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
    /// A request for a model that was let go; others like it wait with it.
    Request,
}

/// The models that serve, load, failed or sleep.
pub struct Models {
    /// Asked whether it still holds the serving model. Weak, since the engine's thread holds reporters that own this.
    engine: Weak<Engine>,
    known: Mutex<Known>,
    /// Settings that models are loaded with.
    settings: Arc<ModelSettings>,
    operations: Arc<Operations>,
    changes: ChangeNotifier,
    /// Held by whoever waits for the engine to unload.
    unloading: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Known {
    serving: Option<ServingModel>,
    /// The model being loaded, and the operation that loads it.
    loading: Option<(ModelName, Arc<Operation>)>,
    /// Whether requests wait for it, rather than being refused meanwhile.
    is_waking: bool,
    failed: Option<(ModelName, String)>,
    /// Unloaded as idle; the next request loads it again.
    asleep: Option<ModelName>,
}

/// A model that is being loaded.
pub struct ComingModel {
    /// The model's name, for messages.
    pub model: String,
    /// The operation that loads it.
    pub operation: Arc<Operation>,
}

impl Known {
    fn coming(&self) -> Option<ComingModel> {
        let (name, operation) = self.loading.as_ref()?;
        Some(ComingModel {
            model: name.name.clone(),
            operation: operation.clone(),
        })
    }
}

impl Models {
    /// Without any model.
    #[must_use]
    pub fn new(
        engine: Weak<Engine>,
        settings: Arc<ModelSettings>,
        operations: Arc<Operations>,
        changes: ChangeNotifier,
    ) -> Self {
        Self {
            engine,
            known: Mutex::default(),
            settings,
            operations,
            changes,
            unloading: Arc::default(),
        }
    }

    /// The model to serve with.
    ///
    /// # Errors
    /// Why there is none.
    pub fn serving(&self) -> Result<ServingModel, Failure> {
        let known = self.lock();
        if let Some(serving) = self.serving_of(&known) {
            return Ok(serving.clone());
        }
        if let Some((name, _)) = &known.loading {
            let model = name.name.clone();
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
    /// Why there is none, or that it is not the one that the request names.
    pub fn serving_as(&self, meant: &MeantModel) -> Result<ServingModel, Failure> {
        let MeantModel::Named(name) = meant else {
            return self.serving();
        };
        let serving = self.serving()?;
        match serving.name.is_same(name) {
            true => Ok(serving),
            false => Err(Failure::ModelNotLoaded {
                model: name.name.clone(),
            }),
        }
    }

    /// All that can be said of models: the serving one first, the embedded one always.
    #[must_use]
    pub fn list(&self) -> Vec<v1::Model> {
        let known = self.lock();
        let serving = self.serving_of(&known).into_iter();
        let mut list: Vec<_> = serving.map(ServingModel::to_wire).collect();
        list.extend(known.loading.iter().map(loading_to_wire));
        list.extend(known.failed.iter().map(failed_to_wire));
        let is_away = self.serving_of(&known).is_none();
        let failed = known.failed.as_ref().map(|(name, _)| name);
        // A sleeping model whose load failed is shown once, with the reason.
        let asleep = known.asleep.iter();
        let asleep = asleep.filter(|name| is_away && failed != Some(*name));
        list.extend(asleep.map(asleep_to_wire));
        if !list.iter().any(|model| model.is_demonstration) {
            list.push(ModelName::embedded().to_wire(v1::ModelState::Available));
        }
        list
    }

    /// Where those lie that serve, load or sleep until a request.
    #[must_use]
    pub fn paths_in_use(&self) -> Vec<PathBuf> {
        let known = self.lock();
        let serving = self.serving_of(&known).map(|serving| &serving.name);
        let loading = known.loading.as_ref().map(|(name, _)| name);
        let names = serving.into_iter().chain(loading).chain(&known.asleep);
        names.filter_map(|name| name.path.clone()).collect()
    }

    /// The model that matters most: the serving one, else the loading, the failed or the sleeping one. `None` without any.
    #[must_use]
    pub fn present(&self) -> Option<v1::Model> {
        let known = self.lock();
        let serving = self.serving_of(&known).map(ServingModel::to_wire);
        serving
            .or_else(|| known.loading.as_ref().map(loading_to_wire))
            .or_else(|| known.failed.as_ref().map(failed_to_wire))
            .or_else(|| known.asleep.as_ref().map(asleep_to_wire))
    }

    /// What serves, unless the engine has let it go: to make room for another, or because a change of its weights
    /// failed half-way.
    fn serving_of<'a>(&self, known: &'a Known) -> Option<&'a ServingModel> {
        let serving = known.serving.as_ref()?;
        let Some(engine) = self.engine.upgrade() else {
            return Some(serving);
        };
        // The engine's word counts: it unloads on its own thread before this module hears of it.
        let held = engine.model()?;
        (held.id == serving.loaded.id).then_some(serving)
    }

    /// Begins to load.
    ///
    /// # Errors
    /// When another load is under way, or the daemon is about to end.
    pub fn load(
        self: &Arc<Self>,
        engine: &Engine,
        request: LoadRequest,
        asked_by: Requester,
    ) -> Result<Arc<Operation>, Failure> {
        let LoadRequest {
            name,
            requested: asked,
        } = request;
        let holds = self.settings.for_load(&name, &asked);
        let start = RestorePoint::new(asked, holds, self.settings.unremembered(&name, &asked));
        let card = engine.device().gpu().map(|gpu| gpu.name().to_owned());
        let source = name.source();
        let cancel = Arc::new(AtomicBool::new(false));
        let (mut report, operation) = {
            // Check, operation and `loading` under one lock, so that only one of two callers begins a load.
            let mut known = self.lock();
            if let Some((other, _)) = &known.loading {
                let model = other.name.clone();
                return Err(Failure::LoadInProgress { model });
            }
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
            known.loading = Some((name.clone(), operation.clone()));
            known.failed = None;
            let asleep = known.asleep.take();
            known.is_waking = asked_by == Requester::Request;
            let about = LoadDescription {
                name,
                requester: asked_by,
                asleep,
                start,
                gpu: card,
            };
            let report = LoadReporter::new(self.clone(), about, running);
            (report, operation)
        };
        if let Some(problem) = self.settings.problem() {
            operation.notice(problem);
        }
        let settings = engine.settings().with(&holds.change().over(asked));
        let report = Box::new(move |event| report.take(event));
        engine.load(source, settings, cancel, report);
        Ok(operation)
    }

    /// A load that a test controls and that the engine does not know of.
    #[cfg(test)]
    pub(crate) fn load_by_hand(&self, name: ModelName) -> crate::operations::RunningOperation {
        let description = OperationDescription {
            kind: v1::OperationKind::Load,
            model: name.name.clone(),
            ..Default::default()
        };
        let load = self.operations.begin(description, None);
        let load = load.expect("the daemon of a test is not about to end");
        self.lock().loading = Some((name, load.operation()));
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

fn asleep_to_wire(name: &ModelName) -> v1::Model {
    name.to_wire(v1::ModelState::Asleep)
}

fn loading_to_wire((name, operation): &(ModelName, Arc<Operation>)) -> v1::Model {
    v1::Model {
        operation_id: Some(operation.id()),
        ..name.to_wire(v1::ModelState::Loading)
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

    use super::*;
    use crate::model_name::EMBEDDED_NAME;

    fn with(engine: Weak<Engine>) -> Models {
        let changes = ChangeNotifier::default();
        let operations = Arc::new(Operations::new(changes.clone()));
        Models::new(engine, Arc::default(), operations, changes)
    }

    fn without_engine() -> Models {
        with(Weak::new())
    }

    async fn over(operation: &Operation) {
        let mut statuses = operation.subscribe();
        let ended = statuses.wait_for(|status| status.has_ended()).await;
        assert!(ended.unwrap().error().is_some());
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
        let options = sluice_engine::runtime::EngineOptions {
            threads: 1,
            ..Default::default()
        };
        let engine = Arc::new(Engine::start(options).unwrap());
        let engine_of = Arc::downgrade(&engine);
        let models = Arc::new(with(engine_of));
        let name = ModelName::at(Path::new("/nowhere/m"));
        models.lock().asleep = Some(name.clone());
        for _ in 0..2 {
            let coming = models.coming(&engine).unwrap().expect("it sleeps");
            over(&coming.operation).await;
            assert!(models.is_asleep());
        }
        let list = models.list();
        let shown: Vec<_> = list.iter().filter(|model| model.name == "m").collect();
        assert!(matches!(&shown[..], [model] if model.state() == v1::ModelState::Failed));
        // Another that fails takes nothing from it.
        let other = LoadRequest::of(ModelName::at(Path::new("/nowhere/other")));
        let load = models.load(&engine, other, Requester::Client).unwrap();
        over(&load).await;
        assert_eq!(models.lock().asleep, Some(name));
        // Who wants its memory ends that.
        models
            .unload(&engine, UnloadReason::Requested)
            .await
            .unwrap();
        assert!(!models.is_asleep());
        assert!(matches!(
            models.serving(),
            Err(Failure::Engine(EngineError::NoModel))
        ));
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
