//! The way of every request that computes: prepared aside, admitted, owned by the stream that answers it.

use std::{
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
};

use futures_util::{
    StreamExt,
    stream::{self, Stream},
};
use sluice_engine::{Work, event::EventSink};
use sluice_proto::{model::InvalidField, v1};
use tonic::{Response, Status};

use super::{
    Daemon,
    deadline::Deadline,
    waiting::{self, AdmitFn},
};
use crate::{
    failure::Failure,
    models::ServingModel,
    requests::{RecordEvent, RecordReader, RequestDescription, RequestRecord},
};

/// What a request's caller gets.
pub(super) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Admits a request, or lets it wait for a model that loads, and answers with its items, as far as `answer` has a message for
/// them. What breaks a rule for any model is known before there is one, and refused at once.
pub(super) async fn run<T, F>(
    daemon: &Arc<Daemon>,
    deadline: Option<Deadline>,
    (kind, check): (v1::RequestKind, Result<(), InvalidField>),
    make: impl Fn(Arc<Daemon>, Option<Arc<RequestRecord>>) -> F + Send + Sync + 'static,
    answer: fn(&RecordEvent) -> Option<T>,
) -> Result<Response<ResponseStream<T>>, Status>
where
    T: Send + 'static,
    F: Future<Output = Result<Arc<RequestRecord>, Failure>> + Send + 'static,
{
    let maker = daemon.clone();
    let make: AdmitFn = Box::new(move |record| Box::pin(make(maker.clone(), record)));
    let admission = async {
        check?;
        waiting::admit(daemon, kind, make).await
    };
    let admitted = Deadline::limit(deadline, admission).await;
    let record = admitted.map_err(|failure| {
        // Counted on its way to the caller.
        daemon.requests.totals().refused();
        tracing::debug!(reason = %failure, "request refused");
        Status::from(failure)
    })?;
    let items = owned(daemon.clone(), record, deadline);
    let answers = items.filter_map(move |item| {
        ready(match item {
            Ok(item) => answer(&item).map(Ok),
            Err(status) => Some(Err(status)),
        })
    });
    Ok(Response::new(answers.boxed()))
}

impl Daemon {
    /// Tokenizes on a thread that may take its time, few at once.
    pub(super) async fn prepare<T: Send + 'static>(
        &self,
        serving: ServingModel,
        prepare: impl FnOnce(&ServingModel) -> Result<T, Failure> + Send + 'static,
    ) -> Result<(T, ServingModel), Failure> {
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

    /// The record of a request that was prepared: the one that stood in line for its model, or else a new one.
    pub(super) fn record(
        &self,
        waited: Option<Arc<RequestRecord>>,
        facts: RequestDescription,
    ) -> Arc<RequestRecord> {
        match waited {
            Some(record) => {
                record.describe(facts);
                record
            }
            None => self.requests.create(facts),
        }
    }

    /// Hands a prepared request to the engine.
    pub(super) fn submit(
        &self,
        record: Arc<RequestRecord>,
        work: Work,
        sink: EventSink,
    ) -> Result<Arc<RequestRecord>, Failure> {
        // Tokenizing may have taken until after the shutdown began.
        self.check_open()?;
        let ticket = self.engine.submit(work, sink)?;
        self.requests.admit(&record, ticket);
        tracing::info!(request = record.id(), ahead = ticket.ahead, "admitted");
        Ok(record)
    }
}

/// A stream that a request belongs to: when it is dropped before its end, or the deadline
/// passes, the request is cancelled.
struct OwnedStream {
    daemon: Arc<Daemon>,
    reader: RecordReader,
    deadline: Option<Deadline>,
    expired: bool,
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        let record = self.reader.record();
        if record.cancel(&self.daemon.engine) && !self.expired {
            tracing::info!(request = record.id(), "cancelled: its caller went away");
        }
    }
}

fn owned(
    daemon: Arc<Daemon>,
    record: Arc<RequestRecord>,
    deadline: Option<Deadline>,
) -> impl Stream<Item = Result<Arc<RecordEvent>, Status>> {
    let owner = OwnedStream {
        daemon,
        reader: RecordReader::new(record),
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
