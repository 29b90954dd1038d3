//! The LLaDA network with trainable weights.
//!
//! Paper: "Large Language Diffusion Models" (arXiv 2502.09992). Follows the reference implementation
//! (`modeling_llada.py`, class `LLaDALlamaBlock`): pre-norm blocks, half-split rotary embedding, attention without any
//! mask, no biases, no time-step input, untied head. It differs in computing in f32 throughout and in running the head
//! only where the caller asks for logits.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor, Var};

use crate::{config::ModelConfig, ops, random::Random};

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
    /// A network with fresh random weights.
    pub fn random(config: ModelConfig, seed: u64) -> Result<Self> {
        let mut random = Random::new(seed, u64::MAX);
        let depth_scale = (2.0 * config.n_layers as f64).sqrt().recip();
        let weights = config
            .tensors()
            .into_iter()
            .map(|(name, shape)| {
                let count = shape.iter().product();
                let values = if shape.len() == 1 {
                    vec![1.0; count]
                } else {
                    // What is added to the residual stream starts small, the deeper the network the smaller.
                    let adds = name.ends_with("attn_out.weight")
                        || name.contains("blocks") && name.ends_with("ff_out.weight");
                    let spread =
                        (shape[1] as f64).sqrt().recip() * if adds { depth_scale } else { 1.0 };
                    (0..count)
                        .map(|_| (random.normal() * spread) as f32)
                        .collect()
                };
                (name, values)
            })
            .collect();
        Self::from_weights(config, weights)
    }

    /// A network with the given weights, which must be exactly those the shape asks for.
    pub fn from_weights(
        config: ModelConfig,
        mut weights: BTreeMap<String, Vec<f32>>,
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
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu)
                .with_context(|| format!("load {name}"))?;
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

    /// Logits at the given positions, counted over all sequences laid end to end.
    ///
    /// `ids` holds whole sequences of `length` tokens.
    pub fn logits(&self, ids: &[u32], length: usize, positions: &[u32]) -> Result<Tensor> {
        ensure!(
            length > 0 && ids.len().is_multiple_of(length),
            "the tokens are not whole sequences of {length}"
        );
        let heads = self.config.n_heads;
        let epsilon = self.config.rms_norm_eps as f32;
        let ids = Tensor::from_slice(ids, ids.len(), &Device::Cpu)?;
        let mut x = self.embedding.index_select(&ids, 0)?;
        for layer in &self.layers {
            let normed = ops::rms_norm(&x, &layer.attention_norm, epsilon)?;
            let query = ops::rotate(
                &ops::linear(&normed, &layer.query)?,
                length,
                heads,
                self.config.rope_theta,
            )?;
            let key = ops::rotate(
                &ops::linear(&normed, &layer.key)?,
                length,
                heads,
                self.config.rope_theta,
            )?;
            let value = ops::linear(&normed, &layer.value)?;
            let mixed = ops::attention(&query, &key, &value, length, heads)?;
            x = (x + ops::linear(&mixed, &layer.attention_out)?)?;
            let normed = ops::rms_norm(&x, &layer.feed_norm, epsilon)?;
            let inner = ops::gated(
                &ops::linear(&normed, &layer.gate)?,
                &ops::linear(&normed, &layer.up)?,
            )?;
            x = (x + ops::linear(&inner, &layer.down)?)?;
        }
        let positions = Tensor::from_slice(positions, positions.len(), &Device::Cpu)?;
        let chosen = x.index_select(&positions, 0)?;
        Ok(ops::linear(
            &ops::rms_norm(&chosen, &self.final_norm, epsilon)?,
            &self.head,
        )?)
    }
}
