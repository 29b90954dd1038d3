//! `GenerationService`: generating, scoring, and watching generations.

use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use sluice_engine::{Engine, PlanOptions, RequestError, Work};
use sluice_plan::Plan;
use sluice_proto::{
    model::Scoring,
    v1::{
        self, OperationKind, generate_with_state_response::Part,
        generation_service_server::GenerationService,
    },
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{
    Daemon,
    call_terms::CallTerms,
    deadline::Deadline,
    memory::Recalled,
    operation,
    requests::{self, OwnedRequest, ResponseStream},
    states::{self, CallStates, ReceivedCall},
};
use crate::{
    caller::Caller,
    events,
    failure::Failure,
    models::{MeantModel, ServingModel},
    prepare::{self, GenerationRequest, RequestDefaults},
    requests::{RecordReader, RequestDescription, RequestRecord},
    role::Role,
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl GenerationService for Service {
    type GenerateStream = ResponseStream<v1::GenerateResponse>;
    type GenerateWithStateStream = ResponseStream<v1::GenerateWithStateResponse>;
    type ScoreStream = ResponseStream<v1::ScoreResponse>;
    type WatchGenerationStream = ResponseStream<v1::WatchGenerationResponse>;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let terms = CallTerms::of(&request);
        let message = request.into_inner();
        self.0.check_open()?;
        let request = self.admit(terms, message, CallStates::default()).await?;
        let events = request.events().map(|event| {
            event.map(|event| v1::GenerateResponse {
                event: Some(v1::GenerationEvent::clone(&event)),
            })
        });
        Ok(Response::new(events.boxed()))
    }

    async fn generate_with_state(
        &self,
        request: Request<Streaming<v1::GenerateWithStateRequest>>,
    ) -> Result<Response<Self::GenerateWithStateStream>, Status> {
        let terms = CallTerms::of(&request);
        self.0.check_open()?;
        let receiving = self.0.receive(terms.caller, request.into_inner());
        let ReceivedCall {
            request,
            states,
            returned,
        } = Deadline::limit(terms.deadline, receiving).await?;
        let request = self.admit(terms, request, states).await?;
        let events = request.events().map(|event| {
            event.map(|event| v1::GenerateWithStateResponse {
                part: Some(Part::Event(v1::GenerationEvent::clone(&event))),
            })
        });
        Ok(Response::new(events.chain(states::parts(returned)).boxed()))
    }

    async fn score(
        &self,
        request: Request<v1::ScoreRequest>,
    ) -> Result<Response<Self::ScoreStream>, Status> {
        let terms = CallTerms::of(&request);
        let caller = terms.caller;
        let message = request.into_inner();
        self.0.check_open()?;
        let check = Scoring::try_from(message.clone()).map(|checked| checked.model);
        let make = move |daemon: Arc<Daemon>, model, waited| {
            let message = message.clone();
            async move { daemon.admit_scoring(caller, message, &model, waited).await }
        };
        let kind = OperationKind::Score;
        let request = requests::admit(&self.0, terms, (kind, check), make).await?;
        let pictures = operation::follow_owned(request, &self.0.closing);
        Ok(Response::new(pictures))
    }

    async fn watch_generation(
        &self,
        request: Request<v1::WatchGenerationRequest>,
    ) -> Result<Response<Self::WatchGenerationStream>, Status> {
        let caller = Caller::of(&request);
        let id = request.into_inner().operation_id;
        let operation = self.0.operations.find(id)?;
        // It shows what somebody asked and is answered.
        operation::check_owner(caller, &operation, Role::Admin)?;
        if operation.kind() != OperationKind::Generate {
            return Err(Failure::NotAGeneration { id }.into());
        }
        let record = self.0.requests.find(id);
        let record = record.ok_or(Failure::UnknownOperation { id })?;
        let answers = watch(record, self.0.closing.clone()).map(|item| {
            item.map(|item| v1::WatchGenerationResponse {
                event: Some(v1::GenerationEvent::clone(&item)),
            })
        });
        Ok(Response::new(answers.boxed()))
    }
}

impl Service {
    /// Admits a generation, which belongs to the call.
    async fn admit(
        &self,
        terms: CallTerms,
        message: v1::GenerateRequest,
        states: CallStates,
    ) -> Result<OwnedRequest, Status> {
        let caller = terms.caller;
        let check = states.check(message.clone());
        // Once, before the request waits: a model that makes vectors might take the place of the one that is to write.
        let recalled = match &check {
            Ok(checked) => {
                let recalling = self.0.recall(&terms, checked);
                Deadline::limit(terms.deadline, recalling).await?
            }
            Err(_) => None,
        };
        let check = check.map(|checked| checked.model);
        let make = move |daemon: Arc<Daemon>, model, waited| {
            let asked = (message.clone(), states.clone(), recalled.clone());
            async move { daemon.admit_generation(caller, asked, &model, waited).await }
        };
        let kind = OperationKind::Generate;
        requests::admit(&self.0, terms, (kind, check), make).await
    }
}

/// The events of a generation for a watcher. If the daemon ends first, they end with [`Failure::Draining`].
fn watch(
    record: Arc<RequestRecord>,
    closing: CancellationToken,
) -> impl Stream<Item = Result<Arc<v1::GenerationEvent>, Status>> {
    let reader = Some(RecordReader::new(record));
    stream::unfold((reader, closing), |(reader, closing)| async {
        let mut reader = reader?;
        tokio::select! {
            // The reader first, so that an end is sent that came just before the shutdown.
            biased;
            item = reader.next() => Some((item?, (Some(reader), closing))),
            () = closing.cancelled() => Some((Err(Failure::Draining.into()), (None, closing))),
        }
    })
}

impl Daemon {
    async fn admit_generation(
        &self,
        caller: Caller,
        (message, states, recalled): (v1::GenerateRequest, CallStates, Option<Recalled>),
        model: &MeantModel,
        waited: Option<Arc<RequestRecord>>,
    ) -> Result<Arc<RequestRecord>, Failure> {
        self.check_open()?;
        let (recalled, notices) = recalled.map(Recalled::into_parts).unzip();
        let request = GenerationRequest {
            asked: states.check(message)?,
            state: states.options(),
            recalled,
        };
        let serving = self.models.serving_as(model)?;
        let engine = serving.engine()?;
        let defaults = RequestDefaults {
            preset: self.default_preset,
            limits: self.settings.default_limits(),
        };
        let settings = self.settings.clone();
        let problem = self.settings.problem();
        let ((prepared, expected), serving) = self
            .prepare(caller.share(), serving, move |serving, patience| {
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
                let prepared = prepare::generation(
                    request,
                    (serving, patience),
                    &table,
                    defaults,
                    is_bus_bound,
                )?;
                let asked = Work::Generate(prepared.work.clone());
                let expected = expected(&engine, &asked, serving)?;
                Ok((prepared, expected))
            })
            .await?;
        let model = serving.loaded.info.state.as_ref();
        states.reserve(&self.states, caller, model)?;
        let work = &prepared.work;
        let facts = RequestDescription {
            kind: OperationKind::Generate,
            prompt_tokens: work.prompt.len(),
            length: work.canvas.len(),
            // A block length of 0 never gets past the checks.
            blocks: work.canvas.len().div_ceil(work.block_length),
            level: v1::Level::Unspecified,
        };
        let record = self.record(waited, caller, facts, &serving.name.name);
        for notice in problem.iter().chain(notices.iter().flatten()) {
            record.notice(notice);
        }
        let sink = events::generation(
            self.event_target(&record),
            serving.clone(),
            &prepared,
            expected,
            states.clone().sink(),
        );
        let made = (record, &serving);
        self.submit(caller.share(), made, Work::Generate(prepared.work), sink)
            .inspect_err(|_| states.release())
    }

    async fn admit_scoring(
        &self,
        caller: Caller,
        message: v1::ScoreRequest,
        model: &MeantModel,
        waited: Option<Arc<RequestRecord>>,
    ) -> Result<Arc<RequestRecord>, Failure> {
        self.check_open()?;
        let checked = Scoring::try_from(message)?;
        let serving = self.models.serving_as(model)?;
        let (work, serving) = self
            .prepare(caller.share(), serving, move |serving, patience| {
                prepare::scoring(checked, serving, patience)
            })
            .await?;
        let facts = RequestDescription {
            kind: OperationKind::Score,
            prompt_tokens: work.prompt.len(),
            length: work.answer.len(),
            blocks: 0,
            level: v1::Level::Unspecified,
        };
        let record = self.record(waited, caller, facts, &serving.name.name);
        let facts = v1::ScoreResult {
            answer_tokens: work.answer.len() as u32,
            draws: work.draws as u32,
            seed: work.seed,
            think_steps: work.think_steps.map(|steps| steps as u32),
            ..Default::default()
        };
        let sink = events::figures::figures(self.event_target(&record), facts);
        let made = (record, &serving);
        self.submit(caller.share(), made, Work::Score(work), sink)
    }
}

/// Whether passes stream weights. If not, no plan is needed to know that they do not wait for them.
fn streams_weights(engine: &Engine) -> bool {
    let pass = engine.in_force().and_then(|in_force| in_force.plan.pass);
    pass.is_some_and(|pass| pass.reader_s > 0.0)
}

/// The plan for a valid request, for predictions and presets. A request goes on without one.
fn expected(
    engine: &Engine,
    work: &Work,
    serving: &ServingModel,
) -> Result<Option<Plan>, RequestError> {
    // A plan makes a dry run of the canvas, so a canvas beyond the model's context is refused before.
    work.check(&serving.loaded.info)?;
    Ok(engine.plan(&PlanOptions::default(), work.workload()).ok())
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::{
        operations::{ChangeNotifier, Operations},
        requests::Requests,
    };

    #[tokio::test]
    async fn a_watcher_of_an_unfinished_generation_hears_that_the_daemon_ends() {
        let changes = ChangeNotifier::default();
        let operations = Arc::new(Operations::new(changes.clone()));
        let requests = Requests::new(operations, changes);
        let facts = RequestDescription::unknown(OperationKind::Generate);
        let record = requests.create(Caller::DAEMON, facts, "m");
        let closing = CancellationToken::new();
        let mut events = Box::pin(watch(record, closing.clone()));
        assert!(events.next().await.unwrap().is_ok());
        closing.cancel();
        let status = events.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(events.next().await.is_none());
    }
}
