//! Decoding from left to right with a model that also fills blocks: every token is one that a causal pass predicts. Before
//! it, a pass over a block of masks may draft several; the causal pass then reads all of them, and as many count as it
//! would have predicted itself. So the tokens are those of one causal pass for each, noise included.
//!
//! Reference: linear self-speculation of Nemotron-Labs-Diffusion, as mlx-vlm's port has it: a block begins with the last
//! token, whose successor is the first to be drafted. Differences: a text ends at its first end token; chance belongs to a
//! position, so that drafts are drawn as they are verified.

use std::{ops::Range, sync::Arc, time::Instant};

use sluice_formats::noise::Noise;
use sluice_ops::{Candidate, LmHeadRow, RankingScore};
use sluice_plan::MLP_ROWS;
use sluice_shared::sampling::EosPolicy;

use super::{
    BlockSight, DiffusionRequest, FinishedBlocks, Pass, PassReach, Vocabulary,
    diffusion::suppressed,
    policy::{DraftWindow, policy},
};
use crate::{
    event::{
        CanvasPosition, Event, FinishReason, GenerationResult, Outcome, PassCost, PassReport,
        TokenState,
    },
    request::Generate,
};

/// What the next pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Reads the prompt or a part of it.
    Read,
    /// Guesses the tokens after the last one.
    Draft,
    /// Predicts each token after those that are final or were guessed.
    Verify,
}

/// A request that is decoded so.
pub struct DraftedText {
    request: Generate,
    vocabulary: Arc<Vocabulary>,
    window: DraftWindow,
    /// Positions of the next block, unless less is left to write.
    length: usize,
    started: Instant,
    /// Prompt and answer, and behind them what is drafted.
    sequence: Vec<u32>,
    /// How many of them are final.
    written: usize,
    /// How many of those the KV cache holds.
    cached: usize,
    /// The positions of the part to fill.
    positions: Vec<CanvasPosition>,
    stage: Stage,
    reach: PassReach,
    rows: Vec<LmHeadRow>,
    suppressed: Vec<u32>,
    /// The first block of positions that is not full.
    block: usize,
    passes: usize,
    passes_in_block: usize,
    finish: Option<FinishReason>,
    is_lossless: bool,
}

impl DraftedText {
    /// Begins this request, if its policy is for that.
    #[must_use]
    pub fn new(request: &Generate, vocabulary: &Arc<Vocabulary>) -> Option<Self> {
        let window = policy(&request.policy).needs().draft?;
        let positions = 0..request.canvas.len();
        Some(Self {
            window,
            length: window.least,
            started: Instant::now(),
            sequence: request.prompt.clone(),
            written: request.prompt.len(),
            cached: 0,
            positions: positions
                .map(|at| CanvasPosition::unpredicted(at, None, TokenState::Masked))
                .collect(),
            stage: Stage::Read,
            reach: PassReach::default(),
            rows: Vec::new(),
            suppressed: suppressed(request, vocabulary),
            block: 0,
            passes: 0,
            passes_in_block: 0,
            finish: None,
            is_lossless: true,
            request: request.clone(),
            vocabulary: Arc::clone(vocabulary),
        })
    }

    /// The result so far or in the end. `peak_device_bytes` is 0: the caller keeps the ledger.
    #[must_use]
    pub fn generated(mut self) -> GenerationResult {
        self.sequence.truncate(self.written);
        GenerationResult {
            tokens: self.sequence.split_off(self.request.prompt.len()),
            finish_reason: self.finish.unwrap_or(FinishReason::Cancelled),
            passes: self.passes,
            edits: 0,
            elapsed: self.started.elapsed(),
            peak_device_bytes: 0,
            is_lossless: self.is_lossless,
            state: None,
        }
    }

    /// Tokens of the answer that are final.
    fn answered(&self) -> usize {
        self.written - self.request.prompt.len()
    }

    /// Prepares the next pass, after one for `stage` or at the start.
    fn prepare(&mut self, stage: Stage) {
        let prompt = self.request.prompt.len();
        let (computed, read, sight) = match stage {
            Stage::Read => {
                let end = prompt.min(self.cached + MLP_ROWS);
                // Only the prompt's last row predicts what isn't given.
                let read = if end == prompt {
                    end..end + 1
                } else {
                    end..end
                };
                (self.cached..end, read, BlockSight::Causal)
            }
            Stage::Draft => {
                let block = self.next_block();
                self.sequence.resize(block.end, self.vocabulary.mask_id());
                let masked = self.written..block.end;
                (block, masked, BlockSight::Open)
            }
            Stage::Verify => {
                let block = self.next_block();
                let next = block.start + 1..block.end + 1;
                (block, next, BlockSight::Causal)
            }
        };
        let row = |position| LmHeadRow {
            position,
            may_end: true,
            target: None,
            watched: Vec::new(),
            is_check: false,
        };
        self.stage = stage;
        self.rows = read.map(row).collect();
        self.reach = PassReach {
            computed: vec![computed],
            sight: Some(sight),
            ..PassReach::default()
        };
    }

    /// The last token, and the positions behind it that are drafted.
    fn next_block(&self) -> Range<usize> {
        let left = self.request.canvas.len() - self.answered();
        let start = self.written - 1;
        start..start + self.length.min(left)
    }

    /// The stage after a token was written: a block of one has nothing to draft.
    fn stage_after_token(&self) -> Stage {
        match self.next_block().len() {
            1 => Stage::Verify,
            _ => Stage::Draft,
        }
    }

    /// Writes the next token for good.
    fn push(&mut self, candidate: &Candidate) {
        let position = self.answered();
        self.sequence.truncate(self.written);
        self.sequence.push(candidate.token);
        self.written += 1;
        self.positions[position] = CanvasPosition {
            confidence: Some(candidate.confidence as f32),
            is_fresh: true,
            ..CanvasPosition::unpredicted(position, Some(candidate.token), TokenState::Committed)
        };
        let is_end = self.vocabulary.ends.contains(&candidate.token);
        if is_end && self.request.eos == EosPolicy::Stop {
            self.finish = Some(FinishReason::Eos);
        } else if position + 1 == self.positions.len() {
            self.finish = Some(FinishReason::Length);
        }
    }

    /// Writes as many tokens as the draft was right, and the one after them.
    fn verify(&mut self, candidates: &[Candidate]) {
        let drafted = self.sequence[self.written..].to_vec();
        let right = drafted.iter().zip(candidates);
        let right = right.take_while(|(token, found)| **token == found.token);
        let accepted = 1 + right.count();
        for candidate in &candidates[..accepted] {
            if self.finish.is_none() {
                self.push(candidate);
            }
        }
        // What was drafted behind it is overwritten by the next pass.
        self.cached = self.written - 1;
        let DraftWindow { least, most } = self.window;
        if accepted == candidates.len() {
            self.length = (2 * self.length).min(most);
        } else if 2 * accepted <= candidates.len() {
            self.length = (self.length / 2).max(least);
        }
    }

    /// Shows what was drafted, which is not final.
    fn propose(&mut self, candidates: &[Candidate]) {
        let answered = self.answered();
        for (index, candidate) in candidates.iter().enumerate() {
            self.sequence[self.written + index] = candidate.token;
            let position = &mut self.positions[answered + index];
            position.token = Some(candidate.token);
            position.confidence = Some(candidate.confidence as f32);
            position.state = TokenState::Provisional;
        }
    }

    /// Whether nothing of a block is left to write, and something was.
    fn is_over(&self, block: usize) -> bool {
        let length = self.request.block_length;
        match self.finish {
            Some(_) => !self.shown(block).is_empty(),
            None => (block + 1) * length <= self.answered(),
        }
    }

    /// The positions of a block, up to the end of the text.
    fn shown(&self, block: usize) -> &[CanvasPosition] {
        let length = self.request.block_length;
        let end = match self.finish {
            Some(_) => self.answered(),
            None => self.positions.len(),
        };
        &self.positions[(block * length).min(end)..((block + 1) * length).min(end)]
    }
}

impl DiffusionRequest for DraftedText {
    fn start(&mut self, emit: &mut dyn FnMut(Event)) {
        let Generate {
            canvas,
            block_length,
            ..
        } = &self.request;
        emit(Event::Started {
            blocks: canvas.len().div_ceil(*block_length),
            is_exact: self.request.decoding.is_exact(),
        });
        self.started = Instant::now();
        self.prepare(Stage::Read);
    }

    fn passes(&self) -> Vec<Pass<'_>> {
        if self.is_done() {
            return Vec::new();
        }
        vec![Pass {
            // The same for all, so that noise belongs to a position.
            number: 0,
            canvas: &self.sequence,
            guidance: None,
            reach: &self.reach,
            rows: &self.rows,
            temperature: self.request.temperature,
            noise: Noise::new(self.request.seed),
            suppressed: &self.suppressed,
            ranking: RankingScore::Confidence,
            top: false,
            renoised: None,
        }]
    }

    fn is_done(&self) -> bool {
        self.finish.is_some()
    }

    fn take(
        &mut self,
        candidates: &[Vec<Candidate>],
        cost: &PassCost,
        emit: &mut dyn FnMut(Event),
    ) {
        self.is_lossless &= cost.weights.is_lossless;
        let (rows, head_rows) = (self.reach.rows(), self.rows.len());
        for position in &mut self.positions {
            position.is_fresh = false;
        }
        let candidates = &candidates[0];
        match self.stage {
            Stage::Read => {
                self.cached += rows;
                candidates.iter().for_each(|candidate| self.push(candidate));
            }
            Stage::Draft => self.propose(candidates),
            Stage::Verify => self.verify(candidates),
        }
        self.passes += 1;
        self.passes_in_block += 1;
        emit(Event::Pass(Box::new(PassReport {
            passes: self.passes,
            block: self.block,
            passes_in_block: self.passes_in_block,
            positions: self.shown(self.block).to_vec(),
            committed: self.answered(),
            rows,
            lm_head_rows: head_rows,
            elapsed: self.started.elapsed(),
            cost: *cost,
        })));
        while self.is_over(self.block) {
            emit(Event::BlockDone {
                block: self.block,
                passes: self.passes_in_block,
                positions: self.shown(self.block).to_vec(),
            });
            self.block += 1;
            self.passes_in_block = 0;
        }
        if !self.is_done() {
            self.prepare(match self.stage {
                Stage::Read if head_rows == 0 => Stage::Read,
                Stage::Draft => Stage::Verify,
                Stage::Read | Stage::Verify => self.stage_after_token(),
            });
        }
    }

    fn finished(&self) -> Option<FinishedBlocks<'_>> {
        Some(FinishedBlocks {
            block_length: 1,
            tokens: &self.sequence[..self.cached],
        })
    }

    fn go_on_after(&mut self, rows: usize) {
        self.cached = rows;
    }

    fn outcome(self: Box<Self>) -> Outcome {
        Outcome::Generated(self.generated())
    }
}

#[cfg(test)]
mod tests;
