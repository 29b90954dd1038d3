//! Vectors of texts, by a sentence encoder: a few texts a pass, so that others have their turns between.

use std::{ops::Range, time::Instant};

use sluice_checkpoint::family::{Pooling, SentenceVectors};
use sluice_ops::OpsError;

use super::pass_runner::PassRunner;
use crate::{
    error::EngineError,
    event::{EmbeddingResult, Event, Outcome},
    model::network::{Interrupt, Sequence, VisibleKeys},
    request::Embed,
};

impl PassRunner<'_> {
    /// Runs the request's passes, one after another.
    pub(super) fn embed(
        &mut self,
        request: &Embed,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Outcome, EngineError> {
        emit(Event::Started {
            blocks: 1,
            is_exact: true,
        });
        let started = Instant::now();
        let total = request.texts.len();
        let mut vectors = Vec::with_capacity(total);
        let mut is_lossless = true;
        for texts in request.passes() {
            let texts = &request.texts[texts];
            let rows = texts.iter().map(Vec::len).sum();
            let positions: Vec<usize> =
                (0..texts.iter().map(Vec::len).max().unwrap_or(0)).collect();
            let cancel = self.cancel;
            let ran = self.run(1, &mut |ops, current| {
                let config = &current.planner.config;
                let sentences = config.sentences.ok_or(EngineError::NoModel)?;
                // A text without tokens has no rows, and the vector 0.
                let read = texts.iter().filter(|text| !text.is_empty());
                let mut sequences: Vec<_> = read
                    .map(|text| Sequence {
                        tokens: text,
                        positions: &positions[..text.len()],
                        wanted: &positions[..text.len()],
                        sees: VisibleKeys::Each { checks: 0 },
                    })
                    .collect();
                let means = match sequences.is_empty() {
                    true => vec![0.0; texts.len() * config.shape.hidden_size],
                    false => {
                        let (model, weights) = (&current.model, &current.weights);
                        let hidden = model.forward(ops, weights, &mut sequences, cancel)?;
                        ops.row_means(&hidden, &pooled_rows(texts, sentences.pooling))?
                    }
                };
                if let Some(at) = means.iter().position(|mean| !mean.is_finite()) {
                    let text = vectors.len() + at / config.shape.hidden_size;
                    return Err(OpsError::VectorNotFinite { text }.into());
                }
                let means = means.chunks_exact(config.shape.hidden_size);
                let finished: Vec<_> = means.map(|mean| finished(mean, sentences)).collect();
                Ok((finished, rows))
            });
            match ran {
                Ok((found, cost)) => {
                    vectors.extend(found);
                    is_lossless &= cost.weights.is_lossless;
                }
                Err(Interrupt::Cancelled) => return Ok(Outcome::Cancelled),
                Err(Interrupt::Failed(error)) => return Err(error),
            }
            for notice in self.take_notices() {
                emit(Event::Notice(notice));
            }
            emit(Event::ScoreProgress {
                done: vectors.len(),
                total,
            });
        }
        Ok(Outcome::Embedded(EmbeddingResult {
            vectors,
            is_lossless,
            elapsed: started.elapsed(),
        }))
    }
}

/// The rows of which each text's vector is the mean.
fn pooled_rows(texts: &[Vec<u32>], pooling: Pooling) -> Vec<Range<usize>> {
    let mut start = 0;
    let rows = texts.iter().map(|text| {
        let rows = start..start + text.len();
        start = rows.end;
        match pooling {
            Pooling::Mean => rows,
            Pooling::First => rows.start..rows.end.min(rows.start + 1),
        }
    });
    rows.collect()
}

/// The vector of a mean.
fn finished(mean: &[f32], sentences: SentenceVectors) -> Vec<f32> {
    /// The least length that is divided by, as in the reference.
    const LENGTH_MIN: f64 = 1e-12;
    if !sentences.are_normalized {
        return mean.to_vec();
    }
    let squares: f64 = mean.iter().map(|&value| f64::from(value).powi(2)).sum();
    let length = squares.sqrt().max(LENGTH_MIN);
    let scaled = mean.iter().map(|&value| (f64::from(value) / length) as f32);
    scaled.collect()
}
