//! The head's reduction: from rows to one candidate each, in pieces of the vocabulary, so
//! that no matrix of canvas × vocabulary ever exists.

use rayon::prelude::*;

use super::{Activation, Body, Noise, Ops, cpu::Cpu, gpu::CardHead};
use crate::{device::DeviceBuffer, error::EngineError, ledger::Kind, residency::Weight};

/// Logits that exist at once: 4 MiB, or a piece of the least size where that is more.
const PIECE_LOGITS: usize = 1 << 20;
/// Columns of a piece, at least: enough to keep every thread's kernel busy.
const PIECE_COLUMNS_MIN: usize = 256;

/// What a row is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadRow {
    /// Its place in the canvas, which fixes its noise.
    pub position: usize,
    /// Whether an end token may be chosen.
    pub may_end: bool,
    /// A token whose log-probability is asked for.
    pub target: Option<u32>,
}

/// What rows are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ranking {
    /// The chosen token's probability.
    #[default]
    Confidence,
    /// By how much the most probable token is more probable than the next one.
    Margin,
    /// How certain the row is altogether: Σ p ln p over all tokens, at most 0.
    Entropy,
}

/// How a token is chosen from a row's logits.
#[derive(Debug, Clone)]
pub struct Choice<'a> {
    /// Scale of the Gumbel noise; 0: the largest logit.
    pub temperature: f64,
    /// Where noise comes from.
    pub noise: Noise,
    /// Number of the pass, which fixes the noise with the position.
    pub pass: usize,
    /// Guidance weight w: rows come in two halves, conditional and unconditional, and the
    /// logits are u + (w + 1)(c − u).
    pub guidance: Option<f64>,
    /// Ids from here on are unused rows of the head, never chosen.
    pub vocabulary: usize,
    /// Never chosen: the mask.
    pub mask_token_id: u32,
    /// Chosen only in rows that may end.
    pub end_tokens: &'a [u32],
    /// Tokens whose logit counts as −∞, for choice and probability alike, as in the
    /// reference's `logits_eos_inf`, which knows a single end token.
    pub suppressed: &'a [u32],
    /// What [`Candidate::rank`] is.
    pub ranking: Ranking,
}

/// What a row would become.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The chosen token.
    pub token: u32,
    /// Its probability by the un-noised, un-tempered logits.
    pub confidence: f64,
    /// What it is ranked by, by the same logits; the highest first.
    pub rank: f64,
    /// Log-probability of the row's target.
    pub target_log_probability: Option<f64>,
}

/// A row's state between pieces.
#[derive(Clone, Copy)]
pub(super) struct Running {
    /// Largest logit so far, and the sum of `exp(logit - max)`.
    pub(super) max: f32,
    pub(super) sum: f64,
    /// Best noised logit, its token and its plain logit.
    pub(super) best_score: f64,
    pub(super) best: Option<u32>,
    pub(super) best_logit: f32,
    pub(super) target_logit: f32,
    /// Second largest logit so far.
    pub(super) second: f32,
    /// Sum of `logit * exp(logit - max)`, where rows are ranked by their entropy.
    pub(super) weighted: f64,
}

/// Rows on their way through the head, a piece of the vocabulary at a time.
pub struct HeadReduction<'a> {
    rows: &'a [HeadRow],
    choice: &'a Choice<'a>,
    /// Logits of `columns` of the vocabulary.
    logits: DeviceBuffer<f32>,
    columns: usize,
    /// Their copy, where a card multiplies and its kernel knows no such ranking.
    copied: Vec<f32>,
    state: State,
}

/// Where the rows' states are.
enum State {
    Here(Vec<Running>),
    OnCard(Box<CardHead>),
}

impl Ops {
    /// Begins to reduce rows to a candidate each, by a head whose largest part has `part_rows` of the vocabulary.
    ///
    /// The probability's denominator is the whole head's, as the reference computes it; ties go to the lower id.
    ///
    /// # Errors
    /// When memory can't be had.
    pub fn start_head<'a>(
        &self,
        rows: &'a [HeadRow],
        choice: &'a Choice<'a>,
        part_rows: usize,
    ) -> Result<HeadReduction<'a>, EngineError> {
        let inputs = rows.len() * choice.branches();
        let columns = (PIECE_LOGITS / inputs.max(1))
            .max(PIECE_COLUMNS_MIN)
            .min(part_rows);
        let (device, ledger) = (&self.device, &self.ledger);
        let logits = DeviceBuffer::new(device, ledger, Kind::Head, columns * inputs)?;
        // A card's kernel keeps what confidences need; for other rankings its logits are reduced here.
        let is_here = choice.ranking != Ranking::Confidence;
        let state = match &self.body {
            Body::Card(_) if is_here => State::Here(vec![Running::default(); rows.len()]),
            Body::Card(card) => {
                State::OnCard(Box::new(card.start_head(rows, choice, device, ledger)?))
            }
            Body::Cpu(_) => State::Here(vec![Running::default(); rows.len()]),
            Body::Rehearsal => {
                if device.is_card() {
                    CardHead::reserve(rows.len(), device, ledger)?;
                }
                State::Here(Vec::new())
            }
        };
        let copied = match &self.body {
            Body::Card(_) if is_here => columns * inputs,
            _ => 0,
        };
        Ok(HeadReduction {
            rows,
            choice,
            logits,
            columns,
            copied: vec![0.0; copied],
            state,
        })
    }

    /// Takes the next part of the head, whose first row is `first` of the vocabulary, for each row of `x` (after the
    /// final norm). With guidance, `x` has the conditional rows first and as many unconditional ones after them.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When rows and `x` don't match, or the part is larger than was said.
    pub fn reduce_head(
        &self,
        reduction: &mut HeadReduction<'_>,
        x: &Activation,
        part: &Weight<'_>,
        first: usize,
    ) -> Result<(), EngineError> {
        assert_eq!(x.len(), reduction.rows.len() * reduction.choice.branches());
        for from in (0..part.rows).step_by(reduction.columns.max(1)) {
            let to = part.rows.min(from + reduction.columns);
            let piece = part.rows(from, to);
            match &self.body {
                Body::Cpu(cpu) => reduction.take_here(cpu, x, &piece, first + from),
                Body::Card(card) => {
                    let logits = reduction.logits.span();
                    match &mut reduction.state {
                        State::OnCard(state) => {
                            card.reduce_head(state, logits, x, &piece, first + from)?;
                        }
                        State::Here(running) => {
                            let count = x.len() * piece.rows;
                            let copied = &mut reduction.copied[..count];
                            let place = logits.part(0, size_of_val(copied));
                            card.logits(x, &piece, place)?;
                            card.download(place, copied)?;
                            let (rows, choice) = (reduction.rows, reduction.choice);
                            let first = first + from;
                            self.device
                                .run(|| reduce(copied, piece.rows, first, rows, choice, running));
                        }
                    }
                }
                Body::Rehearsal => {}
            }
        }
        Ok(())
    }
}

impl HeadReduction<'_> {
    fn take_here(&mut self, cpu: &Cpu, x: &Activation, piece: &Weight<'_>, first: usize) {
        let State::Here(running) = &mut self.state else {
            unreachable!("began on the CPU")
        };
        let (rows, choice, width) = (self.rows, self.choice, piece.rows);
        let logits = &mut self.logits.host_mut()[..x.len() * width];
        cpu.run(|| {
            cpu.multiply_here(x, piece, logits, false);
            reduce(logits, width, first, rows, choice, running);
        });
    }

    /// A candidate for each row, once the whole head was taken.
    ///
    /// # Errors
    /// When a row's logits are not numbers, or the device fails.
    pub fn candidates(self) -> Result<Vec<Candidate>, EngineError> {
        let running = match self.state {
            State::Here(running) => running,
            State::OnCard(state) => state.read(self.rows.len())?,
        };
        let pairs = running.iter().zip(self.rows);
        let ranking = self.choice.ranking;
        pairs
            .map(|(running, row)| running.candidate(row, ranking))
            .collect()
    }
}

/// Takes logits of `width` of the vocabulary from `first` on into the rows' states, on the device's threads.
fn reduce(
    logits: &mut [f32],
    width: usize,
    first: usize,
    rows: &[HeadRow],
    choice: &Choice<'_>,
    running: &mut [Running],
) {
    let (conditional, unconditional) = logits.split_at_mut(rows.len() * width);
    conditional
        .par_chunks_exact_mut(width)
        .zip(rows)
        .zip(running.par_iter_mut())
        .enumerate()
        .for_each(|(index, ((logits, row), running))| {
            if let Some(w) = choice.guidance {
                let plain = &unconditional[index * width..(index + 1) * width];
                guide(logits, plain, w as f32);
            }
            running.take(logits, first, row, choice);
        });
}

impl Choice<'_> {
    /// Rows of the input for each row that is read.
    pub(super) fn branches(&self) -> usize {
        if self.guidance.is_some() { 2 } else { 1 }
    }
}

/// `u + (w + 1)(c − u)`, in the place of `c`.
fn guide(conditional: &mut [f32], unconditional: &[f32], w: f32) {
    for (c, u) in conditional.iter_mut().zip(unconditional) {
        *c = u + (w + 1.0) * (*c - u);
    }
}

impl Default for Running {
    fn default() -> Self {
        Self {
            max: f32::NEG_INFINITY,
            sum: 0.0,
            best_score: f64::NEG_INFINITY,
            best: None,
            best_logit: f32::NEG_INFINITY,
            target_logit: f32::NEG_INFINITY,
            second: f32::NEG_INFINITY,
            weighted: 0.0,
        }
    }
}

impl Running {
    fn take(&mut self, logits: &mut [f32], from: usize, row: &HeadRow, choice: &Choice<'_>) {
        let len = logits.len();
        let inside = |id: u32| (id as usize).checked_sub(from).filter(|&i| i < len);
        for &id in choice.suppressed {
            if let Some(index) = inside(id) {
                logits[index] = f32::NEG_INFINITY;
            }
        }
        if let Some(index) = row.target.and_then(inside) {
            self.target_logit = logits[index];
        }
        self.add_to_sum(logits, choice.ranking);
        // What can't be chosen: few ids, so they are lifted out instead of asked for at each.
        for &id in std::iter::once(&choice.mask_token_id)
            .chain(choice.end_tokens.iter().filter(|_| !row.may_end))
        {
            if let Some(index) = inside(id) {
                logits[index] = f32::NEG_INFINITY;
            }
        }
        let used = choice.vocabulary.saturating_sub(from).min(logits.len());
        self.choose(&logits[..used], from, row, choice);
    }

    fn add_to_sum(&mut self, logits: &[f32], ranking: Ranking) {
        if ranking == Ranking::Margin {
            let (mut first, mut second) = (self.max, self.second);
            for &logit in logits {
                second = second.max(first.min(logit));
                first = first.max(logit);
            }
            self.second = second;
        }
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if max > self.max {
            let shrunk = f64::from((self.max - max).exp());
            self.sum *= shrunk;
            self.weighted *= shrunk;
            self.max = max;
        }
        if self.max == f32::NEG_INFINITY {
            return;
        }
        // In `f64`: where one token is all but certain, the others' terms vanish beside its 1
        // in `f32`, and near-certain rows could no longer be ranked.
        self.sum += logits
            .iter()
            .map(|logit| f64::from((logit - self.max).exp()))
            .sum::<f64>();
        if ranking == Ranking::Entropy {
            let possible = logits.iter().filter(|logit| **logit > f32::NEG_INFINITY);
            self.weighted += possible
                .map(|&logit| f64::from((logit - self.max).exp()) * f64::from(logit))
                .sum::<f64>();
        }
    }

    fn choose(&mut self, logits: &[f32], from: usize, row: &HeadRow, choice: &Choice<'_>) {
        for (index, &logit) in logits.iter().enumerate() {
            let mut score = f64::from(logit);
            let token = from + index;
            if choice.temperature > 0.0 && logit > f32::NEG_INFINITY {
                score += choice.temperature
                    * choice
                        .noise
                        .gumbel(choice.pass as u64, row.position as u64, token as u64);
            }
            if score > self.best_score {
                self.best_score = score;
                self.best = Some(token as u32);
                self.best_logit = logit;
            }
        }
    }

    fn candidate(&self, row: &HeadRow, ranking: Ranking) -> Result<Candidate, EngineError> {
        let log_sum = f64::from(self.max) + self.sum.ln();
        let log_probability = |logit: f32| f64::from(logit) - log_sum;
        let Some(token) = self.best.filter(|_| log_sum.is_finite()) else {
            return Err(EngineError::NotANumber {
                position: row.position,
            });
        };
        let confidence = log_probability(self.best_logit).exp();
        Ok(Candidate {
            token,
            confidence,
            rank: match ranking {
                Ranking::Confidence => confidence,
                Ranking::Margin => {
                    log_probability(self.max).exp() - log_probability(self.second).exp()
                }
                Ranking::Entropy => self.weighted / self.sum - log_sum,
            },
            target_log_probability: row.target.map(|_| log_probability(self.target_logit)),
        })
    }
}

#[cfg(test)]
mod tests;
