//! `GenerationService`: requests are made, listed, watched and cancelled.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use sluice_engine::{Engine, PlanOptions, RequestError, Work};
use sluice_plan::Plan;
use sluice_proto::{
    model::{Generation, Scoring},
    v1::{self, generation_service_server::GenerationService},
};
use tonic::{Request, Response, Status};

use super::{
    Daemon,
    deadline::Deadline,
    requests::{self, ResponseStream},
};
use crate::{
    events,
    failure::Failure,
    models::ServingModel,
    prepare,
    requests::{RecordEvent, RecordReader, RequestDescription, RequestRecord},
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl GenerationService for Service {
    type GenerateStream = ResponseStream<v1::GenerateResponse>;
    type ScoreStream = ResponseStream<v1::ScoreResponse>;
    type WatchGenerationStream = ResponseStream<v1::WatchGenerationResponse>;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let deadline = Deadline::of(request.metadata());
        let message = request.into_inner();
        self.0.check_open()?;
        let check = Generation::try_from(message.clone()).map(drop);
        let make = move |daemon: Arc<Daemon>, waited| {
            let message = message.clone();
            async move { daemon.admit_generation(message, waited).await }
        };
        let kind = v1::RequestKind::Generate;
        requests::run(&self.0, deadline, (kind, check), make, |item| {
            let event = generation_event(item);
            event.map(|event| v1::GenerateResponse { event: Some(event) })
        })
        .await
    }

    async fn score(
        &self,
        request: Request<v1::ScoreRequest>,
    ) -> Result<Response<Self::ScoreStream>, Status> {
        let deadline = Deadline::of(request.metadata());
        let message = request.into_inner();
        self.0.check_open()?;
        let check = Scoring::try_from(message.clone()).map(drop);
        let make = move |daemon: Arc<Daemon>, waited| {
            let message = message.clone();
            async move { daemon.admit_scoring(message, waited).await }
        };
        let kind = v1::RequestKind::Score;
        requests::run(&self.0, deadline, (kind, check), make, |item| match item {
            RecordEvent::Score(response) => Some(*response),
            // Queued, which estimates have no message for.
            RecordEvent::Generation(_) | RecordEvent::Fidelity(_) => None,
        })
        .await
    }

    async fn list_requests(
        &self,
        _: Request<v1::ListRequestsRequest>,
    ) -> Result<Response<v1::ListRequestsResponse>, Status> {
        let all = self.0.requests.all();
        Ok(Response::new(v1::ListRequestsResponse {
            requests: all.iter().map(|record| record.summary()).collect(),
        }))
    }

    async fn watch_generation(
        &self,
        request: Request<v1::WatchGenerationRequest>,
    ) -> Result<Response<Self::WatchGenerationStream>, Status> {
        let id = request.into_inner().operation_id;
        let record = self.0.find(id)?;
        if record.kind() != v1::RequestKind::Generate {
            return Err(Failure::NotAGeneration { id }.into());
        }
        let begun = (RecordReader::new(record), self.0.closing.clone());
        let answers = stream::unfold(begun, |(mut reader, closing)| async {
            let item = tokio::select! {
                // First, so that an end that was just told is heard.
                biased;
                item = reader.next() => item?,
                () = closing.cancelled() => return None,
            };
            Some((item, (reader, closing)))
        })
        .map(|item| {
            item.map(|item| v1::WatchGenerationResponse {
                event: generation_event(&item),
            })
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn cancel_request(
        &self,
        request: Request<v1::CancelRequestRequest>,
    ) -> Result<Response<v1::CancelRequestResponse>, Status> {
        let id = request.into_inner().request_id;
        let was_active = self.0.find(id)?.cancel(&self.0.engine);
        tracing::info!(request = id, was_active, "cancelled by a client");
        Ok(Response::new(v1::CancelRequestResponse { was_active }))
    }
}

impl Daemon {
    fn find(&self, id: u64) -> Result<Arc<RequestRecord>, Failure> {
        self.requests.find(id).ok_or(Failure::UnknownRequest { id })
    }

    async fn admit_generation(
        &self,
        message: v1::GenerateRequest,
        waited: Option<Arc<RequestRecord>>,
    ) -> Result<Arc<RequestRecord>, Failure> {
        self.check_open()?;
        let checked = Generation::try_from(message)?;
        let serving = self.models.serving()?;
        let engine = self.engine.clone();
        let dial = self.default_preset;
        let settings = self.settings.clone();
        let problem = self.settings.problem();
        let ((prepared, expected), serving) = self
            .prepare(serving, move |serving| {
                let streams = streams_weights(&engine);
                let is_bus_bound = |work: &Work| {
                    if !streams {
                        return false;
                    }
                    let plan = expected(&engine, work, serving).ok().flatten();
                    let pass = plan.and_then(|plan| plan.pass);
                    pass.is_some_and(|pass| pass.waits())
                };
                let table = settings.table(&serving.name);
                let prepared = prepare::generation(checked, serving, &table, dial, is_bus_bound)?;
                let asked = Work::Generate(prepared.work.clone());
                let expected = expected(&engine, &asked, serving)?;
                Ok((prepared, expected))
            })
            .await?;
        let work = &prepared.work;
        let facts = RequestDescription {
            kind: v1::RequestKind::Generate,
            prompt_tokens: work.prompt.len(),
            length: work.canvas.len(),
            // A block length of 0 never gets past the checks.
            blocks: work.canvas.len().div_ceil(work.block_length),
        };
        let record = self.record(waited, facts);
        if let Some(problem) = problem {
            record.notice(&problem);
        }
        let requests = self.requests.clone();
        let engine = Arc::downgrade(&self.engine);
        let sink = events::generation(
            requests,
            record.clone(),
            serving,
            engine,
            &prepared,
            expected,
        );
        self.submit(record, Work::Generate(prepared.work), sink)
    }

    async fn admit_scoring(
        &self,
        message: v1::ScoreRequest,
        waited: Option<Arc<RequestRecord>>,
    ) -> Result<Arc<RequestRecord>, Failure> {
        self.check_open()?;
        let checked = Scoring::try_from(message)?;
        let serving = self.models.serving()?;
        let (work, _) = self
            .prepare(serving, move |serving| prepare::scoring(checked, serving))
            .await?;
        let facts = RequestDescription {
            kind: v1::RequestKind::Score,
            prompt_tokens: work.prompt.len(),
            length: work.answer.len(),
            blocks: 0,
        };
        let record = self.record(waited, facts);
        let facts = v1::ScoreResult {
            answer_tokens: work.answer.len() as u32,
            draws: work.draws as u32,
            seed: work.seed,
            ..Default::default()
        };
        let sink = events::figures::figures(self.requests.clone(), record.clone(), facts);
        self.submit(record, Work::Score(work), sink)
    }
}

/// Whether passes read weights at all that are not where they are needed; if not, nobody needs to plan to know that they
/// don't wait for them.
fn streams_weights(engine: &Engine) -> bool {
    let pass = engine.in_force().and_then(|in_force| in_force.plan.pass);
    pass.is_some_and(|pass| pass.reader_s > 0.0)
}

/// The plan for a request that breaks no rule. Only for advice and choices: without one the request goes on.
fn expected(
    engine: &Engine,
    work: &Work,
    serving: &ServingModel,
) -> Result<Option<Plan>, RequestError> {
    // What is planned is rehearsed, so no canvas beyond the model's context.
    work.check(&serving.loaded.info)?;
    Ok(engine.plan(&PlanOptions::default(), work.workload()).ok())
}

fn generation_event(item: &RecordEvent) -> Option<v1::GenerationEvent> {
    match item {
        RecordEvent::Generation(event) => Some(event.clone()),
        RecordEvent::Score(_) | RecordEvent::Fidelity(_) => None,
    }
}
