//! Masked-diffusion decoding: blocks from left to right, in each a few passes that commit
//! the candidates a policy picks.
//!
//! References: `generate.py` of ML-GSAI/LLaDA; Fast-dLLM's sampler without cache for the
//! `threshold` and `factor` policies; Dream's own sampler for `dream`, and for ranking by margin and entropy. Differences, each with the same tokens where the
//! reference has any: steps need not be divisible (a remainder goes to the first blocks);
//! rows that can't be committed are not read; the unconditional branch runs only with
//! guidance; the mask and unused ids are never chosen; noise is added in the logarithm.
//! Beyond it: pinned positions, which guidance counts as prompt, and a stop at EOS.

use std::time::Instant;

use sluice_shared::sampling::{EosPolicy, Remasking};

use super::{Denoiser, Pass, Step, commit_count};
use crate::{
    error::EngineError,
    event::{Event, Finish, Generated, PassReport, Position, TokenState},
    model::transformer::Interrupt,
    ops::{Candidate, HeadRow, Noise, Ranking},
    request::{Generate, Slot},
};

/// Streams of random numbers that must not be each other's.
const GUMBEL_STREAM: u64 = 0;
const RANKING_STREAM: u64 = 1;

/// Fills the request's canvas, telling `emit` of every pass. `peak_device_bytes` of the
/// result is left 0: the caller keeps the ledger.
///
/// # Errors
/// When a pass fails. A cancelled one is no error: the result then tells how far it came.
pub fn generate(
    request: &Generate,
    denoiser: &mut dyn Denoiser,
    emit: &mut dyn FnMut(Event),
) -> Result<Generated, EngineError> {
    let mut run = Run::new(request, denoiser);
    emit(Event::Started {
        blocks: run.blocks.len(),
        keeps_precision: true,
    });
    let finish = run.blocks_in_turn(emit)?;
    Ok(Generated {
        tokens: run.canvas.split_off(request.prompt.len()),
        finish,
        passes: run.passes,
        elapsed: run.started.elapsed(),
        peak_device_bytes: 0,
        is_lossless: run.is_lossless,
    })
}

/// Consecutive positions of the part to fill.
struct Block {
    start: usize,
    end: usize,
    /// Passes that the reference schedule gives it; 0 when nothing is masked.
    steps: usize,
}

struct Run<'a> {
    request: &'a Generate,
    denoiser: &'a mut dyn Denoiser,
    started: Instant,
    /// Prompt, then the part to fill.
    canvas: Vec<u32>,
    /// The part to fill.
    positions: Vec<Position>,
    blocks: Vec<Block>,
    /// Positions before this one may not end the text.
    may_end_from: usize,
    passes: usize,
    is_lossless: bool,
}

impl<'a> Run<'a> {
    fn new(request: &'a Generate, denoiser: &'a mut dyn Denoiser) -> Self {
        let mask = denoiser.vocabulary().mask_id();
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
            may_end_from: match request.eos {
                EosPolicy::Stop => request.may_end_from(),
                EosPolicy::Suppress | EosPolicy::Keep => 0,
            },
            started: Instant::now(),
            passes: 0,
            is_lossless: true,
            request,
            denoiser,
        }
    }

    fn blocks_in_turn(&mut self, emit: &mut dyn FnMut(Event)) -> Result<Finish, EngineError> {
        for index in 0..self.blocks.len() {
            let passes = match self.fill_block(index, emit) {
                Ok(passes) => passes,
                Err(Interrupt::Cancelled) => return Ok(Finish::Cancelled),
                Err(Interrupt::Failed(error)) => return Err(error),
            };
            let ended = self.stop_at_end();
            let Block { start, end, .. } = self.blocks[index];
            emit(Event::BlockDone {
                block: index,
                passes,
                positions: self.positions[start..end].to_vec(),
            });
            if ended {
                return Ok(Finish::Eos);
            }
        }
        Ok(Finish::Length)
    }

    /// Passes until no mask is left in the block, or the text has ended in it.
    fn fill_block(
        &mut self,
        index: usize,
        emit: &mut dyn FnMut(Event),
    ) -> Result<usize, Interrupt> {
        let Block { start, end, steps } = self.blocks[index];
        let masked_at_start = self.masked(start, end).count();
        let mut passes = 0;
        while self.masked(start, end).next().is_some() && !self.has_ended() {
            let step = Step {
                index: passes,
                steps,
                masked_at_start,
            };
            let pass_started = Instant::now();
            let stream_before = self.denoiser.weights().stream;
            let rows = self.rows(start, end);
            let result = self.pass(&rows);
            for notice in self.denoiser.take_notices() {
                emit(Event::Notice(notice));
            }
            let (layer_rows, candidates) = result?;
            let weights = self.denoiser.weights();
            self.is_lossless &= weights.is_lossless;
            self.commit(&rows, &candidates, step);
            self.passes += 1;
            passes += 1;
            emit(Event::Pass(PassReport {
                pass: self.passes,
                block: index,
                pass_in_block: passes,
                positions: self.positions[start..end].to_vec(),
                committed: self.positions.iter().filter(|p| is_fixed(p.state)).count(),
                rows: layer_rows,
                head_rows: rows.len(),
                pass_time: pass_started.elapsed(),
                elapsed: self.started.elapsed(),
                device_bytes: self.denoiser.device_bytes(),
                // Both begin anew when another plan is put in force.
                waited: weights.stream.waited.saturating_sub(stream_before.waited),
                streamed_bytes: weights.stream.bytes.saturating_sub(stream_before.bytes),
                weights,
            }));
        }
        Ok(passes)
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

    fn pass(&mut self, rows: &[HeadRow]) -> Result<(usize, Vec<Candidate>), Interrupt> {
        let request = self.request;
        let unconditional = (request.guidance > 0.0).then(|| self.unconditional());
        let suppressed = match request.eos {
            EosPolicy::Suppress => self.denoiser.vocabulary().ends.clone(),
            EosPolicy::Stop | EosPolicy::Keep => Vec::new(),
        };
        let pass = Pass {
            number: self.passes,
            canvas: &self.canvas,
            guidance: unconditional
                .as_deref()
                .map(|canvas| (canvas, request.guidance)),
            rows,
            temperature: request.temperature,
            noise: Noise::new(request.seed).stream(GUMBEL_STREAM),
            suppressed: &suppressed,
            ranking: match request.remasking {
                Remasking::LowConfidence | Remasking::Random => Ranking::Confidence,
                Remasking::Margin => Ranking::Margin,
                Remasking::Entropy => Ranking::Entropy,
            },
        };
        let candidates = self.denoiser.candidates(&pass)?;
        Ok((pass.layer_rows(), candidates))
    }

    /// The canvas with everything masked that was given: prompt and pinned positions.
    fn unconditional(&self) -> Vec<u32> {
        let mask = self.denoiser.vocabulary().mask_id();
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
    fn commit(&mut self, rows: &[HeadRow], candidates: &[Candidate], step: Step) {
        let prompt = self.request.prompt.len();
        let noise = Noise::new(self.request.seed).stream(RANKING_STREAM);
        for position in &mut self.positions {
            position.fresh = false;
        }
        let mut ranked: Vec<(f64, usize)> = Vec::with_capacity(rows.len());
        for (row, candidate) in rows.iter().zip(candidates) {
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
        let ends = &self.denoiser.vocabulary().ends;
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
        let eos = self.denoiser.vocabulary().ends[0];
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
