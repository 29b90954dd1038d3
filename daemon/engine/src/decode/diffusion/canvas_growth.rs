//! Canvases that begin short and grow: until the model itself sees an end, and where it is unsure.
//!
//! Reference: DAEDAL (arXiv 2508.00819). Differences: no tail of EOS is appended; a position's own candidate tells how
//! sure it is of an end, not the canvas's last positions; a block grows to twice its length at most, by one position's
//! masks a pass.

use sluice_ops::{Candidate, LmHeadRow};

use super::{CanvasBlock, Diffusion, cut};
use crate::{
    event::{CanvasPosition, TokenState},
    request::CanvasSlot,
};

// The values of DAEDAL's publication, for blocks of 32.
/// Masks that a canvas begins with.
const FIRST: usize = 64;
/// Masks that it grows by, and that replace one unsure position.
const MORE: usize = 8;
/// How many of the last positions tell whether the model sees an end.
const TAIL: usize = 32;
/// Mean probability of an end token at those positions from which on it does.
const SEES_END: f64 = 0.5;
/// Confidence below which a position is unsure,
const UNSURE: f64 = 0.1;
/// unless its probability of an end is at least this.
const SURE_OF_END: f64 = 0.9;

/// Masks before the first pass, of a canvas of at most so many positions.
pub(super) fn first_length(most: usize) -> usize {
    most.min(FIRST)
}

/// Most rows that the LM head reads at once, for blocks of this length.
pub(crate) fn lm_head_rows(block_length: usize) -> usize {
    (2 * block_length).max(TAIL)
}

impl Diffusion {
    /// The rows of the last positions, with the end token as target.
    pub(super) fn sizing_rows(&self) -> Vec<LmHeadRow> {
        let end = self.canvas.len();
        let first = end.saturating_sub(TAIL).max(self.request.prompt.len());
        let row = |position| LmHeadRow {
            position,
            may_end: true,
            target: self.vocabulary.ends.first().copied(),
            watched: Vec::new(),
            is_check: false,
        };
        (first..end).map(row).collect()
    }

    /// Grows the canvas, or finds it long enough.
    pub(super) fn size(&mut self, candidates: &[Candidate]) {
        let sure = candidates.iter().filter_map(end_probability).sum::<f64>();
        let length = self.positions.len();
        // Never beyond what the request's plan has counted.
        let more = MORE.min(self.request.canvas.len() - length);
        if sure / candidates.len() as f64 >= SEES_END || more == 0 {
            self.is_sizing = false;
            return;
        }
        self.put_masks(length, more);
        let slots = vec![CanvasSlot::Masked; length + more];
        // Nothing is committed while the length is being found, so all blocks can be cut anew.
        self.blocks = cut(&slots, 0, self.request.block_length, self.request.steps);
    }

    /// Replaces one mask that the model is unsure of by several, if the canvas and the block have space.
    pub(super) fn insert(&mut self, candidates: &[(usize, Candidate)]) {
        let CanvasBlock { start, end, .. } = self.blocks[self.block];
        let more = MORE - 1;
        let has_room = self.positions.len() + more <= self.request.canvas.len()
            // Twice the block is what the plan counted for this request's rows.
            && end + more - start <= 2 * self.request.block_length;
        let unsure = candidates.iter().filter(|(_, candidate)| {
            candidate.confidence < UNSURE
                && end_probability(candidate).is_some_and(|end| end < SURE_OF_END)
        });
        let least = unsure.min_by(|(_, a), (_, b)| a.confidence.total_cmp(&b.confidence));
        let (true, Some(&(position, _))) = (has_room, least) else {
            return;
        };
        // What is inserted moves the positions behind it.
        self.taken_back.clear();
        self.put_masks(position + 1, more);
        self.blocks[self.block].end += more;
        // Schedules share out the masks that a block has at its start, and these belong to it now.
        self.masked_at_start += more;
        for block in &mut self.blocks[self.block + 1..] {
            block.start += more;
            block.end += more;
        }
        // Positions behind the insertion have moved, and their rotary embeddings with them: the cache is computed anew.
        self.cached_until = None;
    }

    fn put_masks(&mut self, at: usize, count: usize) {
        let canvas_at = self.request.prompt.len() + at;
        let masks = std::iter::repeat_n(self.vocabulary.mask_id(), count);
        self.canvas.splice(canvas_at..canvas_at, masks);
        let masked = CanvasPosition::unpredicted(0, None, TokenState::Masked);
        let masks = std::iter::repeat_n(masked, count);
        self.positions.splice(at..at, masks);
        for (index, position) in self.positions.iter_mut().enumerate().skip(at) {
            position.position = index;
        }
    }
}

fn end_probability(candidate: &Candidate) -> Option<f64> {
    candidate.target_log_probability.map(f64::exp)
}
