//! The LLaDA network with trainable weights.
//!
//! Paper: "Large Language Diffusion Models" (arXiv 2502.09992). Follows the reference implementation
//! (`modeling_llada.py`, class `LLaDALlamaBlock`): pre-norm blocks, half-split rotary embedding, attention without any
//! mask, no biases, no time-step input, untied LM head. It differs in computing in f32 throughout, in running the LM
//! head only where the caller asks for logits, and in that attention can be made autoregressive for the yardstick.

use std::{collections::BTreeMap, ops::Range};

use anyhow::{Context, Result};
use candle_core::Tensor;
use sluice_weights::RopePairs;

use super::Tensors;
use crate::{
    config::transformer::{EMBEDDING, HEAD, MLP_OUTPUT, TransformerConfig, block_tensor},
    ops::{self, Pack, Rotation},
    random::Random,
};

/// Standard deviation of the embedding at the start. The other matrices have that of one over the root of their inputs,
/// so a normed row stays about that size.
const EMBEDDING_SPREAD: f64 = 0.3;

/// The layers and the LM head.
pub(super) struct Transformer {
    config: TransformerConfig,
    pub(super) embedding: Tensor,
    layers: Vec<Layer>,
    final_norm: Tensor,
    head: Tensor,
}

struct Layer {
    attention_norm: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_out: Tensor,
    feed_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

/// Random weights with which attention begins by copying.
///
/// What an attention head reads of a token, it writes as what stands for the same token: its output projection is
/// the transpose of its value projection, and the LM head has the directions of the embedding. So attending to the
/// right word pays from the first step. The mask is left out: what is hidden must not predict itself.
pub(super) fn random_weights(
    config: &TransformerConfig,
    seed: u64,
    mask_id: Option<u32>,
) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut random = Random::new(seed, u64::MAX);
    let layers = config.n_layers as f64;
    let mut weights: BTreeMap<String, Vec<f32>> = config
        .tensors()
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product();
            let values = if shape.len() == 1 {
                vec![1.0; count]
            } else {
                let even = (shape[1] as f64).sqrt().recip();
                // A row of the embedding weighs more than what the first blocks add to it. Otherwise noise hides
                // which token stands where.
                let spread = if name == EMBEDDING {
                    EMBEDDING_SPREAD
                } else if name.contains("blocks") && name.ends_with(MLP_OUTPUT) {
                    EMBEDDING_SPREAD / (2.0 * shape[1] as f64 * layers).sqrt()
                } else {
                    even
                };
                (0..count)
                    .map(|_| (random.normal() * spread) as f32)
                    .collect()
            };
            (name, values)
        })
        .collect();

    let width = config.d_model;
    for layer in 0..config.n_layers {
        let value = weights[&block_tensor(layer, "v_proj")].clone();
        let output = (0..width * width)
            .map(|place| EMBEDDING_SPREAD as f32 * value[place % width * width + place / width])
            .collect();
        weights.insert(block_tensor(layer, "attn_out"), output);
    }
    let scale = ((width as f64).sqrt().recip() / EMBEDDING_SPREAD) as f32;
    let embedding = weights[EMBEDDING].clone();
    let head = weights.get_mut(HEAD).context("the shape lists no head")?;
    let rows = head
        .chunks_exact_mut(width)
        .zip(embedding.chunks_exact(width));
    for (token, (head, embedding)) in rows.enumerate() {
        if Some(token as u32) != mask_id {
            let aligned = embedding.iter().map(|value| value * scale);
            head.iter_mut()
                .zip(aligned)
                .for_each(|(head, value)| *head = value);
        }
    }
    Ok(weights)
}

impl Transformer {
    pub(super) fn new(config: &TransformerConfig, tensors: &mut Tensors<'_>) -> Result<Self> {
        let mut next = || tensors.next();
        let embedding = next()?;
        let layers = (0..config.n_layers)
            .map(|_| {
                Ok(Layer {
                    attention_norm: next()?,
                    query: next()?,
                    key: next()?,
                    value: next()?,
                    attention_out: next()?,
                    feed_norm: next()?,
                    gate: next()?,
                    up: next()?,
                    down: next()?,
                })
            })
            .collect::<Result<_>>()?;
        let (final_norm, head) = (next()?, next()?);
        Ok(Self {
            config: config.clone(),
            embedding,
            layers,
            final_norm,
            head,
        })
    }

    /// Sends the rows of a pack through a range of blocks.
    pub(super) fn layers(&self, mut x: Tensor, range: Range<usize>, pack: &Pack) -> Result<Tensor> {
        let TransformerConfig {
            n_heads: heads,
            rope_theta: theta,
            causal,
            ..
        } = self.config;
        let epsilon = self.config.rms_norm_eps as f32;
        let rotation = Rotation {
            positions: pack.positions().collect(),
            heads,
            theta,
            pairs: RopePairs::HalfSplit,
        };
        for layer in &self.layers[range] {
            let normed = ops::rms_norm(&x, &layer.attention_norm, epsilon)?;
            let query = ops::rotate(&ops::linear(&normed, &layer.query)?, &rotation)?;
            let key = ops::rotate(&ops::linear(&normed, &layer.key)?, &rotation)?;
            let value = ops::linear(&normed, &layer.value)?;
            let mixed = ops::attention(&query, &key, &value, pack, heads, causal)?;
            x = (x + ops::linear(&mixed, &layer.attention_out)?)?;
            let normed = ops::rms_norm(&x, &layer.feed_norm, epsilon)?;
            let inner = ops::gated(
                &ops::linear(&normed, &layer.gate)?,
                &ops::linear(&normed, &layer.up)?,
            )?;
            x = (x + ops::linear(&inner, &layer.down)?)?;
        }
        Ok(x)
    }

    /// Logits of rows: `[rows, vocabulary]`.
    pub(super) fn head(&self, x: &Tensor) -> Result<Tensor> {
        let normed = ops::rms_norm(x, &self.final_norm, self.config.rms_norm_eps as f32)?;
        Ok(ops::linear(&normed, &self.head)?)
    }
}
