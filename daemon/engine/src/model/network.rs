//! The layers of all families, written once for every device, format and tier: pre-norm blocks of attention and a gated
//! MLP or a mixture of experts, or of RWKV-7's time mix and channel mix; and post-norm blocks of sentence encoders.
//!
//! With attention: RMSNorm in `f32`, rotary embedding at positions counted from the start of the prompt, SwiGLU.
//!
//! Differences from the reference implementations: the last layer's queries, attention output and MLP are computed only
//! for the rows that are read, and the MLP goes through the rows in chunks; neither changes an element beyond float
//! order. Rows of several sequences may share a pass; each attends to its own sequence alone. Of a sequence with a KV
//! cache, a pass computes only some rows. A pruned layer has the rows and columns of the KV heads that it keeps, each
//! with its query heads; between the projections its rows have the model's layout, with zeros in the place of the others.

mod attention;
mod cpu_experts;
mod cross_attention;
mod encoder;
mod gemma;
mod latent_gradient;
mod mixture;
mod mlp;
mod rows;
mod rwkv7;

use std::sync::atomic::{AtomicBool, Ordering};

use sluice_checkpoint::family::ModelConfig;
use sluice_ops::{Activation, Ops, OpsError, Phase, RopeTable};
use sluice_plan::MLP_ROWS;
use sluice_weights::{EncoderShape, LayerKind, MatrixInput, TensorPart, WeightGroup};

use self::rows::{BatchKeys, BatchRows};
pub use self::{
    latent_gradient::{LatentGradient, LatentText},
    rows::{Sequence, VisibleKeys},
};
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
pub struct Network {
    config: ModelConfig,
    rope: Option<RopeTable>,
    /// Of queries, where another than that of keys.
    query_rope: Option<RopeTable>,
    /// Of layers that see all, where others have a window.
    full_rope: Option<RopeTable>,
    mlp_rows: usize,
    heartbeat: Heartbeat,
}

impl Network {
    /// The model of this configuration.
    ///
    /// # Errors
    /// When memory for its tables cannot be allocated.
    pub fn new(config: ModelConfig, ops: &Ops) -> Result<Self, EngineError> {
        let length = config.shape.context_length;
        let (rope, query_rope) = match &config.rope {
            Some(rope) => (
                Some(RopeTable::new(rope, length, ops)?),
                RopeTable::of_queries(rope, length, ops)?,
            ),
            None => (None, None),
        };
        let full_rope = config.full_rope.as_ref();
        let full_rope = full_rope.map(|rope| RopeTable::new(rope, length, ops));
        Ok(Self {
            full_rope: full_rope.transpose()?,
            config,
            rope,
            query_rope,
            mlp_rows: MLP_ROWS,
            heartbeat: Heartbeat::default(),
        })
    }

    /// Sets how many rows go through an MLP together: fewer take less memory. On the CPU they give the same bits; a GPU chooses
    /// kernels by the number of rows.
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
            bos_token_id,
            inference,
            sentences,
            ..
        } = &self.config;
        ModelInfo {
            family: family.name(),
            parameters: weights.parameters(shape.tied),
            weight_bytes: weights.weight_bytes(),
            formats: weights.formats(),
            layers: shape.layers,
            layer_kind: shape.layer_kind,
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
            bos_token_id: *bos_token_id,
            has_prior: false,
            inference: *inference,
            sentences: *sentences,
            state: None,
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

    /// [`Network::forward`], whose matrices' inputs the observer sees.
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
        let blocks = self.config.mask.and_then(|mask| mask.blocks);
        let block_length = blocks.map(|blocks| blocks.length);
        let (rows, mut seen) = rows::batched(sequences, block_length, ops)?;
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
            match sees {
                VisibleKeys::Before { cache } => cache.advance(tokens.len()),
                VisibleKeys::Latent { cache, latents, .. } => {
                    cache.advance(tokens.len());
                    if latents.is_empty() {
                        latents.advance(latents.capacity());
                    }
                }
                VisibleKeys::Text { caches } => {
                    for cache in caches.iter_mut() {
                        cache.advance(tokens.len());
                    }
                }
                VisibleKeys::State { state, fork } => {
                    if let Some((rows, fork)) = fork {
                        fork.forked_from(state, *rows);
                    }
                    state.advance(tokens.len());
                }
                VisibleKeys::Each { .. }
                | VisibleKeys::Cached { .. }
                | VisibleKeys::Blocks { .. }
                | VisibleKeys::Canvas { .. } => {}
            }
        }
        Ok(hidden)
    }

    fn layers(
        &self,
        ops: &Ops,
        weights: &Residency,
        rows: &BatchRows<'_>,
        seen: &mut BatchKeys<'_>,
        cancel: &AtomicBool,
        observer: Observer<'_, '_>,
    ) -> Result<Activation, Interrupt> {
        // The embedding's rows may be read from a file below; a file replaced meanwhile would mix two models.
        weights.check_unchanged()?;
        let mut hidden = self.embedded(ops, weights, &rows.tokens)?;
        if self.gemma().is_some() {
            self.self_conditioning(ops, weights, &mut hidden, &rows.canvases)?;
        }
        if self.encoder().is_some_and(EncoderShape::has_layers) {
            hidden = self.finish_embedding(ops, weights, hidden, rows)?;
        }
        let mut first_value = None;
        for layer in 0..self.config.shape.layers {
            if cancel.load(Ordering::Relaxed) {
                return Err(Interrupt::Cancelled);
            }
            self.heartbeat.beat();
            match self.config.shape.layer_kind {
                LayerKind::Attention => {
                    hidden = self.attention(ops, weights, layer, hidden, (rows, seen), observer)?;
                    self.mlp(ops, weights, layer, &mut hidden, observer)?;
                }
                LayerKind::Mixture(_) => {
                    hidden = self.attention(ops, weights, layer, hidden, (rows, seen), observer)?;
                    match self.config.shape.experts(layer) {
                        Some(experts) => {
                            self.mixture(ops, weights, layer, &mut hidden, experts)?;
                        }
                        None => self.mlp(ops, weights, layer, &mut hidden, observer)?,
                    }
                }
                LayerKind::Gemma(gemma) => {
                    hidden = self.attention(ops, weights, layer, hidden, (rows, seen), observer)?;
                    let are_text = rows.are_text(layer + 1 == self.config.shape.layers);
                    self.feed_forward(ops, weights, layer, &mut hidden, (&gemma, are_text))?;
                }
                LayerKind::LatentThought(sizes) => {
                    hidden = self.attention(ops, weights, layer, hidden, (rows, seen), observer)?;
                    let kept = (rows, &mut seen.latents);
                    self.cross_attention(ops, weights, layer, &mut hidden, kept, sizes)?;
                    self.mlp(ops, weights, layer, &mut hidden, observer)?;
                }
                LayerKind::Encoder(_) => {
                    hidden = self.encoder_layer(ops, weights, layer, hidden, seen)?;
                }
                LayerKind::Rwkv7(_) => {
                    let states = &mut seen.states;
                    let kept = (&mut *states, &mut first_value);
                    hidden = self.time_mix(ops, weights, layer, hidden, kept)?;
                    self.channel_mix(ops, weights, layer, &mut hidden, states)?;
                }
            }
        }
        match self.config.shape.layer_kind {
            // The last layer's state needs all rows.
            LayerKind::Rwkv7(_) => Ok(ops.take_rows(&hidden, &rows.wanted)?),
            _ => Ok(hidden),
        }
    }

    /// The embedding's rows of these tokens.
    fn embedded(
        &self,
        ops: &Ops,
        weights: &Residency,
        tokens: &[u32],
    ) -> Result<Activation, EngineError> {
        let width = self.config.shape.hidden_size;
        match weights.embedding()? {
            Some(table) => Ok(ops.embed(tokens, &table.weight(TensorPart::Embedding))?),
            None => ops.embed_rows(tokens, width, |id, row| weights.embedding_row(id, row)),
        }
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
        if let LayerKind::Rwkv7(_) = self.config.shape.layer_kind {
            return self.final_layer_norm(ops, weights, hidden);
        }
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
    waiting(ops, weights, || weights.acquire(group))
}

/// Acquires an expert if it is there; a GPU may have to wait for the copy of one.
fn try_acquire<'a>(
    ops: &Ops,
    weights: &'a Residency,
    group: WeightGroup,
) -> Option<WeightGuard<'a>> {
    waiting(ops, weights, || weights.try_acquire(group))
}

/// Counts what is done as waiting, if anything is streamed.
fn waiting<T>(ops: &Ops, weights: &Residency, acquire: impl FnOnce() -> T) -> T {
    let _timed = match weights.is_resident() {
        true => None,
        false => ops.timed(Phase::Wait),
    };
    acquire()
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
