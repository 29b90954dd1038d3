//! The decoder of a latent thought model with trainable weights.
//!
//! Paper: "Scalable Language Models with Posterior Inference of Latent Thought Vectors" (arXiv 2502.01567). Follows the
//! authors' implementation (`LatentThoughtModel` of mingluzhao/Latent-Thought-LM): pre-norm blocks, interleaved rotary
//! embedding, causal attention within a window, attention to the layer's own latent vectors, SwiGLU, tied output. It
//! differs in computing in f32 throughout.

use std::{collections::BTreeMap, ops::Range};

use anyhow::Result;
use candle_core::Tensor;
use sluice_weights::RopePairs;

use super::Tensors;
use crate::{
    config::LatentThoughtConfig,
    ops::{self, Pack, Rotation},
    random::Random,
};

/// Standard deviation of the matrices at the start, as in the reference; what is added to the stream has less, by depth.
const SPREAD: f64 = 0.02;

/// The layers and the LM head.
pub(super) struct LatentThought {
    config: LatentThoughtConfig,
    /// Also the LM head.
    pub(super) embedding: Tensor,
    layers: Vec<Layer>,
    final_norm: Tensor,
}

struct Attention {
    norm: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
}

struct Layer {
    own: Attention,
    latent: Attention,
    feed_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

/// Random weights for a shape.
pub(super) fn random_weights(
    config: &LatentThoughtConfig,
    seed: u64,
) -> BTreeMap<String, Vec<f32>> {
    let mut random = Random::new(seed, u64::MAX);
    // Each layer adds to the stream three times; the reference counts two.
    let added = SPREAD / (2.0 * config.n_layers as f64).sqrt();
    let tensors = config.tensors().into_iter().map(|(name, shape)| {
        let count = shape.iter().product();
        let values = if shape.len() == 1 {
            vec![1.0; count]
        } else {
            let adds = name.ends_with("wo.weight") || name.ends_with("down_proj.weight");
            let spread = if adds { added } else { SPREAD };
            let normal = |_| (random.normal() * spread) as f32;
            (0..count).map(normal).collect()
        };
        (name, values)
    });
    tensors.collect()
}

impl Attention {
    fn new(tensors: &mut Tensors<'_>) -> Result<Self> {
        Ok(Self {
            norm: tensors.next()?,
            query: tensors.next()?,
            key: tensors.next()?,
            value: tensors.next()?,
            out: tensors.next()?,
        })
    }
}

impl LatentThought {
    pub(super) fn new(config: &LatentThoughtConfig, tensors: &mut Tensors<'_>) -> Result<Self> {
        let embedding = tensors.next()?;
        let layers = (0..config.n_layers).map(|_| {
            Ok(Layer {
                own: Attention::new(tensors)?,
                latent: Attention::new(tensors)?,
                feed_norm: tensors.next()?,
                gate: tensors.next()?,
                up: tensors.next()?,
                down: tensors.next()?,
            })
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self {
            config: config.clone(),
            embedding,
            layers,
            final_norm: tensors.next()?,
        })
    }

    /// Sends the rows of a pack through a range of layers. `latents` are those of all layers, one sequence after another.
    pub(super) fn layers(
        &self,
        mut x: Tensor,
        range: Range<usize>,
        pack: &Pack,
        latents: &Tensor,
    ) -> Result<Tensor> {
        let LatentThoughtConfig {
            n_heads: heads,
            rope_theta: theta,
            window_size: window,
            max_z_len,
            dim,
            ..
        } = self.config;
        let epsilon = self.config.norm_eps as f32;
        let per_layer = self.config.latents_per_layer();
        let sequences = pack.sequences().count();
        let latents = latents.reshape((sequences, max_z_len, dim))?;
        let rotation = |positions| Rotation {
            positions,
            heads,
            theta,
            pairs: RopePairs::Interleaved,
        };
        let of_tokens = rotation(pack.positions().collect());
        let spacing = self.config.latent_spacing();
        let spread = (0..sequences).flat_map(|_| (0..per_layer).map(|index| index * spacing));
        let of_latents = rotation(spread.collect());
        let slots = Pack::new(vec![per_layer; sequences]);
        for (index, layer) in range.clone().zip(&self.layers[range]) {
            let Attention {
                norm,
                query,
                key,
                value,
                out,
            } = &layer.own;
            let normed = ops::rms_norm(&x, norm, epsilon)?;
            let mixed = ops::windowed_attention(
                &ops::rotate(&ops::linear(&normed, query)?, &of_tokens)?,
                &ops::rotate(&ops::linear(&normed, key)?, &of_tokens)?,
                &ops::linear(&normed, value)?,
                pack,
                heads,
                window,
            )?;
            x = (x + ops::linear(&mixed, out)?)?;

            let Attention {
                norm,
                query,
                key,
                value,
                out,
            } = &layer.latent;
            let own = latents
                .narrow(1, index * per_layer, per_layer)?
                .contiguous()?;
            let own = own.reshape((sequences * per_layer, dim))?;
            let normed = ops::rms_norm(&x, norm, epsilon)?;
            let mixed = ops::cross_attention(
                &ops::rotate(&ops::linear(&normed, query)?, &of_tokens)?,
                &ops::rotate(&ops::linear(&own, key)?, &of_latents)?,
                &ops::linear(&own, value)?,
                pack,
                &slots,
                heads,
            )?;
            x = (x + ops::linear(&mixed, out)?)?;

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
        let normed = ops::rms_norm(x, &self.final_norm, self.config.norm_eps as f32)?;
        Ok(ops::linear(&normed, &self.embedding)?)
    }
}
