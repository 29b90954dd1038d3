//! Decoding with a model that denoises canvases of random tokens (DiffusionGemma): a prompt is read causally; behind it each
//! pass over a canvas accepts the tokens of its surest rows, and puts fresh random ones in the place of all others. Accepted
//! rows are not final either: the next pass may choose others. What stands in the end is the most probable token of each row of
//! the last pass, and is read like the prompt before the next canvas begins.
//!
//! Reference: `generate` of `DiffusionGemmaForBlockDiffusion` in transformers 5.23, with its `EntropyBoundSampler` (arXiv
//! 2505.24857). Differences: chance belongs to seed, pass and position; a text ends at its first end token, and no padding
//! follows.

use std::{ops::Range, sync::Arc};

use sluice_formats::noise::Noise;
use sluice_ops::{Candidate, RankingScore, WINDOW_PASS_ROWS};
use sluice_plan::MLP_ROWS;
use sluice_shared::sampling::EosPolicy;

use super::{
    BlockSight, DiffusionRequest, Pass, RenoisedPass, Vocabulary,
    policy::{Renoising, policy},
    written::WrittenText,
};
use crate::{
    event::{Event, FinishReason, GenerationResult, Outcome, PassCost, TokenState},
    request::{Generate, RecordedDraws},
};

/// The token index of fresh tokens' noise, which no token has.
const FRESH: u64 = u64::MAX;

/// A request that is decoded so. Its blocks are canvases.
pub struct RenoisedText {
    text: WrittenText,
    rule: Renoising,
    /// Passes over the open canvas.
    steps: usize,
    /// The most probable tokens of the last of them.
    most_probable: Vec<u32>,
    draws: Draws,
}

/// Where random tokens come from.
enum Draws {
    /// The seed.
    Seeded(Noise),
    /// A reference's record, and how many draws of it were taken.
    Recorded(RecordedDraws, usize),
}

impl Draws {
    /// A random token for each of these positions.
    fn fresh(&mut self, pass: usize, positions: Range<usize>, vocabulary: usize) -> Vec<u32> {
        match self {
            Self::Seeded(noise) => {
                let token = |position| noise.uniform(pass as u64, position as u64, FRESH);
                let token = |position| (token(position) * vocabulary as f64) as u32;
                positions.map(token).collect()
            }
            Self::Recorded(..) => self.recorded(),
        }
    }

    /// The tokens that were drawn of the distributions of a pass.
    fn of_rows(&mut self, candidates: &[Candidate]) -> Vec<u32> {
        match self {
            Self::Seeded(_) => candidates.iter().map(|found| found.token).collect(),
            Self::Recorded(..) => self.recorded(),
        }
    }

    /// The next draw of a record; none behind its end, or without one.
    fn recorded(&mut self) -> Vec<u32> {
        let Self::Recorded(RecordedDraws(all), next) = self else {
            return Vec::new();
        };
        *next += 1;
        all.get(*next - 1).cloned().unwrap_or_default()
    }
}

impl RenoisedText {
    /// Begins this request, if its policy is for that.
    #[must_use]
    pub fn new(request: &Generate, vocabulary: &Arc<Vocabulary>) -> Option<Self> {
        let rule = policy(&request.policy).needs().renoising?;
        Some(Self {
            text: WrittenText::new(request, vocabulary),
            rule,
            steps: 0,
            most_probable: Vec::new(),
            draws: match &request.draws {
                Some(draws) => Draws::Recorded(draws.clone(), 0),
                None => Draws::Seeded(Noise::new(request.seed)),
            },
        })
    }

    /// The result so far or in the end. `peak_device_bytes` is 0: the caller keeps the ledger.
    #[must_use]
    pub fn generated(self) -> GenerationResult {
        self.text.generated()
    }

    /// The open canvas, which may reach beyond the part to fill.
    fn open(&self) -> Range<usize> {
        self.text.written..self.text.written + self.text.request.block_length
    }

    /// Whether the next pass is over the open canvas, and not one that reads text.
    fn denoises(&self) -> bool {
        self.text.cached == self.text.written
    }

    /// Prepares the next pass: of text that the KV cache lacks, or else of the open canvas.
    fn prepare(&mut self) {
        let (computed, sight) = match self.denoises() {
            false => {
                let most = self.text.cached + MLP_ROWS.min(WINDOW_PASS_ROWS);
                (
                    self.text.cached..self.text.written.min(most),
                    BlockSight::Causal,
                )
            }
            true => (self.open(), BlockSight::Open),
        };
        if self.denoises() && self.steps == 0 {
            let fresh = self
                .draws
                .fresh(self.text.passes, self.open(), self.text.vocabulary.size);
            self.text.sequence.truncate(self.text.written);
            self.text.sequence.extend(fresh);
        }
        // Nothing is asked of text.
        let read = if self.denoises() { self.open() } else { 0..0 };
        self.text.prepare(computed, read, sight);
    }

    /// What logits of the next pass over a canvas are divided by: less from pass to pass.
    fn temperature(&self) -> f64 {
        let Renoising {
            coolest,
            hottest,
            steps,
            ..
        } = self.rule;
        let left = (steps - self.steps) as f64 / steps as f64;
        coolest + (hottest - coolest) * left
    }

    /// Accepts rows of a pass over the canvas, and finishes it where that was the last.
    fn denoise(&mut self, candidates: &[Candidate]) {
        let open = self.open();
        // The rank is the negated entropy.
        let entropies: Vec<f64> = candidates.iter().map(|found| -found.rank).collect();
        let accepted = accepted(&entropies, self.rule.bound);
        let drawn = self.draws.of_rows(candidates);
        let fresh = self.draws.fresh(
            self.text.passes + 1,
            open.clone(),
            self.text.vocabulary.size,
        );
        for (row, position) in open.clone().enumerate() {
            let from = if accepted[row] { &drawn } else { &fresh };
            // A record that is too short leaves what stands there.
            if let Some(token) = from.get(row) {
                self.text.sequence[position] = *token;
            }
        }
        let most_probable: Vec<u32> = candidates.iter().map(best).collect();
        self.steps += 1;
        let mean = entropies.iter().sum::<f64>() / entropies.len().max(1) as f64;
        let is_settled = most_probable == self.most_probable && mean < self.rule.sure;
        self.most_probable = most_probable;
        let is_last = is_settled || self.steps == self.rule.steps;
        let first = self.text.answered();
        for (row, position) in self
            .text
            .positions
            .iter_mut()
            .skip(first)
            .take(open.len())
            .enumerate()
        {
            position.token = Some(self.most_probable[row]);
            position.confidence = Some(candidates[row].confidence as f32);
            position.state = TokenState::Provisional;
            position.is_fresh = accepted[row];
        }
        if is_last {
            self.finish_canvas();
        }
    }

    /// Writes the most probable tokens of the last pass for good, up to an end.
    fn finish_canvas(&mut self) {
        let first = self.text.answered();
        let room = self.text.positions.len() - first;
        let mut tokens = std::mem::take(&mut self.most_probable);
        tokens.truncate(room);
        let ends = |token: &u32| {
            self.text.request.eos == EosPolicy::Stop && self.text.vocabulary.ends.contains(token)
        };
        let end = tokens.iter().position(ends);
        if let Some(end) = end {
            tokens.truncate(end + 1);
        }
        for position in &mut self.text.positions[first..first + tokens.len()] {
            position.state = TokenState::Committed;
        }
        self.text.sequence.truncate(self.text.written);
        self.text.written += tokens.len();
        self.text.finish = match end {
            Some(_) => Some(FinishReason::Eos),
            None if tokens.len() == room => Some(FinishReason::Length),
            None => None,
        };
        self.text.sequence.extend(tokens);
        self.steps = 0;
    }
}

/// Which rows are accepted: in rising order of entropy, while the entropies of those before come to no more than the bound.
fn accepted(entropies: &[f64], bound: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..entropies.len()).collect();
    // A stable sort: of equal rows the first comes first.
    order.sort_by(|&a, &b| entropies[a].total_cmp(&entropies[b]));
    let mut accepted = vec![false; entropies.len()];
    let mut before = 0.0;
    for row in order {
        accepted[row] = before <= bound;
        before += entropies[row];
    }
    accepted
}

/// A row's most probable token.
fn best(candidate: &Candidate) -> u32 {
    (candidate.evidence.top).map_or(candidate.token, |top| top.token)
}

impl DiffusionRequest for RenoisedText {
    fn start(&mut self, emit: &mut dyn FnMut(Event)) {
        self.text.start(emit);
        self.prepare();
    }

    fn passes(&self) -> Vec<Pass<'_>> {
        if self.is_done() {
            return Vec::new();
        }
        let renoised = RenoisedPass {
            is_first: self.steps == 0,
            temperature: self.temperature(),
        };
        vec![Pass {
            number: self.text.passes,
            // That of the distribution itself: its logits are divided before.
            temperature: 1.0,
            ranking: RankingScore::Entropy,
            top: true,
            renoised: self.denoises().then_some(renoised),
            ..self.text.pass()
        }]
    }

    fn is_done(&self) -> bool {
        self.text.is_done()
    }

    fn take(
        &mut self,
        candidates: &[Vec<Candidate>],
        cost: &PassCost,
        emit: &mut dyn FnMut(Event),
    ) {
        let (rows, head_rows) = self.text.begin(cost);
        match self.denoises() {
            false => self.text.cached += rows,
            true => self.denoise(&candidates[0]),
        }
        self.text.report(cost, (rows, head_rows), emit);
        if !self.is_done() {
            self.prepare();
        }
    }

    fn outcome(self: Box<Self>) -> Outcome {
        Outcome::Generated(self.generated())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_accepted_while_those_before_fit_the_bound() {
        let entropies = [0.5, 0.05, 0.2, 0.04];
        // 0.04 + 0.05 = 0.09 before the third, 0.29 before the last.
        assert_eq!(accepted(&entropies, 0.09001), [false, true, true, true]);
        assert_eq!(accepted(&entropies, 0.08), [false, true, false, true]);
        assert_eq!(accepted(&[0.5], 0.0), [true]);
        assert!(accepted(&[], 0.1).is_empty());
    }
}
