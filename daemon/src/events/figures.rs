//! Requests that come to figures instead of a text: progress, then one result.

use std::sync::Arc;

use sluice_engine::{
    Event, Outcome,
    event::{EventSink, FidelityResult, ScoreResult},
};
use sluice_proto::v1::{self, measure_fidelity_response, score_response};

use super::RecordWriter;
use crate::{
    failure::Failure,
    requests::{RecordEvent, RequestRecord, Requests},
};

/// A result on the wire, filled with what is known of it before the request runs.
pub trait Figures: Send + 'static {
    /// How far the request is.
    fn progress(request_id: u64, done: u32, total: u32) -> RecordEvent;

    /// The whole result; the outcome itself where it is of another kind.
    ///
    /// # Errors
    /// The outcome of another kind.
    fn result(&self, request_id: u64, outcome: Outcome) -> Result<RecordEvent, Outcome>;
}

impl Figures for v1::ScoreResult {
    fn progress(request_id: u64, done: u32, total: u32) -> RecordEvent {
        let progress = v1::ScoreProgress {
            request_id,
            draws_done: done,
            draws_total: total,
        };
        score_response::Kind::Progress(progress).into()
    }

    fn result(&self, request_id: u64, outcome: Outcome) -> Result<RecordEvent, Outcome> {
        let Outcome::Scored(ScoreResult {
            log_likelihood,
            standard_error,
            is_greedy,
            elapsed,
        }) = outcome
        else {
            return Err(outcome);
        };
        let result = Self {
            request_id,
            log_likelihood,
            standard_error,
            is_greedy,
            elapsed_ms: elapsed.as_secs_f64() * 1000.0,
            ..*self
        };
        Ok(score_response::Kind::Result(result).into())
    }
}

impl Figures for v1::FidelityResult {
    fn progress(request_id: u64, done: u32, total: u32) -> RecordEvent {
        let progress = v1::FidelityProgress {
            request_id,
            done,
            total,
        };
        measure_fidelity_response::Kind::Progress(progress).into()
    }

    fn result(&self, request_id: u64, outcome: Outcome) -> Result<RecordEvent, Outcome> {
        let Outcome::Fidelity(FidelityResult {
            level,
            samples,
            rows,
            mean_kl,
            top_agreement,
            source_bound,
            level_bound,
            elapsed,
        }) = outcome
        else {
            return Err(outcome);
        };
        let result = Self {
            request_id,
            level: v1::Level::from(level).into(),
            samples: samples as u32,
            rows: rows as u32,
            mean_kl_nats: mean_kl,
            top_agreement,
            source_bound_nats: source_bound,
            level_bound_nats: level_bound,
            seed: self.seed,
            elapsed_ms: elapsed.as_secs_f64() * 1000.0,
        };
        Ok(measure_fidelity_response::Kind::Result(result).into())
    }
}

/// Takes the events of such a request into its record.
#[must_use]
pub fn figures(
    registry: Arc<Requests>,
    record: Arc<RequestRecord>,
    figures: impl Figures,
) -> EventSink {
    let mut translator = FigureWriter {
        home: RecordWriter::new(registry, record),
        figures,
    };
    Box::new(move |event| translator.take(event))
}

struct FigureWriter<F> {
    home: RecordWriter,
    figures: F,
}

impl<F: Figures> FigureWriter<F> {
    fn take(&mut self, event: Event) {
        match event {
            Event::Started { .. } => {
                self.home.record.start(None);
                self.home.requests.touched();
            }
            Event::ScoreProgress { done, total } => {
                let item = F::progress(self.home.id(), done as u32, total as u32);
                self.home.record.picture(item, done, 0);
            }
            // Of generations only.
            Event::Pass(_) | Event::BlockDone { .. } => {}
            // Readers of figures have no message for it.
            Event::Notice(text) => {
                tracing::info!(request = self.home.id(), text, "notice");
            }
            Event::Finished(Ok(Outcome::Cancelled)) => {
                let state = v1::RequestState::Cancelled;
                self.home.end(state, None, Some(&Failure::Cancelled));
            }
            Event::Finished(Ok(outcome)) => match self.figures.result(self.home.id(), outcome) {
                Ok(item) => self.home.end_with(v1::RequestState::Done, item),
                Err(other) => self.home.fail(&Failure::WrongOutcome(Box::new(other))),
            },
            Event::Finished(Err(error)) => self.home.refuse(error),
        }
    }
}
