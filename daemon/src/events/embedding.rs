//! Requests for vectors: progress in texts, then all vectors at once, which no record keeps.

use std::sync::{Arc, Mutex, PoisonError};

use sluice_engine::{
    Event, Outcome,
    event::{EmbeddingResult, EventSink},
};
use sluice_proto::v1::{OperationStage, ProgressUnit};

use super::{EventTarget, RecordWriter};
use crate::{failure::Failure, operations::progress, requests::RequestEnd};

/// Where the vectors of a request are put before its end is told.
#[derive(Debug, Clone, Default)]
pub struct VectorPlace(Arc<Mutex<Option<EmbeddingResult>>>);

impl VectorPlace {
    /// Takes the vectors out.
    #[must_use]
    pub fn take(&self) -> Option<EmbeddingResult> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, result: EmbeddingResult) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }
}

/// Takes the events of such a request into its record, and its vectors to their place.
#[must_use]
pub fn embedding(target: EventTarget, place: VectorPlace) -> EventSink {
    let mut home = RecordWriter::new(target);
    Box::new(move |event| match event {
        Event::Started { .. } => home.start(None),
        Event::ScoreProgress { done, total } => {
            let operation = home.record.operation();
            operation.request(|request| request.passes += 1);
            let stage = OperationStage::Computing;
            operation.progress(progress(
                stage,
                ProgressUnit::Texts,
                done as u64,
                total as u64,
            ));
        }
        // Of generations only.
        Event::Pass(_) | Event::BlockDone { .. } | Event::Placed(_) | Event::Thought(_) => {}
        Event::Notice(text) => {
            tracing::info!(request = home.id(), text, "notice");
            home.record.notice(&text);
        }
        Event::Finished(Ok(Outcome::Cancelled)) => home.end(None, RequestEnd::Cancelled),
        Event::Finished(Ok(Outcome::Embedded(result))) => {
            place.put(result);
            home.end(None, RequestEnd::Done(None));
        }
        Event::Finished(Ok(other)) => home.fail(&Failure::WrongOutcome(Box::new(other))),
        Event::Finished(Err(error)) => home.refuse(error),
    })
}
