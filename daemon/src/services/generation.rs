//! `GenerationService`: requests are made, listed, watched and cancelled.

use std::{pin::Pin, sync::Arc};

use futures_util::{
    StreamExt,
    stream::{self, Stream},
};
use sluice_engine::Work;
use sluice_proto::{
    model::{Generation, Scoring},
    v1::{self, generation_service_server::GenerationService},
};
use tonic::{Request, Response, Status};

use super::{Daemon, deadline::Deadline};
use crate::{
    failure::Failure,
    models::Serving,
    prepare,
    registry::{Facts, Item, Reader, Record},
    translate,
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl GenerationService for Service {
    type GenerateStream = Answers<v1::GenerateResponse>;
    type ScoreStream = Answers<v1::ScoreResponse>;
    type WatchRequestStream = Answers<v1::WatchRequestResponse>;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let deadline = Deadline::of(request.metadata());
        let admission = self.0.admit_generation(request.into_inner());
        let record = self
            .0
            .admitted(Deadline::limit(deadline, admission).await)?;
        let items = owned(self.0.clone(), record, deadline);
        let answers = items.map(|item| {
            item.map(|item| v1::GenerateResponse {
                event: generation_event(&item),
            })
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn score(
        &self,
        request: Request<v1::ScoreRequest>,
    ) -> Result<Response<Self::ScoreStream>, Status> {
        let deadline = Deadline::of(request.metadata());
        let admission = self.0.admit_scoring(request.into_inner());
        let record = self
            .0
            .admitted(Deadline::limit(deadline, admission).await)?;
        let items = owned(self.0.clone(), record, deadline);
        let answers = items.filter_map(|item| async {
            match item {
                Ok(item) => match &*item {
                    Item::Score(response) => Some(Ok(*response)),
                    // Queued, which estimates have no message for.
                    Item::Generation(_) => None,
                },
                Err(status) => Some(Err(status)),
            }
        });
        Ok(Response::new(answers.boxed()))
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

    async fn watch_request(
        &self,
        request: Request<v1::WatchRequestRequest>,
    ) -> Result<Response<Self::WatchRequestStream>, Status> {
        let id = request.into_inner().request_id;
        let record = self.0.find(id)?;
        if record.kind() == v1::RequestKind::Score {
            return Err(Failure::NotAGeneration { id }.into());
        }
        let closing = self.0.closing.clone().cancelled_owned();
        let answers = stream::unfold(Reader::new(record), |mut reader| async {
            let item = reader.next().await?;
            Some((item, reader))
        })
        .map(|item| {
            item.map(|item| v1::WatchRequestResponse {
                event: generation_event(&item),
            })
        });
        Ok(Response::new(answers.take_until(closing).boxed()))
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
    fn find(&self, id: u64) -> Result<Arc<Record>, Failure> {
        self.requests.find(id).ok_or(Failure::UnknownRequest { id })
    }

    /// Counts a refusal on its way to the caller.
    fn admitted(&self, result: Result<Arc<Record>, Failure>) -> Result<Arc<Record>, Status> {
        result.map_err(|failure| {
            self.requests.totals().refused();
            tracing::debug!(reason = %failure, "request refused");
            failure.into()
        })
    }

    async fn admit_generation(&self, message: v1::GenerateRequest) -> Result<Arc<Record>, Failure> {
        self.check_open()?;
        let checked = Generation::try_from(message)?;
        let serving = self.models.serving()?;
        let (work, serving) = self
            .prepare(serving, move |serving| {
                prepare::generation(checked, serving)
            })
            .await?;
        let record = self.requests.create(Facts {
            kind: v1::RequestKind::Generate,
            prompt_tokens: work.prompt.len(),
            length: work.canvas.len(),
            // A block length of 0 never gets past the checks, one too long is refused below.
            blocks: work.canvas.len().div_ceil(work.block_length.max(1)),
        });
        let requests = self.requests.clone();
        let engine = Arc::downgrade(&self.engine);
        let sink = translate::generation(requests, record.clone(), serving, engine, &work);
        self.submit(record, Work::Generate(work), sink)
    }

    async fn admit_scoring(&self, message: v1::ScoreRequest) -> Result<Arc<Record>, Failure> {
        self.check_open()?;
        let checked = Scoring::try_from(message)?;
        let serving = self.models.serving()?;
        let (work, _) = self
            .prepare(serving, move |serving| prepare::scoring(checked, serving))
            .await?;
        let record = self.requests.create(Facts {
            kind: v1::RequestKind::Score,
            prompt_tokens: work.prompt.len(),
            length: work.answer.len(),
            blocks: 0,
        });
        let facts = v1::ScoreResult {
            answer_tokens: work.answer.len() as u32,
            draws: work.draws as u32,
            seed: work.seed,
            ..Default::default()
        };
        let sink = translate::scoring(self.requests.clone(), record.clone(), facts);
        self.submit(record, Work::Score(work), sink)
    }

    /// Tokenizes on a thread that may take its time, few at once.
    async fn prepare<T: Send + 'static>(
        &self,
        serving: Serving,
        prepare: impl FnOnce(&Serving) -> Result<T, Failure> + Send + 'static,
    ) -> Result<(T, Serving), Failure> {
        let place = self.preparing.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        tokio::task::spawn_blocking(move || {
            let work = prepare(&serving)?;
            // Held to here even when the caller went away meanwhile.
            drop(place);
            Ok((work, serving))
        })
        .await?
    }

    fn submit(
        &self,
        record: Arc<Record>,
        work: Work,
        sink: sluice_engine::event::Sink,
    ) -> Result<Arc<Record>, Failure> {
        // Tokenizing may have taken until after the shutdown began.
        self.check_open()?;
        let ticket = self.engine.submit(work, sink)?;
        self.requests.admit(&record, ticket);
        tracing::info!(request = record.id(), ahead = ticket.ahead, "admitted");
        Ok(record)
    }
}

fn generation_event(item: &Item) -> Option<v1::GenerationEvent> {
    match item {
        Item::Generation(event) => Some(event.clone()),
        Item::Score(_) => None,
    }
}

/// A stream that a request belongs to: when it is dropped before its end, or the deadline
/// passes, the request is cancelled.
struct Owner {
    daemon: Arc<Daemon>,
    reader: Reader,
    deadline: Option<Deadline>,
    expired: bool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let record = self.reader.record();
        if record.cancel(&self.daemon.engine) && !self.expired {
            tracing::info!(request = record.id(), "cancelled: its caller went away");
        }
    }
}

fn owned(
    daemon: Arc<Daemon>,
    record: Arc<Record>,
    deadline: Option<Deadline>,
) -> impl Stream<Item = Result<Arc<Item>, Status>> {
    let owner = Owner {
        daemon,
        reader: Reader::new(record),
        deadline,
        expired: false,
    };
    stream::unfold(owner, |mut owner| async {
        if owner.expired {
            return None;
        }
        let item = tokio::select! {
            // A caller whose time is over gets nothing more, however much there is.
            biased;
            failure = Deadline::passed(owner.deadline) => {
                owner.expired = true;
                let record = owner.reader.record();
                tracing::info!(request = record.id(), "cancelled: its deadline has passed");
                record.cancel(&owner.daemon.engine);
                Err(failure.into())
            }
            item = owner.reader.next() => item?,
        };
        Some((item, owner))
    })
}
