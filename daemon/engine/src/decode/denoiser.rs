//! One pass: a canvas with masks in, a candidate for each row asked for out.

use std::sync::atomic::AtomicBool;

use crate::{
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

/// Something that fills masks.
pub trait Denoiser {
    /// A candidate for each row of the pass, in order.
    ///
    /// # Errors
    /// When the pass was cancelled or failed.
    fn candidates(&mut self, pass: &Pass<'_>) -> Result<Vec<Candidate>, Interrupt>;

    /// Ids with a meaning of their own.
    fn vocabulary(&self) -> &Vocabulary;

    /// Device memory held now, in bytes.
    fn device_bytes(&self) -> u64;

    /// How the weights stand.
    fn weights(&self) -> WeightsState;

    /// What the user should hear of, since it was last asked.
    fn take_notices(&mut self) -> Vec<String> {
        Vec::new()
    }
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

/// A loaded model as a denoiser.
pub struct ModelDenoiser<'a> {
    /// The operations of its device.
    pub ops: &'a Ops,
    /// The model.
    pub model: &'a Transformer,
    /// Its weights.
    pub weights: &'a Residency,
    /// Ids with a meaning of their own.
    pub vocabulary: &'a Vocabulary,
    /// Set to stop within the pass.
    pub cancel: &'a AtomicBool,
}

impl Denoiser for ModelDenoiser<'_> {
    fn candidates(&mut self, pass: &Pass<'_>) -> Result<Vec<Candidate>, Interrupt> {
        let row_of = |row: &HeadRow| self.vocabulary.row_of(row.position);
        let wanted: Vec<usize> = pass.rows.iter().map(row_of).collect();
        let canvases = [Some(pass.canvas), pass.guidance.map(|(masked, _)| masked)];
        let sequences: Vec<Sequence<'_>> = canvases
            .into_iter()
            .flatten()
            .map(|tokens| Sequence {
                tokens,
                wanted: &wanted,
            })
            .collect();
        let (ops, weights) = (self.ops, self.weights);
        let hidden = self.model.forward(ops, weights, &sequences, self.cancel)?;
        let x = self.model.final_norm(ops, weights, &hidden)?;
        drop(hidden);
        let choice = Choice {
            temperature: pass.temperature,
            noise: pass.noise,
            pass: pass.number,
            guidance: pass.guidance.map(|(_, weight)| weight),
            vocabulary: self.vocabulary.size,
            mask_token_id: self.vocabulary.mask_id(),
            end_tokens: &self.vocabulary.ends,
            suppressed: pass.suppressed,
            ranking: pass.ranking,
        };
        let groups = [HeadGroup {
            rows: pass.rows,
            choice,
        }];
        let mut reduction = ops.start_head(&groups, weights.head_part_rows())?;
        for (unit, first) in weights.head_parts() {
            let head = weights.acquire(unit)?;
            ops.reduce_head(&mut reduction, &x, &head.weight(Part::Head), first)?;
        }
        Ok(reduction.candidates()?.concat())
    }

    fn vocabulary(&self) -> &Vocabulary {
        self.vocabulary
    }

    fn device_bytes(&self) -> u64 {
        self.ops.ledger().used_bytes()
    }

    fn weights(&self) -> WeightsState {
        WeightsState {
            epoch: self.weights.epoch(),
            is_lossless: self.weights.is_lossless(),
            switch: None,
            stream: self.weights.stream_stats(),
        }
    }
}
