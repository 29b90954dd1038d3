//! Requests that come to figures instead of a text: progress, then one result.

use sluice_engine::{
    Event, Outcome,
    event::{EventSink, FidelityResult, ScoreResult},
};
use sluice_proto::v1::{self, OperationStage, ProgressUnit, operation};

use super::{EventTarget, RecordWriter};
use crate::{failure::Failure, operations::progress, requests::RequestEnd};

/// A result on the wire, filled with what is known of it before the request runs.
pub trait Figures: Send + 'static {
    /// What its progress counts.
    const UNIT: ProgressUnit;

    /// The whole result; the outcome itself where it is of another kind.
    ///
    /// # Errors
    /// The outcome of another kind.
    fn result(&self, outcome: Outcome) -> Result<operation::Outcome, Outcome>;
}

impl Figures for v1::ScoreResult {
    const UNIT: ProgressUnit = ProgressUnit::Draws;

    fn result(&self, outcome: Outcome) -> Result<operation::Outcome, Outcome> {
        let Outcome::Scored(ScoreResult {
            log_likelihood,
            standard_error,
            is_greedy,
            kl,
            multi_sample_bound,
            ..
        }) = outcome
        else {
            return Err(outcome);
        };
        Ok(operation::Outcome::Score(Self {
            log_likelihood,
            standard_error,
            is_greedy,
            kl_nats: kl,
            multi_sample_bound,
            ..*self
        }))
    }
}

impl Figures for v1::FidelityResult {
    const UNIT: ProgressUnit = ProgressUnit::Passes;

    fn result(&self, outcome: Outcome) -> Result<operation::Outcome, Outcome> {
        let Outcome::Fidelity(FidelityResult {
            level,
            samples,
            rows,
            mean_kl,
            top_agreement,
            source_bound,
            level_bound,
            ..
        }) = outcome
        else {
            return Err(outcome);
        };
        Ok(operation::Outcome::Fidelity(Self {
            level: v1::Level::from(level).into(),
            samples: samples as u32,
            rows: rows as u32,
            mean_kl_nats: mean_kl,
            top_agreement,
            source_bound_nats: source_bound,
            level_bound_nats: level_bound,
            seed: self.seed,
        }))
    }
}

/// Takes the events of such a request into its record.
#[must_use]
pub fn figures(target: EventTarget, figures: impl Figures) -> EventSink {
    let mut translator = FigureWriter {
        home: RecordWriter::new(target),
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
            Event::Started { .. } => self.home.start(None),
            Event::ScoreProgress { done, total } => {
                let operation = self.home.record.operation();
                operation.request(|request| request.passes = done as u32);
                let stage = OperationStage::Computing;
                operation.progress(progress(stage, F::UNIT, done as u64, total as u64));
            }
            // Of generations only.
            Event::Pass(_) | Event::BlockDone { .. } | Event::Placed(_) | Event::Thought(_) => {}
            Event::Notice(text) => {
                tracing::info!(request = self.home.id(), text, "notice");
                self.home.record.notice(&text);
            }
            Event::Finished(Ok(Outcome::Cancelled)) => self.home.end(None, RequestEnd::Cancelled),
            Event::Finished(Ok(outcome)) => match self.figures.result(outcome) {
                Ok(result) => self
                    .home
                    .end(None, RequestEnd::Done(Some(Box::new(result)))),
                Err(other) => self.home.fail(&Failure::WrongOutcome(Box::new(other))),
            },
            Event::Finished(Err(error)) => self.home.refuse(error),
        }
    }
}
