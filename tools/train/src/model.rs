//! The LLaDA network with trainable weights.
//!
//! Paper: "Large Language Diffusion Models" (arXiv 2502.09992). Follows the reference implementation
//! (`modeling_llada.py`, class `LLaDALlamaBlock`): pre-norm blocks, half-split rotary embedding, attention without any
//! mask, no biases, no time-step input, untied LM head. It differs in computing in f32 throughout, in running the LM
//! head only where the caller asks for logits, and in that attention can be made autoregressive for the yardstick.

use std::{collections::BTreeMap, ops::Range};

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor, Var};

use crate::{
    config::{EMBEDDING, HEAD, MLP_OUTPUT, ModelConfig, block_tensor},
    ops::{self, Pack},
    random::Random,
};

/// Standard deviation of the embedding at the start. The other matrices have that of one over the root of their inputs,
/// so a normed row stays about that size.
const EMBEDDING_SPREAD: f64 = 0.3;

/// The network. Its weights are candle variables, so that a loss computed from it has gradients.
pub struct Model {
    /// The shape of the network.
    pub config: ModelConfig,
    variables: Vec<(String, Var)>,
    embedding: Tensor,
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

impl Model {
    /// A network with fresh random weights, in which attention begins by copying.
    ///
    /// What an attention head reads of a token, it writes as what stands for the same token: its output projection is
    /// the transpose of its value projection, and the LM head has the directions of the embedding. So attending to the
    /// right word pays from the first step. The mask is left out: what is hidden must not predict itself.
    pub fn random(config: ModelConfig, seed: u64, mask_id: u32, device: &Device) -> Result<Self> {
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
            if token != mask_id as usize {
                let aligned = embedding.iter().map(|value| value * scale);
                head.iter_mut()
                    .zip(aligned)
                    .for_each(|(head, value)| *head = value);
            }
        }
        Self::from_weights(config, weights, device)
    }

    /// A network with the given weights, which must be exactly those the shape asks for.
    pub fn from_weights(
        config: ModelConfig,
        mut weights: BTreeMap<String, Vec<f32>>,
        device: &Device,
    ) -> Result<Self> {
        ensure!(
            config.d_model.is_multiple_of(config.n_heads),
            "the width must be a multiple of the number of heads"
        );
        let mut variables = Vec::new();
        for (name, shape) in config.tensors() {
            let values = weights
                .remove(&name)
                .with_context(|| format!("the weights lack {name}"))?;
            let tensor =
                Tensor::from_vec(values, shape, device).with_context(|| format!("load {name}"))?;
            variables.push((name, Var::from_tensor(&tensor)?));
        }
        // A variable and the tensor made from it share their storage, so layers see every update.
        let mut tensors = variables
            .iter()
            .map(|(_, variable)| variable.as_tensor().clone());
        let mut next = || tensors.next().context("the shape lists too few tensors");
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
            config,
            variables,
            embedding,
            layers,
            final_norm,
            head,
        })
    }

    /// The trainable weights by name, always in the same order.
    #[must_use]
    pub fn variables(&self) -> &[(String, Var)] {
        &self.variables
    }

    /// Where the weights live.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// The rows of the embedding for these tokens: `[tokens, width]`.
    pub fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        let ids = Tensor::from_slice(ids, ids.len(), self.embedding.device())?;
        Ok(self.embedding.index_select(&ids, 0)?)
    }

    /// Sends the rows of a pack through a range of blocks.
    pub fn layers(&self, mut x: Tensor, range: Range<usize>, pack: &Pack) -> Result<Tensor> {
        let ModelConfig {
            n_heads: heads,
            rope_theta: theta,
            causal,
            ..
        } = self.config;
        let epsilon = self.config.rms_norm_eps as f32;
        for layer in &self.layers[range] {
            let normed = ops::rms_norm(&x, &layer.attention_norm, epsilon)?;
            let query = ops::rotate(&ops::linear(&normed, &layer.query)?, pack, heads, theta)?;
            let key = ops::rotate(&ops::linear(&normed, &layer.key)?, pack, heads, theta)?;
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

    /// Logits of the rows at the given positions, counted over the whole pack: `[positions, vocabulary]`.
    pub fn head(&self, x: &Tensor, positions: &[u32]) -> Result<Tensor> {
        let epsilon = self.config.rms_norm_eps as f32;
        let positions = Tensor::from_slice(positions, positions.len(), x.device())?;
        let chosen = x.index_select(&positions, 0)?;
        let normed = ops::rms_norm(&chosen, &self.final_norm, epsilon)?;
        Ok(ops::linear(&normed, &self.head)?)
    }

    /// Logits at the given positions: the three stages in a row.
    pub fn logits(&self, ids: &[u32], pack: &Pack, positions: &[u32]) -> Result<Tensor> {
        ensure!(
            pack.rows() == ids.len(),
            "the pack has {} rows for {} tokens",
            pack.rows(),
            ids.len()
        );
        let x = self.layers(self.embed(ids)?, 0..self.config.n_layers, pack)?;
        self.head(&x, positions)
    }
}
