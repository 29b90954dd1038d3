//! Masked-diffusion decoding: blocks from left to right, in each a few passes that commit
//! the candidates a policy picks.
//!
//! References: `generate.py` of ML-GSAI/LLaDA; Fast-dLLM's sampler without cache for the
//! `threshold` and `factor` policies; Dream's own sampler for `dream`, and for ranking by margin and entropy. Differences, each with the same tokens where the
//! reference has any: steps need not be divisible (a remainder goes to the first blocks);
//! rows that can't be committed are not read; the unconditional branch runs only with
//! guidance; the mask and unused ids are never chosen; noise is added in the logarithm.
//! Beyond it: pinned positions, which guidance counts as prompt, and a stop at EOS.

use std::{sync::Arc, time::Instant};

use sluice_shared::sampling::{EosPolicy, Remasking};

use super::{Filling, Pass, Step, Vocabulary, commit_count};
use crate::{
    event::{Event, Finish, Generated, Outcome, PassCost, PassReport, Position, TokenState},
    ops::{Candidate, HeadRow, Noise, Ranking},
    request::{Generate, Slot},
};

/// Streams of random numbers that must not be each other's.
const GUMBEL_STREAM: u64 = 0;
const RANKING_STREAM: u64 = 1;

/// Consecutive positions of the part to fill.
struct Block {
    start: usize,
    end: usize,
    /// Passes that the reference schedule gives it; 0 when nothing is masked.
    steps: usize,
}

/// A canvas that is being filled.
pub struct Diffusion {
    request: Generate,
    vocabulary: Arc<Vocabulary>,
    started: Instant,
    /// Prompt, then the part to fill.
    canvas: Vec<u32>,
    /// The part to fill.
    positions: Vec<Position>,
    blocks: Vec<Block>,
    /// The open block; all are done when it is beyond the last.
    block: usize,
    passes_in_block: usize,
    /// Masks of the open block before its first pass.
    masked_at_start: usize,
    /// Positions before this one may not end the text.
    may_end_from: usize,
    /// Never chosen.
    suppressed: Vec<u32>,
    /// What the next pass reads.
    rows: Vec<HeadRow>,
    /// The canvas with everything masked that was given, where guidance asks for it.
    unconditional: Option<Vec<u32>>,
    passes: usize,
    finish: Option<Finish>,
    is_lossless: bool,
}

impl Diffusion {
    /// Of this request, for a model with this vocabulary.
    #[must_use]
    pub fn new(request: Generate, vocabulary: Arc<Vocabulary>) -> Self {
        let mask = vocabulary.mask_id();
        let slots = &request.canvas;
        let filled = slots.iter().map(|slot| match slot {
            Slot::Masked => mask,
            Slot::Pinned(id) => *id,
        });
        let positions = slots.iter().enumerate().map(|(position, slot)| {
            let (token, state) = match slot {
                Slot::Masked => (None, TokenState::Masked),
                Slot::Pinned(id) => (Some(*id), TokenState::Pinned),
            };
            Position {
                position,
                token,
                confidence: None,
                state,
                fresh: false,
            }
        });
        Self {
            canvas: request.prompt.iter().copied().chain(filled).collect(),
            positions: positions.collect(),
            blocks: blocks(slots, request.block_length, request.steps),
            block: 0,
            passes_in_block: 0,
            masked_at_start: 0,
            may_end_from: match request.eos {
                EosPolicy::Stop => request.may_end_from(),
                EosPolicy::Suppress | EosPolicy::Keep => 0,
            },
            suppressed: match request.eos {
                EosPolicy::Suppress => vocabulary.ends.clone(),
                EosPolicy::Stop | EosPolicy::Keep => Vec::new(),
            },
            rows: Vec::new(),
            unconditional: None,
            started: Instant::now(),
            passes: 0,
            finish: None,
            is_lossless: true,
            request,
            vocabulary,
        }
    }

    /// What it came to, so far or in the end. `peak_device_bytes` is left 0: the caller keeps the ledger.
    #[must_use]
    pub fn generated(mut self) -> Generated {
        Generated {
            tokens: self.canvas.split_off(self.request.prompt.len()),
            finish: self.finish.unwrap_or(Finish::Cancelled),
            passes: self.passes,
            elapsed: self.started.elapsed(),
            peak_device_bytes: 0,
            is_lossless: self.is_lossless,
        }
    }

    /// Closes blocks in which nothing is left to do, and makes ready for the next pass.
    fn advance(&mut self, emit: &mut dyn FnMut(Event)) {
        while let Some(&Block { start, end, .. }) = self.blocks.get(self.block) {
            let masked = self.masked(start, end).count();
            if masked > 0 && !self.has_ended() {
                if self.passes_in_block == 0 {
                    self.masked_at_start = masked;
                }
                self.rows = self.rows(start, end);
                self.unconditional = (self.request.guidance > 0.0).then(|| self.unconditional());
                return;
            }
            let ended = self.stop_at_end();
            emit(Event::BlockDone {
                block: self.block,
                passes: self.passes_in_block,
                positions: self.positions[start..end].to_vec(),
            });
            if ended {
                self.finish = Some(Finish::Eos);
                return;
            }
            self.block += 1;
            self.passes_in_block = 0;
        }
        self.finish = Some(Finish::Length);
    }

    fn masked(&self, start: usize, end: usize) -> impl Iterator<Item = usize> + '_ {
        (start..end).filter(|&position| !is_fixed(self.positions[position].state))
    }

    /// The head reads what may be committed, and nothing else.
    fn rows(&self, start: usize, end: usize) -> Vec<HeadRow> {
        self.masked(start, end)
            .map(|position| HeadRow {
                position: self.request.prompt.len() + position,
                may_end: position >= self.may_end_from,
                target: None,
            })
            .collect()
    }

    /// The canvas with everything masked that was given: prompt and pinned positions.
    fn unconditional(&self) -> Vec<u32> {
        let mask = self.vocabulary.mask_id();
        let prompt = self.request.prompt.len();
        let mut canvas = self.canvas.clone();
        canvas[..prompt].fill(mask);
        for position in &self.positions {
            if position.state == TokenState::Pinned {
                canvas[prompt + position.position] = mask;
            }
        }
        canvas
    }

    /// Ranks the candidates and commits as many as the policy says; the others are shown as
    /// provisional. Ties go to the lower position.
    fn commit(&mut self, candidates: &[Candidate], step: Step) {
        let prompt = self.request.prompt.len();
        let noise = Noise::new(self.request.seed).stream(RANKING_STREAM);
        for position in &mut self.positions {
            position.fresh = false;
        }
        let mut ranked: Vec<(f64, usize)> = Vec::with_capacity(self.rows.len());
        for (row, candidate) in self.rows.iter().zip(candidates) {
            let score = match self.request.remasking {
                Remasking::LowConfidence | Remasking::Margin | Remasking::Entropy => candidate.rank,
                Remasking::Random => noise.uniform(self.passes as u64, row.position as u64, 0),
            };
            let position = &mut self.positions[row.position - prompt];
            position.token = Some(candidate.token);
            position.confidence = Some(candidate.confidence as f32);
            position.state = TokenState::Provisional;
            ranked.push((score, row.position));
        }
        // A stable sort keeps the rising order of positions among equals.
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let scores: Vec<f64> = ranked.iter().map(|(score, _)| *score).collect();
        let count = commit_count(&self.request.policy, step, &scores);
        for &(_, at) in &ranked[..count] {
            let position = &mut self.positions[at - prompt];
            position.state = TokenState::Committed;
            position.fresh = true;
            self.canvas[at] = position.token.expect("a candidate was just put here");
        }
    }

    /// Where the text ends: an end token with nothing masked before it, after every pin.
    fn end(&self) -> Option<usize> {
        if self.request.eos != EosPolicy::Stop {
            return None;
        }
        let ends = &self.vocabulary.ends;
        self.positions
            .iter()
            .take_while(|position| is_fixed(position.state))
            .skip(self.may_end_from)
            .find(|position| position.token.is_some_and(|token| ends.contains(&token)))
            .map(|position| position.position)
    }

    fn has_ended(&self) -> bool {
        self.end().is_some()
    }

    /// If the text has ended, fills what is left with EOS.
    fn stop_at_end(&mut self) -> bool {
        let Some(end) = self.end() else {
            return false;
        };
        let eos = self.vocabulary.ends[0];
        let prompt = self.request.prompt.len();
        for position in &mut self.positions[end + 1..] {
            *position = Position {
                token: Some(eos),
                confidence: None,
                state: TokenState::Committed,
                fresh: false,
                ..*position
            };
            self.canvas[prompt + position.position] = eos;
        }
        true
    }
}

impl Filling for Diffusion {
    fn start(&mut self, emit: &mut dyn FnMut(Event)) {
        emit(Event::Started {
            blocks: self.blocks.len(),
            keeps_precision: true,
        });
        self.started = Instant::now();
        self.advance(emit);
    }

    fn pass(&self) -> Option<Pass<'_>> {
        if self.finish.is_some() {
            return None;
        }
        let request = &self.request;
        Some(Pass {
            number: self.passes,
            canvas: &self.canvas,
            guidance: self
                .unconditional
                .as_deref()
                .map(|canvas| (canvas, request.guidance)),
            rows: &self.rows,
            temperature: request.temperature,
            noise: Noise::new(request.seed).stream(GUMBEL_STREAM),
            suppressed: &self.suppressed,
            ranking: match request.remasking {
                Remasking::LowConfidence | Remasking::Random => Ranking::Confidence,
                Remasking::Margin => Ranking::Margin,
                Remasking::Entropy => Ranking::Entropy,
            },
        })
    }

    fn take(&mut self, candidates: &[Candidate], cost: &PassCost, emit: &mut dyn FnMut(Event)) {
        let Block { start, end, steps } = self.blocks[self.block];
        self.is_lossless &= cost.weights.is_lossless;
        let rows = self.pass().map_or(0, |pass| pass.layer_rows());
        self.commit(
            candidates,
            Step {
                index: self.passes_in_block,
                steps,
                masked_at_start: self.masked_at_start,
            },
        );
        self.passes += 1;
        self.passes_in_block += 1;
        emit(Event::Pass(PassReport {
            pass: self.passes,
            block: self.block,
            pass_in_block: self.passes_in_block,
            positions: self.positions[start..end].to_vec(),
            committed: self.positions.iter().filter(|p| is_fixed(p.state)).count(),
            rows,
            head_rows: self.rows.len(),
            elapsed: self.started.elapsed(),
            cost: *cost,
        }));
        self.advance(emit);
    }

    fn outcome(self: Box<Self>) -> Outcome {
        Outcome::Generated(self.generated())
    }
}

fn is_fixed(state: TokenState) -> bool {
    matches!(state, TokenState::Committed | TokenState::Pinned)
}

/// Cuts the part to fill into blocks and shares the steps out over those with masks: evenly,
/// a remainder to the first ones, at least one each.
fn blocks(slots: &[Slot], block_length: usize, steps: usize) -> Vec<Block> {
    let mut blocks: Vec<Block> = (0..slots.len())
        .step_by(block_length)
        .map(|start| Block {
            start,
            end: slots.len().min(start + block_length),
            steps: 0,
        })
        .collect();
    let open = |block: &&mut Block| slots[block.start..block.end].contains(&Slot::Masked);
    let count = blocks.iter_mut().filter(open).count();
    for (index, block) in blocks.iter_mut().filter(open).enumerate() {
        block.steps = (steps / count + usize::from(index < steps % count)).max(1);
    }
    blocks
}

#[cfg(test)]
mod tests;
