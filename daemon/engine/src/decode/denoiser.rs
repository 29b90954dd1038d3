//! One pass: a canvas with masks in, a candidate for each row asked for out.

use std::sync::atomic::AtomicBool;

use crate::{
    event::{Event, Outcome, PassCost},
    model::{
        family::Mask,
        transformer::{Interrupt, Sequence, Transformer},
    },
    ops::{Candidate, Choice, HeadGroup, HeadRow, Noise, Ops, Ranking},
    residency::{Part, Residency, StreamStats},
};

/// Ids with a meaning of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    /// Ids are below this.
    pub size: usize,
    /// The mask, of models that fill one.
    pub mask: Option<Mask>,
    /// End a text; the first fills what is left after it. May be empty.
    pub ends: Vec<u32>,
}

impl Vocabulary {
    /// The mask's id.
    ///
    /// # Panics
    /// When the model is causal: nothing that fills masks is asked of one.
    #[must_use]
    pub fn mask_id(&self) -> u32 {
        let mask = self.mask.as_ref();
        mask.expect("requests that fill masks were checked against the model")
            .token_id
    }

    /// The row whose logits are those of a position.
    fn row_of(&self, position: usize) -> usize {
        self.mask.map_or(position, |mask| mask.row_of(position))
    }
}

/// What one pass is asked for.
#[derive(Debug, Clone)]
pub struct Pass<'a> {
    /// Number of the pass in its request, from 0.
    pub number: usize,
    /// The canvas, prompt included.
    pub canvas: &'a [u32],
    /// The same with the prompt masked, and the weight w, when guidance is on.
    pub guidance: Option<(&'a [u32], f64)>,
    /// Rows to read, in rising order of position.
    pub rows: &'a [HeadRow],
    /// Scale of the Gumbel noise.
    pub temperature: f64,
    /// Where noise comes from.
    pub noise: Noise,
    /// Tokens whose logit counts as −∞.
    pub suppressed: &'a [u32],
    /// What candidates are ranked by.
    pub ranking: Ranking,
}

impl Pass<'_> {
    /// Rows that the layers compute.
    #[must_use]
    pub fn layer_rows(&self) -> usize {
        self.canvas.len() * if self.guidance.is_some() { 2 } else { 1 }
    }
}

/// Something that fills masks, a pass at a time.
pub trait Filling: Send {
    /// Tells what lies ahead, before the first pass.
    fn start(&mut self, emit: &mut dyn FnMut(Event));

    /// What the next pass is to read; none when there is nothing left to do. Asked again, it says the same.
    fn pass(&self) -> Option<Pass<'_>>;

    /// Takes the candidates for the rows of that pass, in order.
    fn take(&mut self, candidates: &[Candidate], cost: &PassCost, emit: &mut dyn FnMut(Event));

    /// What it came to: when there is nothing left to do, or it is cancelled.
    fn outcome(self: Box<Self>) -> Outcome;
}

/// How weights stand after a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WeightsState {
    /// Number of their state.
    pub epoch: u64,
    /// Whether they are the checkpoint's own, bit for bit.
    pub is_lossless: bool,
    /// Steps done and in all, while a plan gives way to another.
    pub switch: Option<(usize, usize)>,
    /// What streaming cost so far.
    pub stream: StreamStats,
}

/// A loaded model, and the operations of its device.
#[derive(Clone, Copy)]
pub struct Denoiser<'a> {
    /// The operations.
    pub ops: &'a Ops,
    /// The model.
    pub model: &'a Transformer,
    /// Its weights.
    pub weights: &'a Residency,
    /// Ids with a meaning of their own.
    pub vocabulary: &'a Vocabulary,
}

impl Denoiser<'_> {
    /// Candidates for the rows of these passes, in order, in one pass over the weights.
    ///
    /// # Errors
    /// When the pass fails, or `cancel` is set meanwhile.
    pub fn candidates(
        &self,
        passes: &[Pass<'_>],
        cancel: &AtomicBool,
    ) -> Result<Vec<Vec<Candidate>>, Interrupt> {
        let (ops, weights) = (self.ops, self.weights);
        let row_of = |row: &HeadRow| self.vocabulary.row_of(row.position);
        let wanted: Vec<Vec<usize>> = passes
            .iter()
            .map(|pass| pass.rows.iter().map(row_of).collect())
            .collect();
        let sequences: Vec<Sequence<'_>> = passes
            .iter()
            .zip(&wanted)
            .flat_map(|(pass, wanted)| {
                let canvases = [Some(pass.canvas), pass.guidance.map(|(masked, _)| masked)];
                let sequence = |tokens| Sequence { tokens, wanted };
                canvases.into_iter().flatten().map(sequence)
            })
            .collect();
        let hidden = self.model.forward(ops, weights, &sequences, cancel)?;
        let x = self.model.final_norm(ops, weights, &hidden)?;
        drop(hidden);
        let groups: Vec<HeadGroup<'_>> = passes
            .iter()
            .map(|pass| HeadGroup {
                rows: pass.rows,
                choice: self.choice(pass),
            })
            .collect();
        let mut reduction = ops.start_head(&groups, weights.head_part_rows())?;
        for (unit, first) in weights.head_parts() {
            let head = weights.acquire(unit)?;
            ops.reduce_head(&mut reduction, &x, &head.weight(Part::Head), first)?;
        }
        Ok(reduction.candidates()?)
    }

    fn choice<'a>(&'a self, pass: &Pass<'a>) -> Choice<'a> {
        Choice {
            temperature: pass.temperature,
            noise: pass.noise,
            pass: pass.number,
            guidance: pass.guidance.map(|(_, weight)| weight),
            vocabulary: self.vocabulary.size,
            mask_token_id: self.vocabulary.mask_id(),
            end_tokens: &self.vocabulary.ends,
            suppressed: pass.suppressed,
            ranking: pass.ranking,
        }
    }
}
