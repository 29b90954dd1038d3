//! What all requests that compute share: preparation off the async threads, admission, and ownership by the answering stream.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::stream::{self, Stream};
use sluice_engine::{ShareKey, Work, event::EventSink};
use sluice_proto::{
    model::{InvalidField, ModelRef},
    v1::{self, OperationKind},
};
use sluice_tokenizer::{Patience, limits::SESSION_WAIT_MAX};
use tonic::Status;

use super::{
    Daemon,
    call_terms::CallTerms,
    deadline::Deadline,
    waiting::{self, AdmitFn},
};
use crate::{
    caller::Caller,
    events::EventTarget,
    failure::Failure,
    models::{MeantModel, ServingModel},
    requests::{RecordReader, RequestDescription, RequestRecord},
};

/// The stream that answers a call.
pub(super) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Admits a request, or lets it wait for a model that loads or for room in the engine's queue. The returned request belongs
/// to the call. `check` holds the rules that do not depend on the model, and which model is named: a request that breaks one is
/// refused at once, not after the load.
pub(super) async fn admit<F>(
    daemon: &Arc<Daemon>,
    terms: CallTerms,
    (kind, check): (OperationKind, Result<ModelRef, InvalidField>),
    make: impl Fn(Arc<Daemon>, MeantModel, Option<Arc<RequestRecord>>) -> F + Send + Sync + 'static,
) -> Result<OwnedRequest, Status>
where
    F: Future<Output = Result<Arc<RequestRecord>, Failure>> + Send + 'static,
{
    let maker = daemon.clone();
    let (message, deadline) = (terms.message.clone(), terms.deadline);
    let admission = async {
        let model = daemon.meant(terms.caller, check?).await?;
        let meant = model.clone();
        let make: AdmitFn = Box::new(move |record| {
            // It counts as long as the request can be made of it.
            let _ = &message;
            Box::pin(make(maker.clone(), meant.clone(), record))
        });
        waiting::admit(daemon, terms, (kind, model), make).await
    };
    let admitted = Deadline::limit(deadline, admission).await;
    let record = admitted.map_err(|failure| {
        daemon.requests.totals().refused();
        tracing::debug!(reason = %failure, "request refused");
        Status::from(failure)
    })?;
    Ok(OwnedRequest {
        record,
        deadline,
        expired: false,
    })
}

/// Held by whoever waits for something that runs on another thread: its drop says that nobody waits any more.
#[derive(Default)]
struct Presence {
    gone: Arc<AtomicBool>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

impl Daemon {
    /// The model that a request for text means. Who names one that serves need not wait for the disk.
    pub(super) async fn meant(
        self: &Arc<Self>,
        caller: Caller,
        model: ModelRef,
    ) -> Result<MeantModel, Failure> {
        let ModelRef::Name(name) = &model else {
            return Ok(MeantModel::Present);
        };
        if let Some(loaded) = self.models.loaded_as(name) {
            return Ok(MeantModel::Named(loaded.name));
        }
        let _place = self.listing.enter(caller.share()).await?;
        Ok(MeantModel::Named(self.resolve(caller, model).await?))
    }

    /// Prepares a request, which tokenizes text, on a blocking thread. [`crate::limits::PREPARING_MAX`] bounds how many do at once.
    pub(super) async fn prepare<T: Send + 'static>(
        &self,
        share: ShareKey,
        serving: ServingModel,
        prepare: impl FnOnce(&ServingModel, &Patience) -> Result<T, Failure> + Send + 'static,
    ) -> Result<(T, ServingModel), Failure> {
        let place = self.preparing.enter(share).await?;
        let caller = Presence::default();
        let patience = Patience::new(SESSION_WAIT_MAX, caller.gone.clone());
        tokio::task::spawn_blocking(move || {
            let work = prepare(&serving, &patience)?;
            // Inside the thread: the caller's future may be dropped while the work goes on, which must still count.
            drop(place);
            Ok((work, serving))
        })
        .await?
    }

    /// The record of a prepared request: the one that waited for the model, or else a new one.
    pub(super) fn record(
        &self,
        waited: Option<Arc<RequestRecord>>,
        caller: Caller,
        facts: RequestDescription,
        model: &str,
    ) -> Arc<RequestRecord> {
        match waited {
            Some(record) => {
                record.describe(facts, model);
                record
            }
            None => self.requests.create(caller, facts, model),
        }
    }

    /// Where the events of a request go.
    pub(super) fn event_target(&self, record: &Arc<RequestRecord>) -> EventTarget {
        EventTarget {
            record: record.clone(),
            requests: self.requests.clone(),
            models: self.models.clone(),
        }
    }

    /// Hands a request that was prepared for a model to its engine.
    pub(super) fn submit(
        &self,
        share: ShareKey,
        (record, serving): (Arc<RequestRecord>, &ServingModel),
        work: Work,
        sink: EventSink,
    ) -> Result<Arc<RequestRecord>, Failure> {
        // Tokenizing may have taken until after the shutdown began.
        self.check_open()?;
        let engine = serving.engine()?;
        // Before the engine has it, which may be quick to end it.
        record.keeps(Some(self.models.uses().begin(&serving.name)));
        let ticket = engine.submit(share, work, sink);
        let ticket = ticket.inspect_err(|_| record.keeps(None))?;
        self.requests
            .admit(&record, ticket, Arc::downgrade(&engine));
        match record.is_step() {
            true => tracing::debug!(request = record.id(), ahead = ticket.ahead, "admitted"),
            false => tracing::info!(request = record.id(), ahead = ticket.ahead, "admitted"),
        }
        Ok(record)
    }
}

/// A request that belongs to a call: when this is dropped before its end, or the deadline passes, the request is cancelled.
pub(super) struct OwnedRequest {
    record: Arc<RequestRecord>,
    deadline: Option<Deadline>,
    expired: bool,
}

impl OwnedRequest {
    /// The owned request's record.
    pub(super) fn record(&self) -> &Arc<RequestRecord> {
        &self.record
    }

    /// Whether its deadline has passed.
    pub(super) fn has_expired(&self) -> bool {
        self.expired
    }

    /// Returns once the deadline has passed, which cancels the request.
    pub(super) async fn expire(&mut self) -> Status {
        let failure = Deadline::passed(self.deadline).await;
        self.expired = true;
        let request = self.record.id();
        tracing::info!(request, "cancelled: its deadline has passed");
        self.record.cancel();
        failure.into()
    }

    /// The events of a generation.
    pub(super) fn events(
        self,
    ) -> impl Stream<Item = Result<Arc<v1::GenerationEvent>, Status>> + Send {
        let reader = RecordReader::new(self.record.clone());
        stream::unfold((self, reader), |(mut owner, mut reader)| async {
            if owner.expired {
                return None;
            }
            let item = tokio::select! {
                // A caller whose time is over gets nothing more, however much there is.
                biased;
                status = owner.expire() => Err(status),
                item = reader.next() => item?,
            };
            Some((item, (owner, reader)))
        })
    }
}

impl Drop for OwnedRequest {
    fn drop(&mut self) {
        if self.record.cancel() && !self.expired {
            let request = self.record.id();
            tracing::info!(request, "cancelled: its caller went away");
        }
    }
}
