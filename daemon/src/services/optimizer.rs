//! `OptimizerService`: planning, changing level and budget, measuring fidelity, and jobs.

use std::{path::PathBuf, sync::Arc};

use sluice_checkpoint::family::PublishedShape;
use sluice_engine::{
    Budget, Engine, EngineError, PlanOptions, PlanSettings, ShareKey, Work,
    optimization::kept_mixes, runtime::ModelOutline,
};
use sluice_ops::CommonMemory;
use sluice_plan::PlanError;
use sluice_proto::{
    model::{
        CalibrateJob, CompressJob, DecompressJob, Measuring, ModelRef, OptimizeJob, Planning,
        PruneJob, RestoreTarget, VerifyJob,
    },
    operations::OperationResponse,
    v1::{self, OperationKind, optimizer_service_server::OptimizerService},
};
use sluice_shared::level::{EmbeddingPlacement, Level};
use tonic::{Request, Response, Status};

use super::{
    Daemon,
    call_terms::CallTerms,
    deadline::Deadline,
    library::settings_not_saved,
    operation,
    requests::{self, ResponseStream},
};
use crate::{
    caller::Caller,
    events,
    failure::Failure,
    measurements::PendingMeasurement,
    model_name::ModelName,
    models::{MeantModel, Models, ServingModel},
    operations::{OperationStatus, Unsaved, change::RequestedChange, optimization::kept_to_wire},
    prepare,
    requests::{RequestDescription, RequestRecord},
    settings::{self, SettingOrigin},
    together::{CommonBudget, OutlinedModel},
    translate,
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl OptimizerService for Service {
    type ApplyStream = ResponseStream<v1::ApplyResponse>;
    type RestoreStream = ResponseStream<v1::RestoreResponse>;
    type MeasureFidelityStream = ResponseStream<v1::MeasureFidelityResponse>;
    type CompressStream = ResponseStream<v1::CompressResponse>;
    type DecompressStream = ResponseStream<v1::DecompressResponse>;
    type VerifyStream = ResponseStream<v1::VerifyResponse>;
    type PruneStream = ResponseStream<v1::PruneResponse>;
    type CalibrateStream = ResponseStream<v1::CalibrateResponse>;
    type OptimizeStream = ResponseStream<v1::OptimizeResponse>;

    async fn plan(
        &self,
        request: Request<v1::PlanRequest>,
    ) -> Result<Response<v1::PlanResponse>, Status> {
        let terms = CallTerms::of(&request);
        let asked = Planning::try_from(request.into_inner()).map_err(Failure::from)?;
        let planning = blocking(&self.0, terms.caller.share(), move |daemon| {
            match asked.more_models.is_empty() {
                true => daemon
                    .plan(terms.caller, asked)
                    .map(|plan| v1::PlanResponse {
                        plan: Some(plan),
                        ..Default::default()
                    }),
                false => daemon.plan_together(terms.caller, asked),
            }
        });
        let planned = Deadline::limit(terms.deadline, planning).await?;
        Ok(Response::new(planned))
    }

    async fn apply(
        &self,
        request: Request<v1::ApplyRequest>,
    ) -> Result<Response<Self::ApplyStream>, Status> {
        self.0.check_open()?;
        let caller = Caller::of(&request);
        let message = request.into_inner();
        let model = message.model.clone();
        let change = PlanOptions::try_from(message).map_err(Failure::from)?;
        let model = changeable(&self.0, caller, model).await?;
        Ok(Response::new(begin(
            &self.0,
            &model,
            OperationKind::Apply,
            RequestedChange::new(change, caller),
            AfterChange::Remember,
        )?))
    }

    async fn restore(
        &self,
        request: Request<v1::RestoreRequest>,
    ) -> Result<Response<Self::RestoreStream>, Status> {
        self.0.check_open()?;
        let caller = Caller::of(&request);
        let share = caller.share();
        let message = request.into_inner();
        let model = message.model.clone();
        let to = RestoreTarget::try_from(message).map_err(Failure::from)?;
        let model = changeable(&self.0, caller, model).await?;
        let planned = model.clone();
        let (change, afterwards) = match to {
            RestoreTarget::Start => {
                let change = move |_: &Daemon| as_it_started(&planned);
                let change = blocking(&self.0, share, change).await?;
                let start = model.restore_point;
                (change, AfterChange::AsItStarted(start.requested))
            }
            RestoreTarget::Source => {
                let level = move |_: &Daemon| most_faithful(&planned);
                let change = PlanOptions {
                    level: Some(blocking(&self.0, share, level).await?),
                    embedding: Some(EmbeddingPlacement::Auto),
                    ..PlanOptions::default()
                };
                (change, AfterChange::Remember)
            }
        };
        Ok(Response::new(begin(
            &self.0,
            &model,
            OperationKind::Restore,
            RequestedChange::new(change, caller),
            afterwards,
        )?))
    }

    async fn measure_fidelity(
        &self,
        request: Request<v1::MeasureFidelityRequest>,
    ) -> Result<Response<Self::MeasureFidelityStream>, Status> {
        let terms = CallTerms::of(&request);
        let caller = terms.caller;
        let message = request.into_inner();
        self.0.check_open()?;
        let check = Measuring::try_from(message.clone()).map(|_| ModelRef::Loaded);
        let make = move |daemon: Arc<Daemon>, _: MeantModel, waited| {
            let message = message.clone();
            async move { daemon.admit_measurement(caller, message, waited).await }
        };
        let kind = OperationKind::MeasureFidelity;
        let request = requests::admit(&self.0, terms, (kind, check), make).await?;
        let pictures = operation::follow_owned(request, &self.0.closing);
        Ok(Response::new(pictures))
    }

    async fn list_fidelity(
        &self,
        _: Request<v1::ListFidelityRequest>,
    ) -> Result<Response<v1::ListFidelityResponse>, Status> {
        Ok(Response::new(v1::ListFidelityResponse {
            measurements: self.0.measurements.all(),
        }))
    }

    async fn compress(
        &self,
        request: Request<v1::CompressRequest>,
    ) -> Result<Response<Self::CompressStream>, Status> {
        self.0.check_open()?;
        let caller = Caller::of(&request);
        let asked = CompressJob::try_from(request.into_inner()).map_err(Failure::from)?;
        let [output] = self.0.check_paths(caller, [asked.output.clone()]).await?;
        let model = self.0.resolve(caller, asked.source.clone()).await?;
        let asked = CompressJob { output, ..asked };
        let weight_cache = self.0.engine.weight_cache();
        let weight_cache = weight_cache.map(|(folder, _)| folder.to_owned());
        let operation = (self.0.operations).compress(&model, asked, weight_cache)?;
        Ok(Response::new(operation::follow(operation, &self.0.closing)))
    }

    async fn decompress(
        &self,
        request: Request<v1::DecompressRequest>,
    ) -> Result<Response<Self::DecompressStream>, Status> {
        self.0.check_open()?;
        let caller = Caller::of(&request);
        let asked = DecompressJob::try_from(request.into_inner()).map_err(Failure::from)?;
        let paths = [asked.file.clone(), asked.output.clone()];
        let [file, output] = self.0.check_paths(caller, paths).await?;
        let asked = DecompressJob {
            file,
            output,
            ..asked
        };
        let operation = self.0.operations.decompress(asked)?;
        Ok(Response::new(operation::follow(operation, &self.0.closing)))
    }

    async fn verify(
        &self,
        request: Request<v1::VerifyRequest>,
    ) -> Result<Response<Self::VerifyStream>, Status> {
        self.0.check_open()?;
        let caller = Caller::of(&request);
        let asked = VerifyJob::try_from(request.into_inner()).map_err(Failure::from)?;
        let [file] = self.0.check_paths(caller, [asked.file.clone()]).await?;
        let asked = VerifyJob { file };
        let operation = self.0.operations.verify(asked)?;
        Ok(Response::new(operation::follow(operation, &self.0.closing)))
    }

    async fn prune(
        &self,
        request: Request<v1::PruneRequest>,
    ) -> Result<Response<Self::PruneStream>, Status> {
        self.0.check_open()?;
        let caller = Caller::of(&request);
        let asked = PruneJob::try_from(request.into_inner()).map_err(Failure::from)?;
        let [output] = self.0.check_paths(caller, [asked.output.clone()]).await?;
        let calibration = match asked.calibration.clone() {
            Some(path) => self.0.check_paths(caller, [path]).await?.into_iter().next(),
            None => None,
        };
        let model = self.0.resolve(caller, asked.source.clone()).await?;
        let asked = PruneJob {
            output,
            calibration,
            ..asked
        };
        let weight_cache = self.0.engine.weight_cache();
        let weight_cache = weight_cache.map(|(folder, _)| folder.to_owned());
        let operation = (self.0.operations).prune(&model, asked, weight_cache)?;
        Ok(Response::new(operation::follow(operation, &self.0.closing)))
    }

    async fn calibrate(
        &self,
        request: Request<v1::CalibrateRequest>,
    ) -> Result<Response<Self::CalibrateStream>, Status> {
        self.0.check_open()?;
        let caller = Caller::of(&request);
        let asked = CalibrateJob::try_from(request.into_inner()).map_err(Failure::from)?;
        let operation = self.0.begin_calibration(caller, asked).await?;
        Ok(Response::new(operation::follow(operation, &self.0.closing)))
    }

    async fn optimize(
        &self,
        request: Request<v1::OptimizeRequest>,
    ) -> Result<Response<Self::OptimizeStream>, Status> {
        self.0.check_open()?;
        let caller = Caller::of(&request);
        let asked = OptimizeJob::try_from(request.into_inner()).map_err(Failure::from)?;
        let operation = self.0.begin_optimization(caller, asked).await?;
        Ok(Response::new(operation::follow(operation, &self.0.closing)))
    }

    async fn list_mixes(
        &self,
        request: Request<v1::ListMixesRequest>,
    ) -> Result<Response<v1::ListMixesResponse>, Status> {
        let share = Caller::of(&request).share();
        let Ok(serving) = self.0.models.serving() else {
            return Ok(Response::new(v1::ListMixesResponse::default()));
        };
        let engine = serving.engine()?;
        let list = move |_: &Daemon| Ok(kept_mixes(&engine)?);
        let kept = blocking(&self.0, share, list).await?;
        Ok(Response::new(v1::ListMixesResponse {
            model: serving.name.name,
            mixes: kept.iter().map(kept_to_wire).collect(),
        }))
    }
}

/// Runs planning on a blocking thread: it makes a dry run of a pass and may read headers from disk.
async fn blocking<T: Send + 'static>(
    daemon: &Arc<Daemon>,
    share: ShareKey,
    work: impl FnOnce(&Daemon) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let place = daemon.preparing.enter(share).await?;
    let daemon = daemon.clone();
    tokio::task::spawn_blocking(move || {
        let result = work(&daemon);
        drop(place);
        result
    })
    .await?
}

impl Daemon {
    async fn admit_measurement(
        &self,
        caller: Caller,
        message: v1::MeasureFidelityRequest,
        waited: Option<Arc<RequestRecord>>,
    ) -> Result<Arc<RequestRecord>, Failure> {
        self.check_open()?;
        let level = message.level();
        let checked = Measuring::try_from(message)?;
        let serving = self.models.serving()?;
        let (work, serving) = self
            .prepare(caller.share(), serving, move |serving, patience| {
                prepare::measuring(checked, serving, patience)
            })
            .await?;
        let facts = RequestDescription {
            kind: OperationKind::MeasureFidelity,
            prompt_tokens: 0,
            length: work.samples.iter().map(Vec::len).sum(),
            blocks: 0,
            level,
        };
        let record = self.record(waited, caller, facts, &serving.name.name);
        let measurement = PendingMeasurement::new(self.measurements.clone(), &serving, &work);
        let sink = events::figures::figures(self.event_target(&record), measurement);
        let made = (record, &serving);
        self.submit(caller.share(), made, Work::MeasureFidelity(work), sink)
    }

    /// The places that a caller means by these paths, if it may name them. Follows links, so not on the async threads.
    pub(super) async fn check_paths<const N: usize>(
        self: &Arc<Self>,
        caller: Caller,
        mut paths: [PathBuf; N],
    ) -> Result<[PathBuf; N], Failure> {
        let daemon = self.clone();
        let check = move || {
            for path in &mut paths {
                *path = daemon.access.check_path(caller, path)?;
            }
            Ok(paths)
        };
        tokio::task::spawn_blocking(check).await?
    }

    fn plan(&self, caller: Caller, asked: Planning) -> Result<v1::Plan, Failure> {
        let mut settings = self.models.base_settings();
        let (name, outline) = match asked.model.clone() {
            ModelRef::Loaded => return self.plan_loaded(&asked),
            ModelRef::Shape(name) => {
                let shape = published_shape(&name)?;
                let machine = self.engine.machine()?;
                (name, ModelOutline::of_published_shape(shape, machine))
            }
            model => {
                let model = self.resolve_now(caller, model)?;
                let machine = self.engine.machine()?;
                // The settings that a load of this model would have.
                let holds = self.settings.for_load(&model, &PlanOptions::default());
                settings = settings.with_unresolved_mix().with(&holds.change());
                let outline = ModelOutline::of_checkpoint(&model.source(), machine)?;
                (model.name, outline)
            }
        };
        let settings = settings.with(&asked.options);
        let budget_bytes = self.engine.allowed_bytes(&settings);
        let workload = translate::plan::workload(asked.workload, outline.context_length())?;
        let plan = outline.plan(settings, budget_bytes, workload)?;
        let not_loadable = translate::plan::not_loadable(&plan, &self.engine);
        Ok(v1::Plan {
            is_loadable: not_loadable.is_none(),
            not_loadable_reason: not_loadable.unwrap_or_default(),
            ..translate::plan::plan(&plan, &name)
        })
    }

    /// How several models would share the budget.
    fn plan_together(&self, caller: Caller, asked: Planning) -> Result<v1::PlanResponse, Failure> {
        let asked_budget = asked.options.budget.and_then(|budget| budget.bytes());
        let budget_bytes = asked_budget.unwrap_or_else(|| self.engine.shared_budget_bytes());
        let options = PlanOptions {
            budget: None,
            ..asked.options
        };
        let machine = self.engine.machine()?;
        let models = std::iter::once(asked.model).chain(asked.more_models);
        let models = models.map(|model| -> Result<OutlinedModel, Failure> {
            let machine = machine.clone();
            let all_of_it = Budget::Bytes(budget_bytes);
            if let ModelRef::Shape(name) = model {
                let shape = published_shape(&name)?;
                let settings = self.engine.start_settings().with(&options);
                return Ok(OutlinedModel {
                    name,
                    outline: ModelOutline::of_published_shape(shape, machine),
                    settings: PlanSettings {
                        budget: all_of_it,
                        ..settings
                    },
                    is_pinned: false,
                });
            }
            let model = self.resolve_now(caller, model)?;
            let holds = self.settings.for_load(&model, &options);
            let is_own = matches!(
                holds.budget.origin,
                SettingOrigin::ModelFile | SettingOrigin::Remembered
            );
            let settings = (self.engine.start_settings())
                .with(&holds.change())
                .with(&options);
            Ok(OutlinedModel {
                outline: ModelOutline::of_checkpoint(&model.source(), machine)?,
                settings: PlanSettings {
                    budget: match is_own {
                        true => holds.budget.value,
                        false => all_of_it,
                    },
                    ..settings
                },
                is_pinned: self.settings.table(&model).pinned,
                name: model.name,
            })
        });
        let common = CommonBudget {
            budget_bytes,
            budget_default: self.engine.budget_default(),
            common_bytes: CommonMemory::bytes_on(self.engine.device()),
            models_max: self.settings.loaded_models(),
        };
        let models: Vec<_> = models.collect::<Result<_, _>>()?;
        Ok(v1::PlanResponse {
            models: common.plan(&models)?,
            budget_bytes,
            ..Default::default()
        })
    }

    fn plan_loaded(&self, asked: &Planning) -> Result<v1::Plan, Failure> {
        let serving = self.models.serving()?;
        let engine = serving.engine()?;
        let context_length = serving.loaded.info.context_length;
        let workload = translate::plan::workload(asked.workload, context_length)?;
        let plan = engine.plan(&asked.options, workload)?;
        let time = engine.estimate_switch(&plan);
        Ok(v1::Plan {
            switch_estimate: time.map(translate::plan::switch_estimate),
            ..translate::plan::plan(&plan, &serving.name.name)
        })
    }
}

/// The change back to what a model was loaded with, without remembered settings, which `restore` forgets.
fn as_it_started(serving: &ServingModel) -> Result<PlanOptions, Failure> {
    let engine = serving.engine()?;
    let loaded = engine.loaded_with().ok_or(EngineError::NoModel)?;
    let in_force = engine.in_force().ok_or(EngineError::NoModel)?;
    let before = serving.restore_point.restored(loaded);
    let to = |level| PlanOptions {
        level: Some(level),
        ..before.into()
    };
    // As a load does, substitutes a level that this machine has no room for.
    let levels = [before.level].into_iter();
    let mut levels = levels.chain(before.level.substitutes().iter().copied());
    let workload = in_force.plan.workload;
    let fits = levels.find(|level| engine.plan(&to(*level), workload).is_ok());
    Ok(to(fits.unwrap_or(before.level)))
}

/// The most faithful level that fits the budget: `off`, else `standard`.
fn most_faithful(serving: &ServingModel) -> Result<Level, Failure> {
    let engine = serving.engine()?;
    let in_force = engine.in_force().ok_or(EngineError::NoModel)?;
    let off = PlanOptions {
        level: Some(Level::Off),
        embedding: Some(EmbeddingPlacement::Auto),
        ..PlanOptions::default()
    };
    match engine.plan(&off, in_force.plan.workload) {
        Ok(_) => Ok(Level::Off),
        Err(EngineError::Plan(PlanError::BudgetTooSmall { .. })) => Ok(Level::Standard),
        Err(error) => Err(error.into()),
    }
}

/// The published shape of this name.
fn published_shape(name: &str) -> Result<&'static PublishedShape, Failure> {
    PublishedShape::find(name).ok_or_else(|| Failure::UnknownShape {
        name: name.to_owned(),
    })
}

/// The model that a change is for. Without one the change is refused before it reaches an engine, whose settings stay.
async fn changeable(
    daemon: &Arc<Daemon>,
    caller: Caller,
    model: String,
) -> Result<ServingModel, Failure> {
    let model = ModelRef::of_request(model)?;
    let meant = daemon.meant(caller, model).await?;
    let serving = daemon.models.serving_as(&meant);
    serving.map_err(|failure| Failure::NothingToChange(Box::new(failure)))
}

/// What a successful change writes to disk for later loads of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
enum AfterChange {
    /// Later loads use the change.
    Remember,
    /// Later loads use what the present load asked for itself, if anything.
    AsItStarted(PlanOptions),
}

impl AfterChange {
    /// Saves the requested change. Returns what could not be saved.
    fn write(self, daemon: &Daemon, model: &ModelName, change: &PlanOptions) -> Option<Unsaved> {
        let saved = daemon.library.state().save(|state| match self {
            Self::Remember => settings::remember(state, model, change),
            Self::AsItStarted(asked) => {
                settings::forget(state, model);
                settings::remember(state, model, &asked);
            }
        });
        let error = saved.err()?;
        Some(settings_not_saved(&model.name, error))
    }
}

/// What a change that has ended put in force, or what is held of it for the next load. What was in force is written down even
/// if another change has followed, whose turn comes next.
fn settled(
    engine: &Engine,
    change: &RequestedChange,
    ended: &OperationStatus,
) -> Option<PlanOptions> {
    let in_force = change.in_force(engine.settings());
    in_force.or_else(|| ended.outcome().map(|_| change.options))
}

fn begin<R: OperationResponse>(
    daemon: &Arc<Daemon>,
    serving: &ServingModel,
    kind: OperationKind,
    change: RequestedChange,
    afterwards: AfterChange,
) -> Result<ResponseStream<R>, Status> {
    let (model, engine) = (serving.name.clone(), serving.engine()?);
    let options = change.options;
    let begin = || {
        let target = serving.switch_target.clone();
        (daemon.operations).change(&engine, kind, &change, model.name.clone(), target)
    };
    let (asked, of, requested) = (daemon.clone(), model.clone(), change.clone());
    let changed = Arc::downgrade(&engine);
    let operation = daemon.writes.begin(begin, move |ended| {
        let settled = settled(&*changed.upgrade()?, &requested, ended)?;
        Some(move || afterwards.write(&asked, &of, &settled))
    })?;
    let in_use = daemon.models.uses().begin(&serving.name);
    Models::keep_for(&operation, in_use);
    tracing::info!(
        operation = operation.id(),
        %options,
        "a client asks for another plan"
    );
    // The change goes on when the caller goes away; a watcher of the daemon sees its end.
    Ok(operation::follow(operation, &daemon.closing))
}
