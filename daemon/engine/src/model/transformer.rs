//! The layers of all families: pre-norm blocks of attention and a gated MLP, written once for every device, format and tier.
//!
//! RMSNorm in `f32`, rotary embedding on half-split pairs at positions counted from the start of the prompt, SwiGLU.
//!
//! Differences from the reference implementations: the last layer's queries, attention output and MLP are computed only
//! for the rows that are read, and the MLP goes through the rows in chunks; neither changes an element beyond float
//! order. Rows of several sequences may share a pass; each attends to its own sequence alone. Of a sequence with a KV
//! cache, a pass computes only some rows. A pruned layer has the rows and columns of the KV heads that it keeps, each
//! with its query heads; between the projections its rows have the model's layout, with zeros in the place of the others.

mod rows;

use std::sync::atomic::{AtomicBool, Ordering};

use sluice_checkpoint::family::ModelConfig;
use sluice_ops::{Activation, AttentionShape, KeyRows, Ops, OpsError, PassRun, Phase, RopeTable};
use sluice_plan::MLP_ROWS;
use sluice_weights::{MatrixInput, TensorPart, WeightGroup};

use self::rows::{BatchKeys, BatchRows, CachedRows};
pub use self::rows::{Sequence, VisibleKeys};
use super::ModelInfo;
use crate::{
    error::EngineError,
    heartbeat::Heartbeat,
    residency::{Residency, WeightGuard},
};

/// Why a pass has no result.
#[derive(Debug)]
pub enum Interrupt {
    /// It was cancelled.
    Cancelled,
    /// It failed, for this reason.
    Failed(EngineError),
}

impl From<EngineError> for Interrupt {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

impl From<OpsError> for Interrupt {
    fn from(error: OpsError) -> Self {
        Self::Failed(error.into())
    }
}

/// Sees the inputs of the layers' matrices, as they are computed.
pub trait InputObserver: Send {
    /// Sees the next rows of an input.
    ///
    /// # Errors
    /// When they cannot be read.
    fn see(&mut self, input: MatrixInput, rows: &Activation, ops: &Ops) -> Result<(), EngineError>;
}

/// The observer of a pass, if there is one.
type Observer<'a, 'b> = &'a mut Option<&'b mut dyn InputObserver>;

fn observe(
    observer: Observer<'_, '_>,
    ops: &Ops,
    input: MatrixInput,
    rows: &Activation,
) -> Result<(), EngineError> {
    match observer {
        Some(observer) => observer.see(input, rows, ops),
        None => Ok(()),
    }
}

/// A model without its weights, which every call is given.
#[derive(Debug)]
pub struct Transformer {
    config: ModelConfig,
    rope: RopeTable,
    mlp_rows: usize,
    heartbeat: Heartbeat,
}

impl Transformer {
    /// The model of this configuration.
    ///
    /// # Errors
    /// When memory for its tables cannot be allocated.
    pub fn new(config: ModelConfig, ops: &Ops) -> Result<Self, EngineError> {
        let rope = RopeTable::new(&config.rope, config.shape.context_length, ops)?;
        Ok(Self {
            config,
            rope,
            mlp_rows: MLP_ROWS,
            heartbeat: Heartbeat::default(),
        })
    }

    /// Sets how many rows go through an MLP together: fewer take less memory, and give the same result.
    pub fn set_mlp_rows(&mut self, rows: usize) {
        self.mlp_rows = rows;
    }

    /// Sets what hears of each layer.
    pub(crate) fn set_heartbeat(&mut self, heartbeat: Heartbeat) {
        self.heartbeat = heartbeat;
    }

    /// The properties of the model with these weights.
    #[must_use]
    pub fn info(&self, weights: &Residency) -> ModelInfo {
        let ModelConfig {
            family,
            shape,
            vocab_size: vocabulary,
            mask,
            eos_token_ids,
            ..
        } = &self.config;
        ModelInfo {
            family: family.name(),
            parameters: weights.parameters(shape.tied),
            weight_bytes: weights.weight_bytes(),
            formats: weights.formats(),
            layers: shape.layers,
            hidden_size: shape.hidden_size,
            attention_heads: shape.attention_heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            intermediate_size: shape.intermediate_size,
            vocab_size: *vocabulary,
            padded_vocab_size: shape.padded_vocab_size,
            context_length: shape.context_length,
            mask: *mask,
            eos_token_ids: eos_token_ids.clone(),
        }
    }

    /// Runs all layers over the rows of all sequences and returns the wanted rows, those of the first sequence first,
    /// after the last layer and before the final norm. When it fails, autoregressive caches hold what they held before;
    /// positions of other caches may have been overwritten.
    ///
    /// # Errors
    /// When memory cannot be allocated, or `cancel` is set: it is checked before each layer.
    ///
    /// # Panics
    /// When a cache has no space for its rows.
    pub fn forward(
        &self,
        ops: &Ops,
        weights: &Residency,
        sequences: &mut [Sequence<'_>],
        cancel: &AtomicBool,
    ) -> Result<Activation, Interrupt> {
        self.forward_observed(ops, weights, sequences, cancel, None)
    }

    /// [`Transformer::forward`], whose matrices' inputs the observer sees.
    ///
    /// # Errors
    /// As there, and those of the observer.
    ///
    /// # Panics
    /// As there.
    pub fn forward_observed(
        &self,
        ops: &Ops,
        weights: &Residency,
        sequences: &mut [Sequence<'_>],
        cancel: &AtomicBool,
        mut observer: Option<&mut dyn InputObserver>,
    ) -> Result<Activation, Interrupt> {
        let (rows, mut seen) = rows::batched(sequences, ops)?;
        let mut layers = || self.layers(ops, weights, &rows, &mut seen, cancel, &mut observer);
        // All operations of a resident pass run on one pool thread: handing each over would take longer than an
        // operation on a single row. Streamed passes wait for the reader, which must not block a pool thread that
        // conversions need.
        let hidden = match weights.is_resident() {
            true => ops.device().within(layers),
            false => layers(),
        }?;
        // Only now do the rows count as cached: a failed pass is repeated, and writes the same positions again.
        for Sequence { tokens, sees, .. } in sequences {
            if let VisibleKeys::Before { cache } = sees {
                cache.advance(tokens.len());
            }
        }
        Ok(hidden)
    }

    fn layers(
        &self,
        ops: &Ops,
        weights: &Residency,
        rows: &BatchRows,
        seen: &mut BatchKeys<'_>,
        cancel: &AtomicBool,
        observer: Observer<'_, '_>,
    ) -> Result<Activation, Interrupt> {
        // The embedding's rows may be read from a file below; a file replaced meanwhile would mix two models.
        weights.check_unchanged()?;
        let width = self.config.shape.hidden_size;
        let mut hidden = match weights.embedding()? {
            Some(table) => ops.embed(&rows.tokens, &table.weight(TensorPart::Embedding))?,
            None => ops.embed_rows(&rows.tokens, width, |id, row| {
                weights.embedding_row(id, row)
            })?,
        };
        for layer in 0..self.config.shape.layers {
            if cancel.load(Ordering::Relaxed) {
                return Err(Interrupt::Cancelled);
            }
            self.heartbeat.beat();
            hidden = self.attention(ops, weights, layer, hidden, (rows, seen), observer)?;
            self.mlp(ops, weights, layer, &mut hidden, observer)?;
        }
        Ok(hidden)
    }

    /// Attention with its residual. In the last layer, keys and values are computed for all rows, but queries and
    /// results only for the wanted ones.
    fn attention(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        mut hidden: Activation,
        (rows, seen): (&BatchRows, &mut BatchKeys<'_>),
        observer: Observer<'_, '_>,
    ) -> Result<Activation, EngineError> {
        let is_last = layer + 1 == self.config.shape.layers;
        let group = acquire(ops, weights, WeightGroup::Attention(layer))?;
        let norm = group.weight(TensorPart::AttentionNorm);
        let all = 0..hidden.len();
        let mut x = ops.rms_norm(&hidden, all, &norm, self.config.epsilon)?;
        observe(observer, ops, MatrixInput::Attention(layer), &x)?;
        let project =
            |x: &Activation, part: TensorPart, bias: TensorPart| match self.config.shape.biases {
                true => ops.linear_biased(x, &group.weight(part), &group.weight(bias)),
                false => ops.linear(x, &group.weight(part)),
            };
        let kv_heads = self.config.shape.kv_heads;
        // KV caches have one layout in all plans and layers, so that they outlive a switch between plans whose layers
        // have different heads.
        let spread = |x: Activation| match group.kept_kv_heads() {
            Some(kept) => ops.spread_heads(x, kept, kv_heads),
            None => Ok(x),
        };
        // Keys and values first: the last layer needs those of all rows, and its `x` shrinks below.
        let mut k = spread(project(&x, TensorPart::Key, TensorPart::KeyBias)?)?;
        let mut v = spread(project(&x, TensorPart::Value, TensorPart::ValueBias)?)?;
        let mut query_positions = &rows.positions;
        if is_last {
            x = ops.take_rows(&x, &rows.wanted)?;
            // The residual shrinks as well: nothing behind this layer reads the other rows.
            hidden = ops.take_rows(&hidden, &rows.wanted)?;
            query_positions = &rows.wanted_positions;
        }
        let q = project(&x, TensorPart::Query, TensorPart::QueryBias)?;
        // Given back to the arena before attention takes its output: the order of drops is part of the planned peak.
        drop(x);
        let mut q = spread(q)?;
        // Queries and keys together, in one launch on a GPU.
        let rotated = [(&mut q, query_positions), (&mut k, &rows.positions)];
        ops.rope(rotated, &self.rope)?;
        let shape = AttentionShape {
            heads: self.config.shape.attention_heads,
            kv_heads,
            head_dim: self.config.shape.head_dim,
        };
        // Before attention: queries read the cache even for keys of this pass, so that no result depends on how a
        // prompt was cut. Where the latest positions are kept in more bits, queries read the pass's rows, rounded as
        // the cache has them.
        for CachedRows { cache, runs, .. } in &mut seen.caches {
            for PassRun { rows, start } in runs {
                ops.put_kv(cache, layer, [&k, &v], rows.clone(), *start)?;
                if cache.shape().keeps_recent {
                    for x in [&mut k, &mut v] {
                        ops.round_recent(&cache.shape(), x, rows.clone());
                    }
                }
            }
        }
        // If all queries read the cache, this pass's keys and values have been copied and are no longer needed.
        let pass = match seen.is_of_caches {
            true => {
                drop((k, v));
                None
            }
            false => Some([k, v]),
        };
        let caches: Vec<_> = seen.caches.iter().map(|kept| &*kept.cache).collect();
        let keys = KeyRows {
            pass: pass.as_ref().map(|rows| rows.each_ref()),
            caches: &caches,
            layer,
        };
        let attended = ops.attend(&q, &keys, shape, seen.tasks(is_last))?;
        if let Some([k, v]) = &pass {
            for CachedRows { cache, runs, .. } in &mut seen.caches {
                for PassRun { rows, start } in runs {
                    ops.put_recent(cache, layer, [k, v], rows.clone(), *start);
                }
            }
        }
        drop(pass);
        for kept in &mut seen.caches {
            // The last layer has queries of the wanted rows only, so the choice rests on those there.
            if let Some((places, count)) = kept.selects {
                let queries = kept.queries(is_last);
                ops.choose_salient(kept.cache, layer, &q, queries, shape, places, *count)?;
            }
        }
        // Given back before heads are gathered into rows of their own.
        drop(q);
        let attended = match group.kept_kv_heads() {
            Some(kept) => ops.gather_heads(attended, kept, kv_heads)?,
            None => attended,
        };
        observe(
            observer,
            ops,
            MatrixInput::AttentionOutput(layer),
            &attended,
        )?;
        let output = group.weight(TensorPart::AttentionOutput);
        ops.linear_add(&mut hidden, 0, &attended, &output)?;
        Ok(hidden)
    }

    /// The MLP with its residual, in chunks of rows: the two intermediate matrices exist for one chunk only.
    fn mlp(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        hidden: &mut Activation,
        observer: Observer<'_, '_>,
    ) -> Result<(), EngineError> {
        let gate_up = acquire(ops, weights, WeightGroup::GateUp(layer))?;
        // Both groups are held for all chunks of rows, since a streamed one would have to be read again for each. So an
        // MLP holds two staging buffers at once, and a plan has three at least.
        let down = acquire(ops, weights, WeightGroup::Down(layer))?;
        let norm = gate_up.weight(TensorPart::MlpNorm);
        for start in (0..hidden.len()).step_by(self.mlp_rows) {
            let rows = start..hidden.len().min(start + self.mlp_rows);
            let x = ops.rms_norm(hidden, rows, &norm, self.config.epsilon)?;
            observe(observer, ops, MatrixInput::Mlp(layer), &x)?;
            let mut gate = ops.linear(&x, &gate_up.weight(TensorPart::Gate))?;
            let up = ops.linear(&x, &gate_up.weight(TensorPart::Up))?;
            ops.silu_mul(&mut gate, &up)?;
            observe(observer, ops, MatrixInput::Down(layer), &gate)?;
            ops.linear_add(hidden, start, &gate, &down.weight(TensorPart::Down))?;
        }
        Ok(())
    }

    /// The final norm, for the LM head.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn final_norm(
        &self,
        ops: &Ops,
        weights: &Residency,
        hidden: &Activation,
    ) -> Result<Activation, EngineError> {
        let group = acquire(ops, weights, WeightGroup::FinalNorm)?;
        let norm = group.weight(TensorPart::FinalNorm);
        Ok(ops.rms_norm(hidden, 0..hidden.len(), &norm, self.config.epsilon)?)
    }
}

/// Acquires a weight group. Where some are streamed, a GPU's clock counts the time that it stands still for the copy.
///
/// # Errors
/// When the weights cannot be read or allocated.
pub(crate) fn acquire<'a>(
    ops: &Ops,
    weights: &'a Residency,
    group: WeightGroup,
) -> Result<WeightGuard<'a>, EngineError> {
    let _timed = match weights.is_resident() {
        true => None,
        false => ops.timed(Phase::Wait),
    };
    weights.acquire(group)
}

/// All logits of rows after the final norm, row after row: for tests and checks of small models, since nothing else
/// needs them all at once.
///
/// # Errors
/// When memory cannot be allocated, or the device fails.
pub fn logits(
    ops: &Ops,
    weights: &Residency,
    hidden: &Activation,
) -> Result<Vec<f32>, EngineError> {
    let mut parts = Vec::new();
    for (group, _) in weights.lm_head_parts() {
        let head = weights.acquire(group)?;
        let part = ops.linear(hidden, &head.weight(TensorPart::LmHead))?;
        parts.push((part.width(), ops.read(&part)?));
    }
    let rows = (0..hidden.len()).flat_map(|row| {
        let of_row = |(width, values): &(usize, Vec<f32>)| values[row * width..][..*width].to_vec();
        parts.iter().flat_map(of_row).collect::<Vec<_>>()
    });
    Ok(rows.collect())
}
