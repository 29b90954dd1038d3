//! Decoding from left to right with a model that also fills blocks: every token is one that a causal pass predicts. Before
//! it, a pass over a block of masks may draft several; the causal pass then reads all of them, and as many count as it
//! would have predicted itself. So the tokens are those of one causal pass for each, noise included.
//!
//! Reference: linear self-speculation of Nemotron-Labs-Diffusion, as mlx-vlm's port has it: a block begins with the last
//! token, whose successor is the first to be drafted. Differences: a text ends at its first end token; chance belongs to a
//! position, so that drafts are drawn as they are verified.

use std::{ops::Range, sync::Arc};

use sluice_ops::Candidate;
use sluice_plan::MLP_ROWS;
use sluice_shared::sampling::EosPolicy;

use super::{
    BlockSight, DiffusionRequest, FinishedBlocks, Pass, Vocabulary,
    policy::{DraftWindow, policy},
    written::WrittenText,
};
use crate::{
    event::{CanvasPosition, Event, FinishReason, GenerationResult, Outcome, PassCost, TokenState},
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
    text: WrittenText,
    window: DraftWindow,
    /// Positions of the next block, unless less is left to write.
    length: usize,
    stage: Stage,
}

impl DraftedText {
    /// Begins this request, if its policy is for that.
    #[must_use]
    pub fn new(request: &Generate, vocabulary: &Arc<Vocabulary>) -> Option<Self> {
        let window = policy(&request.policy).needs().draft?;
        Some(Self {
            text: WrittenText::new(request, vocabulary),
            window,
            length: window.least,
            stage: Stage::Read,
        })
    }

    /// The result so far or in the end. `peak_device_bytes` is 0: the caller keeps the ledger.
    #[must_use]
    pub fn generated(self) -> GenerationResult {
        self.text.generated()
    }

    /// Prepares the next pass, after one for `stage` or at the start.
    fn prepare(&mut self, stage: Stage) {
        let prompt = self.text.request.prompt.len();
        let (computed, read, sight) = match stage {
            Stage::Read => {
                let end = prompt.min(self.text.cached + MLP_ROWS);
                // Only the prompt's last row predicts what isn't given.
                let read = if end == prompt {
                    end..end + 1
                } else {
                    end..end
                };
                (self.text.cached..end, read, BlockSight::Causal)
            }
            Stage::Draft => {
                let block = self.next_block();
                self.text
                    .sequence
                    .resize(block.end, self.text.vocabulary.mask_id());
                let masked = self.text.written..block.end;
                (block, masked, BlockSight::Open)
            }
            Stage::Verify => {
                let block = self.next_block();
                let next = block.start + 1..block.end + 1;
                (block, next, BlockSight::Causal)
            }
        };
        self.stage = stage;
        self.text.prepare(computed, read, sight);
    }

    /// The last token, and the positions behind it that are drafted.
    fn next_block(&self) -> Range<usize> {
        let left = self.text.request.canvas.len() - self.text.answered();
        let start = self.text.written - 1;
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
        let position = self.text.answered();
        self.text.sequence.truncate(self.text.written);
        self.text.sequence.push(candidate.token);
        self.text.written += 1;
        self.text.positions[position] = CanvasPosition {
            confidence: Some(candidate.confidence as f32),
            is_fresh: true,
            ..CanvasPosition::unpredicted(position, Some(candidate.token), TokenState::Committed)
        };
        let is_end = self.text.vocabulary.ends.contains(&candidate.token);
        if is_end && self.text.request.eos == EosPolicy::Stop {
            self.text.finish = Some(FinishReason::Eos);
        } else if position + 1 == self.text.positions.len() {
            self.text.finish = Some(FinishReason::Length);
        }
    }

    /// Writes as many tokens as the draft was right, and the one after them.
    fn verify(&mut self, candidates: &[Candidate]) {
        let drafted = self.text.sequence[self.text.written..].to_vec();
        let right = drafted.iter().zip(candidates);
        let right = right.take_while(|(token, found)| **token == found.token);
        let accepted = 1 + right.count();
        for candidate in &candidates[..accepted] {
            if self.text.finish.is_none() {
                self.push(candidate);
            }
        }
        // What was drafted behind it is overwritten by the next pass.
        self.text.cached = self.text.written - 1;
        let DraftWindow { least, most } = self.window;
        if accepted == candidates.len() {
            self.length = (2 * self.length).min(most);
        } else if 2 * accepted <= candidates.len() {
            self.length = (self.length / 2).max(least);
        }
    }

    /// Shows what was drafted, which is not final.
    fn propose(&mut self, candidates: &[Candidate]) {
        let answered = self.text.answered();
        for (index, candidate) in candidates.iter().enumerate() {
            self.text.sequence[self.text.written + index] = candidate.token;
            let position = &mut self.text.positions[answered + index];
            position.token = Some(candidate.token);
            position.confidence = Some(candidate.confidence as f32);
            position.state = TokenState::Provisional;
        }
    }
}

impl DiffusionRequest for DraftedText {
    fn start(&mut self, emit: &mut dyn FnMut(Event)) {
        self.text.start(emit);
        self.prepare(Stage::Read);
    }

    fn passes(&self) -> Vec<Pass<'_>> {
        match self.is_done() {
            true => Vec::new(),
            false => vec![self.text.pass()],
        }
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
        let candidates = &candidates[0];
        match self.stage {
            Stage::Read => {
                self.text.cached += rows;
                candidates.iter().for_each(|candidate| self.push(candidate));
            }
            Stage::Draft => self.propose(candidates),
            Stage::Verify => self.verify(candidates),
        }
        self.text.report(cost, (rows, head_rows), emit);
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
            tokens: &self.text.sequence[..self.text.cached],
        })
    }

    fn go_on_after(&mut self, rows: usize) {
        self.text.cached = rows;
    }

    fn outcome(self: Box<Self>) -> Outcome {
        Outcome::Generated(self.generated())
    }
}

#[cfg(test)]
mod tests;
