//! `OptimizerService`: plans, putting them in force, and measuring what they cost in fidelity.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use sluice_engine::{
    Change, EngineError, Work, engine::Outline, model::shape::Preset, plan::PlanError,
};
use sluice_proto::{
    model::{Adjustment, Measuring, Planned, Planning},
    v1::{self, apply_response::Kind, optimizer_service_server::OptimizerService},
};
use sluice_shared::level::{Choices, Embedding, Level};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{
    Daemon,
    deadline::Deadline,
    requests::{self, Answers},
};
use crate::{
    applies::{self, Applied, ApplyState},
    failure::Failure,
    models::{ModelName, Serving},
    prepare,
    registry::{Facts, Item, Record},
    translate,
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl OptimizerService for Service {
    type ApplyStream = Answers<v1::ApplyResponse>;
    type RestoreStream = Answers<v1::ApplyResponse>;
    type MeasureFidelityStream = Answers<v1::MeasureFidelityResponse>;

    async fn plan(
        &self,
        request: Request<v1::PlanRequest>,
    ) -> Result<Response<v1::PlanResponse>, Status> {
        let deadline = Deadline::of(request.metadata());
        let asked = Planning::try_from(request.into_inner()).map_err(Failure::from)?;
        let planning = blocking(&self.0, move |daemon| daemon.plan(asked));
        let plan = Deadline::limit(deadline, planning).await?;
        Ok(Response::new(v1::PlanResponse { plan: Some(plan) }))
    }

    async fn apply(
        &self,
        request: Request<v1::ApplyRequest>,
    ) -> Result<Response<Self::ApplyStream>, Status> {
        self.0.check_open()?;
        let asked = Adjustment::try_from(request.into_inner()).map_err(Failure::from)?;
        let change = Change {
            level: asked.level,
            budget_bytes: asked.budget_bytes,
            embedding: asked.embedding,
            auto_factor: asked.auto_factor,
            kv: asked.kv,
        };
        Ok(Response::new(begin(&self.0, change)?))
    }

    async fn restore(
        &self,
        _: Request<v1::RestoreRequest>,
    ) -> Result<Response<Self::RestoreStream>, Status> {
        self.0.check_open()?;
        changeable(&self.0)?;
        let level = blocking(&self.0, Daemon::most_faithful).await?;
        let change = Change {
            level: Some(level),
            embedding: Some(Embedding::Auto),
            ..Change::default()
        };
        Ok(Response::new(begin(&self.0, change)?))
    }

    async fn measure_fidelity(
        &self,
        request: Request<v1::MeasureFidelityRequest>,
    ) -> Result<Response<Self::MeasureFidelityStream>, Status> {
        let deadline = Deadline::of(request.metadata());
        let message = request.into_inner();
        let admission = self
            .0
            .admit_awake(None, || self.0.admit_measurement(message.clone()));
        requests::run(&self.0, deadline, admission, |item| match item {
            Item::Fidelity(response) => Some(response.clone()),
            // Queued, which measurements have no message for.
            Item::Generation(_) | Item::Score(_) => None,
        })
        .await
    }
}

/// Planning rehearses a pass and may read headers: not for a thread that answers calls.
async fn blocking<T: Send + 'static>(
    daemon: &Arc<Daemon>,
    work: impl FnOnce(&Daemon) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let place = daemon.preparing.clone().acquire_owned().await;
    let place = place.expect("the semaphore is never closed");
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
        message: v1::MeasureFidelityRequest,
    ) -> Result<Arc<Record>, Failure> {
        self.check_open()?;
        let checked = Measuring::try_from(message)?;
        let serving = self.models.serving()?;
        let (work, _) = self
            .prepare(serving, move |serving| prepare::measuring(checked, serving))
            .await?;
        let record = self.requests.create(Facts {
            kind: v1::RequestKind::Fidelity,
            prompt_tokens: 0,
            length: work.samples.iter().map(Vec::len).sum(),
            blocks: 0,
        });
        let facts = v1::FidelityResult {
            seed: work.seed,
            ..Default::default()
        };
        let sink = translate::figures::figures(self.requests.clone(), record.clone(), facts);
        self.submit(record, Work::Compare(work), sink)
    }

    fn plan(&self, asked: Planning) -> Result<v1::Plan, Failure> {
        let (name, outline) = match &asked.model {
            Planned::Loaded => return self.plan_loaded(&asked),
            Planned::Preset(name) => {
                let preset = preset(name)?;
                let machine = self.engine.machine()?;
                (name.clone(), Outline::of_preset(preset, machine))
            }
            Planned::Path(path) => self.outline(self.at(path.clone())?)?,
            Planned::Name(name) => self.outline(self.library.model(name)?)?,
        };
        let settings = self.engine.settings();
        let budget_bytes = asked
            .budget_bytes
            .or(settings.budget_bytes)
            .unwrap_or_else(|| self.engine.budget_default());
        let workload = translate::plan::workload(&asked, outline.context_length())?;
        let level = asked.level.unwrap_or(settings.level);
        let choices = Choices {
            embedding: asked.embedding.unwrap_or(settings.embedding),
            auto_factor: asked.auto_factor.unwrap_or(settings.auto_factor),
            kv: asked.kv.unwrap_or(settings.kv),
            ..Choices::from(level)
        };
        let plan = outline.plan(choices, budget_bytes, workload)?;
        Ok(translate::plan::plan(&plan, &name))
    }

    /// A model on disk as plans see it.
    fn outline(&self, model: ModelName) -> Result<(String, Outline), Failure> {
        let machine = self.engine.machine()?;
        let outline = Outline::of_checkpoint(&model.source(), machine)?;
        Ok((model.name, outline))
    }

    fn plan_loaded(&self, asked: &Planning) -> Result<v1::Plan, Failure> {
        let serving = self.models.serving()?;
        let context_length = serving.loaded.info.context_length;
        let workload = translate::plan::workload(asked, context_length)?;
        let change = Change {
            level: asked.level,
            budget_bytes: asked.budget_bytes.map(Some),
            embedding: asked.embedding,
            auto_factor: asked.auto_factor,
            kv: asked.kv,
        };
        let plan = self.engine.plan(&change, workload)?;
        Ok(translate::plan::plan(&plan, &serving.name.name))
    }

    /// The level of the checkpoint's own weights that the budget has room for.
    fn most_faithful(&self) -> Result<Level, Failure> {
        let in_force = self.engine.in_force().ok_or(EngineError::NoModel)?;
        let off = Change {
            level: Some(Level::Off),
            embedding: Some(Embedding::Auto),
            ..Change::default()
        };
        match self.engine.plan(&off, in_force.plan.workload) {
            Ok(_) => Ok(Level::Off),
            Err(EngineError::Plan(PlanError::BudgetTooSmall { .. })) => Ok(Level::Standard),
            Err(error) => Err(error.into()),
        }
    }
}

/// The published shape of this name.
fn preset(name: &str) -> Result<&'static Preset, Failure> {
    Preset::find(name).ok_or_else(|| Failure::UnknownPreset {
        name: name.to_owned(),
    })
}

/// The model that a change is for. Without one the engine isn't asked, and its settings stay.
fn changeable(daemon: &Daemon) -> Result<Serving, Failure> {
    let serving = daemon.models.serving();
    serving.map_err(|failure| Failure::NothingToChange(Box::new(failure)))
}

fn begin(daemon: &Arc<Daemon>, change: Change) -> Result<Answers<v1::ApplyResponse>, Status> {
    let serving = changeable(daemon)?;
    tracing::info!(?change, "a client asks for another plan");
    let states = applies::apply(
        &daemon.engine,
        change,
        serving.name.name,
        daemon.changes.clone(),
        daemon.switch_target.clone(),
    );
    let told = Told {
        daemon: daemon.clone(),
        states,
        planned: false,
        notices: 0,
        conversion: None,
        progress: None,
    };
    // The change goes on when the caller goes away; a watcher of the daemon sees its end.
    let answers = stream::unfold(Some(told), |told| async {
        let mut told = told?;
        told.states.changed().await.ok()?;
        let (answers, ended) = told.news();
        Some((stream::iter(answers), (!ended).then_some(told)))
    });
    let answers = answers
        .flatten()
        .map(|kind| kind.map(|kind| v1::ApplyResponse { kind: Some(kind) }))
        .take_until(daemon.closing.clone().cancelled_owned());
    Ok(answers.boxed())
}

/// A change, and what its caller has heard of it.
struct Told {
    daemon: Arc<Daemon>,
    states: watch::Receiver<ApplyState>,
    planned: bool,
    notices: usize,
    conversion: Option<v1::Conversion>,
    progress: Option<v1::Switch>,
}

impl Told {
    /// What the caller has not heard, and whether that is all there will be.
    fn news(&mut self) -> (Vec<Result<Kind, Status>>, bool) {
        let ApplyState {
            planned,
            notices,
            conversion,
            progress,
            end,
        } = self.states.borrow_and_update().clone();
        let mut answers = Vec::new();
        if let Some(planned) = planned.filter(|_| !self.planned) {
            self.planned = true;
            answers.push(Ok(Kind::Planned(v1::ApplyPlanned::clone(&planned))));
        }
        let told = std::mem::replace(&mut self.notices, notices.len());
        let notices = notices.into_iter().skip(told);
        answers.extend(notices.map(|text| Ok(Kind::Notice(text))));
        if conversion != self.conversion {
            self.conversion = conversion;
            answers.extend(conversion.map(|conversion| Ok(Kind::Conversion(conversion))));
        }
        if progress != self.progress {
            self.progress = progress;
            answers.extend(progress.map(|progress| Ok(Kind::Progress(progress))));
        }
        let ended = end.is_some();
        answers.extend(end.map(|end| end.map(|applied| self.applied(applied))));
        (answers, ended)
    }

    fn applied(&self, applied: Applied) -> Kind {
        Kind::Applied(v1::Applied {
            plan: Some(v1::Plan::clone(&applied.plan)),
            device_bytes: self.daemon.engine.memory().used_bytes,
            elapsed_ms: applied.elapsed_ms,
        })
    }
}
