//! LLaDA: a masked-diffusion language model with a Llama-shaped body.
//!
//! Paper: Nie et al. 2025, "Large Language Diffusion Models" (arXiv 2502.09992).
//! Reference: `LLaDAModelLM` in `modeling_llada.py` as published with GSAI-ML/LLaDA-8B.
//!
//! Pre-norm blocks: RMSNorm in `f32`, rotary embedding on half-split pairs at positions
//! counted from the start of the prompt, attention without any mask, SwiGLU with `ff_proj`
//! as the gate. No time-step input.
//!
//! Differences from the reference: the last layer's queries, attention output and MLP are
//! computed only for the rows that are read, and the MLP goes through the rows in chunks;
//! both give the same numbers up to float order. Rows of several canvases may be packed;
//! each attends to its own canvas alone.

mod config;

use std::sync::atomic::{AtomicBool, Ordering};

pub use self::config::Config;
use super::{ModelInfo, shape::Shape};
use crate::{
    checkpoint::Checkpoint,
    error::EngineError,
    ledger::Ledger,
    ops::{Activation, AttentionRange, AttentionShape, KeySegment, Ops, RopeTable},
    residency::{Group, Part, Residency, TensorSpec},
};

/// Rows that go through an MLP together: enough for the kernel, few enough that a long
/// canvas needs no matrix of its length times the MLP's width.
const MLP_ROWS: usize = 512;

/// A canvas in a pass, and the rows of it that are read.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Ids of the whole canvas.
    pub tokens: &'a [u32],
    /// Positions whose final rows are wanted.
    pub wanted: &'a [usize],
}

/// Why a pass has no result.
#[derive(Debug)]
pub enum Interrupt {
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Failed(EngineError),
}

impl From<EngineError> for Interrupt {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

/// A loaded LLaDA model.
#[derive(Debug)]
pub struct Llada {
    config: Config,
    weights: Residency,
    rope: RopeTable,
}

impl Llada {
    /// Reads a checkpoint whose configuration is `config`.
    ///
    /// # Errors
    /// What is wrong with it, or memory that can't be had.
    pub fn load(
        config: Config,
        checkpoint: &Checkpoint,
        ledger: &Ledger,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        let weights = Residency::load(checkpoint, &tensors(&config), ledger, progress)?;
        let rope = RopeTable::new(
            config.head_dim(),
            config.rope_theta,
            config.context_length,
            ledger,
        )?;
        Ok(Self {
            config,
            weights,
            rope,
        })
    }

    /// The weights.
    #[must_use]
    pub fn weights(&self) -> &Residency {
        &self.weights
    }

    /// What is known of the model.
    #[must_use]
    pub fn info(&self) -> ModelInfo {
        let config = &self.config;
        let parameters = tensors(config)
            .iter()
            .map(|spec| spec.shape.iter().product::<usize>() as u64)
            .sum();
        ModelInfo {
            family: "llada",
            parameters,
            weight_bytes: self.weights.weight_bytes(),
            formats: self.weights.formats(),
            layers: config.layers,
            width: config.width,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim(),
            mlp_width: config.mlp_width,
            vocabulary: config.vocabulary,
            embedding_rows: config.embedding_rows,
            context_length: config.context_length,
            mask_token_id: config.mask_token_id,
            eos_token_ids: config.eos_token_ids.clone(),
        }
    }

    /// Runs all layers over the packed canvases and returns the wanted rows, those of the
    /// first canvas first, after the last layer and before the final norm.
    ///
    /// # Errors
    /// Memory that can't be had, or `cancel` set: it is looked at before each layer.
    pub fn forward(
        &self,
        ops: &Ops,
        sequences: &[Sequence<'_>],
        cancel: &AtomicBool,
    ) -> Result<Activation, Interrupt> {
        let packing = Packing::new(sequences);
        let embedding = self.weights.acquire(0, Group::Embedding);
        let mut hidden = ops.embed(&packing.tokens, &embedding.weight(Part::Embedding))?;
        for layer in 0..self.config.layers {
            if cancel.load(Ordering::Relaxed) {
                return Err(Interrupt::Cancelled);
            }
            let wanted = (layer + 1 == self.config.layers).then_some(&packing.wanted);
            hidden = self.attention(ops, layer, hidden, &packing, wanted)?;
            self.mlp(ops, layer, &mut hidden)?;
        }
        Ok(hidden)
    }

    /// Attention with its residual. With `wanted`, keys and values of all rows, but queries
    /// and results of those rows alone.
    fn attention(
        &self,
        ops: &Ops,
        layer: usize,
        mut hidden: Activation,
        packing: &Packing,
        wanted: Option<&Vec<usize>>,
    ) -> Result<Activation, EngineError> {
        let group = self.weights.acquire(layer, Group::Attention);
        let norm = group.weight(Part::AttentionNorm);
        let all = 0..hidden.len();
        let mut x = ops.rms_norm(&hidden, all, &norm, self.config.epsilon)?;
        let mut k = ops.linear(&x, &group.weight(Part::Key))?;
        ops.rope(&mut k, &self.rope, &packing.positions);
        let v = ops.linear(&x, &group.weight(Part::Value))?;
        let mut query_positions = &packing.positions;
        let mut ranges = &packing.ranges;
        if let Some(wanted) = wanted {
            x = ops.take_rows(&x, wanted)?;
            hidden = ops.take_rows(&hidden, wanted)?;
            query_positions = &packing.wanted_positions;
            ranges = &packing.wanted_ranges;
        }
        let mut q = ops.linear(&x, &group.weight(Part::Query))?;
        drop(x);
        ops.rope(&mut q, &self.rope, query_positions);
        let shape = AttentionShape {
            heads: self.config.heads,
            kv_heads: self.config.kv_heads,
            head_dim: self.config.head_dim(),
        };
        let attended = ops.attend(&q, &k, &v, shape, ranges)?;
        let out = ops.linear(&attended, &group.weight(Part::AttentionOutput))?;
        ops.add(&mut hidden, 0, &out);
        Ok(hidden)
    }

    /// The MLP with its residual, in chunks of rows.
    fn mlp(&self, ops: &Ops, layer: usize, hidden: &mut Activation) -> Result<(), EngineError> {
        let gate_up = self.weights.acquire(layer, Group::GateUp);
        let down = self.weights.acquire(layer, Group::Down);
        let norm = gate_up.weight(Part::MlpNorm);
        for start in (0..hidden.len()).step_by(MLP_ROWS) {
            let rows = start..hidden.len().min(start + MLP_ROWS);
            let x = ops.rms_norm(hidden, rows, &norm, self.config.epsilon)?;
            let mut gate = ops.linear(&x, &gate_up.weight(Part::Gate))?;
            let up = ops.linear(&x, &gate_up.weight(Part::Up))?;
            ops.silu_multiply(&mut gate, &up);
            let out = ops.linear(&gate, &down.weight(Part::Down))?;
            ops.add(hidden, start, &out);
        }
        Ok(())
    }

    /// The final norm, for the head.
    ///
    /// # Errors
    /// Memory that can't be had.
    pub fn final_norm(&self, ops: &Ops, hidden: &Activation) -> Result<Activation, EngineError> {
        let group = self.weights.acquire(0, Group::Head);
        let norm = group.weight(Part::FinalNorm);
        ops.rms_norm(hidden, 0..hidden.len(), &norm, self.config.epsilon)
    }
}

/// Rows of all canvases of a pass, one after another.
struct Packing {
    tokens: Vec<u32>,
    /// Of each row, in its own canvas.
    positions: Vec<usize>,
    ranges: Vec<AttentionRange>,
    /// Rows that are read, and their positions.
    wanted: Vec<usize>,
    wanted_positions: Vec<usize>,
    /// The same ranges for queries that are the wanted rows alone.
    wanted_ranges: Vec<AttentionRange>,
}

impl Packing {
    fn new(sequences: &[Sequence<'_>]) -> Self {
        let mut packing = Self {
            tokens: Vec::new(),
            positions: Vec::new(),
            ranges: Vec::new(),
            wanted: Vec::new(),
            wanted_positions: Vec::new(),
            wanted_ranges: Vec::new(),
        };
        for sequence in sequences {
            let start = packing.tokens.len();
            let wanted_start = packing.wanted.len();
            packing.tokens.extend_from_slice(sequence.tokens);
            packing.positions.extend(0..sequence.tokens.len());
            packing
                .wanted
                .extend(sequence.wanted.iter().map(|position| start + position));
            packing.wanted_positions.extend_from_slice(sequence.wanted);
            let keys = vec![KeySegment {
                start,
                len: sequence.tokens.len(),
            }];
            packing.wanted_ranges.push(AttentionRange {
                queries: wanted_start..packing.wanted.len(),
                keys: keys.clone(),
            });
            packing.ranges.push(AttentionRange {
                queries: start..packing.tokens.len(),
                keys,
            });
        }
        packing
    }
}

/// Every tensor of a checkpoint with this configuration, by its exact name.
#[must_use]
pub fn tensors(config: &Config) -> Vec<TensorSpec> {
    Shape::of(config).tensors()
}
