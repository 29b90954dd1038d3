//! `EmbeddingService`: vectors of texts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use sluice_engine::{Outcome, Work};
use sluice_proto::{
    model::Embedding,
    v1::{self, OperationKind, embedding_service_server::EmbeddingService},
};
use tonic::{Request, Response, Status};

use super::{
    Daemon,
    call_terms::CallTerms,
    operation,
    requests::{self, ResponseStream},
};
use crate::{
    caller::Caller,
    events::embedding::{VectorPlace, embedding},
    failure::Failure,
    models::MeantModel,
    prepare,
    requests::{RequestDescription, RequestRecord},
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

/// What an answer says besides vectors, once the request was prepared.
type Told = Arc<Mutex<v1::EmbedResponse>>;

#[tonic::async_trait]
impl EmbeddingService for Service {
    async fn embed(
        &self,
        request: Request<v1::EmbedRequest>,
    ) -> Result<Response<v1::EmbedResponse>, Status> {
        let terms = CallTerms::of(&request);
        let answer = self.0.embed(terms, request.into_inner()).await?;
        Ok(Response::new(answer))
    }
}

impl Daemon {
    /// Makes a vector of each text.
    pub(super) async fn embed(
        self: &Arc<Self>,
        terms: CallTerms,
        message: v1::EmbedRequest,
    ) -> Result<v1::EmbedResponse, Status> {
        let (caller, is_step) = (terms.caller, terms.is_step);
        self.check_open()?;
        let check = Embedding::try_from(message.clone()).map(|checked| checked.model);
        let (place, told) = (VectorPlace::default(), Told::default());
        let (put, tell) = (place.clone(), told.clone());
        let make = move |daemon: Arc<Daemon>, model, waited| {
            let (message, put, tell) = (message.clone(), put.clone(), tell.clone());
            async move {
                let answer = (put, tell);
                let asked = (message, is_step);
                (daemon.admit_embedding(caller, asked, (&model, waited), answer)).await
            }
        };
        let kind = OperationKind::Embed;
        let request = requests::admit(self, terms, (kind, check), make).await?;
        let mut pictures: ResponseStream<v1::WatchOperationResponse> =
            operation::follow_owned(request, &self.closing);
        let mut last = None;
        while let Some(picture) = pictures.next().await {
            last = picture?.operation;
        }
        let mut answer = lock(&told).clone();
        let missing = || Failure::WrongOutcome(Box::new(Outcome::Cancelled));
        let result = place.take().ok_or_else(missing)?;
        for (text, vector) in answer.vectors.iter_mut().zip(result.vectors) {
            text.values = vector;
        }
        answer.is_lossless = result.is_lossless;
        answer.elapsed_ms = result.elapsed.as_secs_f64() * 1e3;
        answer.notices = last.map(|operation| operation.notices).unwrap_or_default();
        Ok(answer)
    }

    async fn admit_embedding(
        &self,
        caller: Caller,
        (message, is_step): (v1::EmbedRequest, bool),
        (model, waited): (&MeantModel, Option<Arc<RequestRecord>>),
        (place, told): (VectorPlace, Told),
    ) -> Result<Arc<RequestRecord>, Failure> {
        self.check_open()?;
        let checked = Embedding::try_from(message)?;
        let serving = self.models.serving_as(model)?;
        let (prepared, serving) = self
            .prepare(caller.share(), serving, move |serving, patience| {
                prepare::embedding(checked, serving, patience)
            })
            .await?;
        let facts = RequestDescription {
            kind: OperationKind::Embed,
            prompt_tokens: prepared.texts.iter().map(|(tokens, _)| tokens).sum(),
            length: prepared.texts.len(),
            blocks: 0,
            level: v1::Level::Unspecified,
        };
        let record = self.record(waited, caller, facts, &serving.name.name);
        if is_step {
            record.is_a_step();
        }
        let vectors = prepared
            .texts
            .iter()
            .map(|&(tokens, is_truncated)| v1::TextVector {
                tokens: tokens as u32,
                is_truncated,
                ..Default::default()
            });
        *lock(&told) = v1::EmbedResponse {
            vectors: vectors.collect(),
            dimensions: serving.loaded.info.hidden_size as u32,
            model: serving.name.name.clone(),
            ..Default::default()
        };
        let sink = embedding(self.event_target(&record), place);
        let made = (record, &serving);
        self.submit(caller.share(), made, Work::Embed(prepared.work), sink)
    }
}

fn lock(told: &Told) -> MutexGuard<'_, v1::EmbedResponse> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}
