//! The likelihood of an answer, estimated as the LLaDA reference does.
//!
//! Reference: `get_log_likelihood.py` of ML-GSAI/LLaDA: log p(answer | prompt) is about the
//! mean over draws of (L/ℓ) Σ log p over the masked positions, with exactly ℓ of the answer's
//! L tokens masked and ℓ spread evenly over 1…L. Difference: a draw is a pass of its own, and
//! ℓ is stratified over all draws instead of over batches of 16.

use std::{sync::Arc, time::Instant};

use sluice_formats::noise::Noise;
use sluice_ops::{Candidate, LmHeadRow, RankingScore};

use super::{DiffusionRequest, Pass, PassReach, Vocabulary, diffusion::Diffusion};
use crate::{
    event::{Event, Outcome, PassCost, ScoreResult},
    request::{Generate, Score},
};

/// Streams of random numbers that must differ from each other and from decoding's.
const COUNT_STREAM: u64 = 2;
const SUBSET_STREAM: u64 = 3;

/// An estimate in progress: the draws, then greedy decoding where that is asked for.
pub struct ScoreEstimate {
    request: Score,
    vocabulary: Arc<Vocabulary>,
    started: Instant,
    /// The values of the draws so far.
    values: Vec<f64>,
    draw: MaskedDraw,
    greedy: Option<Box<Diffusion>>,
    is_greedy: Option<bool>,
}

/// The input of a draw's pass.
struct MaskedDraw {
    canvas: Vec<u32>,
    unconditional: Option<Vec<u32>>,
    rows: Vec<LmHeadRow>,
    reach: PassReach,
}

impl ScoreEstimate {
    /// Begins this request, for a model with this vocabulary.
    #[must_use]
    pub fn new(request: Score, vocabulary: Arc<Vocabulary>) -> Self {
        Self {
            draw: MaskedDraw::new(&request, 0, vocabulary.mask_id()),
            started: Instant::now(),
            values: Vec::with_capacity(request.draws),
            greedy: None,
            is_greedy: None,
            request,
            vocabulary,
        }
    }

    /// Begins greedy decoding of a wholly masked answer, one most confident token a pass: does it give the answer?
    fn begin_greedy(&mut self) {
        let request = &self.request;
        let greedy = Generate {
            guidance: request.guidance,
            seed: request.seed,
            ..Generate::greedy(request.model, request.prompt.clone(), request.answer.len())
        };
        let mut greedy = Box::new(Diffusion::new(greedy, Arc::clone(&self.vocabulary)));
        greedy.start(&mut |_| {});
        self.greedy = Some(greedy);
    }
}

impl DiffusionRequest for ScoreEstimate {
    fn start(&mut self, emit: &mut dyn FnMut(Event)) {
        emit(Event::Started {
            blocks: 1,
            is_exact: true,
        });
        self.started = Instant::now();
    }

    fn passes(&self) -> Vec<Pass<'_>> {
        if let Some(greedy) = &self.greedy {
            return greedy.passes();
        }
        if self.is_done() {
            return Vec::new();
        }
        let MaskedDraw {
            canvas,
            unconditional,
            rows,
            reach,
        } = &self.draw;
        vec![Pass {
            number: self.values.len(),
            canvas,
            guidance: unconditional
                .as_deref()
                .map(|canvas| (canvas, self.request.guidance)),
            reach,
            rows,
            // Only the probabilities of given tokens are read, which noise would not change.
            temperature: 0.0,
            noise: Noise::new(self.request.seed),
            suppressed: &[],
            ranking: RankingScore::Confidence,
            top: false,
            renoised: None,
        }]
    }

    fn is_done(&self) -> bool {
        self.values.len() >= self.request.draws && self.greedy.is_none()
    }

    fn take(
        &mut self,
        candidates: &[Vec<Candidate>],
        cost: &PassCost,
        emit: &mut dyn FnMut(Event),
    ) {
        // Events of the check are dropped: to the caller it is part of the estimate.
        if let Some(mut greedy) = self.greedy.take() {
            greedy.take(candidates, cost, &mut |_| {});
            match greedy.is_done() {
                false => self.greedy = Some(greedy),
                true => {
                    self.is_greedy = Some(greedy.generated().tokens == self.request.answer);
                }
            }
            return;
        }
        let candidates = &candidates[0];
        // (L/ℓ) Σ log p over ℓ masked positions.
        let sum: f64 = candidates
            .iter()
            .map(|candidate| {
                candidate
                    .target_log_probability
                    .expect("every row of an estimate has a target")
            })
            .sum();
        let length = self.request.answer.len() as f64;
        self.values.push(sum * length / candidates.len() as f64);
        let (done, total) = (self.values.len(), self.request.draws);
        emit(Event::ScoreProgress { done, total });
        if done < total {
            self.draw = MaskedDraw::new(&self.request, done, self.vocabulary.mask_id());
        } else if self.request.check_greedy {
            self.begin_greedy();
        }
    }

    fn outcome(self: Box<Self>) -> Outcome {
        if !self.is_done() {
            return Outcome::Cancelled;
        }
        Outcome::Scored(ScoreResult {
            is_greedy: self.is_greedy,
            ..ScoreResult::of_draws(&self.values, self.started.elapsed())
        })
    }
}

impl MaskedDraw {
    fn new(request: &Score, index: usize, mask: u32) -> Self {
        let prompt = request.prompt.len();
        let mut canvas = [request.prompt.as_slice(), &request.answer].concat();
        let rows: Vec<LmHeadRow> = masked_positions(request, index)
            .into_iter()
            .map(|position| LmHeadRow {
                position: prompt + position,
                may_end: true,
                target: Some(request.answer[position]),
                watched: Vec::new(),
                is_check: false,
            })
            .collect();
        for row in &rows {
            canvas[row.position] = mask;
        }
        let unconditional = (request.guidance > 0.0).then(|| {
            // Guidance masks the prompt, not the answer: the same rows are read in both.
            let mut canvas = canvas.clone();
            canvas[..prompt].fill(mask);
            canvas
        });
        Self {
            reach: PassReach::whole(canvas.len()),
            canvas,
            unconditional,
            rows,
        }
    }
}

/// The draw's masked positions, rising: a random subset of stratified size.
fn masked_positions(request: &Score, draw: usize) -> Vec<usize> {
    let length = request.answer.len();
    let noise = Noise::new(request.seed);
    // The sizes of all draws start at a random point and go around 1…L in even strides.
    let start = noise.stream(COUNT_STREAM).uniform(0, 0, 0) * length as f64;
    let stride = draw as f64 * length as f64 / request.draws as f64;
    let count = (start + stride) as usize % length + 1;
    // Positions with the smallest random keys are a uniform subset.
    let keys = noise.stream(SUBSET_STREAM);
    let mut positions: Vec<usize> = (0..length).collect();
    positions.sort_by(|&a, &b| {
        let key = |position: usize| keys.uniform(draw as u64, position as u64, 0);
        key(a).total_cmp(&key(b))
    });
    positions.truncate(count);
    // The rows of a pass are in rising order.
    positions.sort_unstable();
    positions
}

#[cfg(test)]
mod tests;
