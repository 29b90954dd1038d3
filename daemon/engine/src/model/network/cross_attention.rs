//! Cross-attention of a latent thought model to each layer's own latents, with its norm and its residual.
//!
//! Paper: Kong et al. 2025 (arXiv 2502.01567). Reference: `LatentThoughtModel` of mingluzhao/Latent-Thought-LM. A layer's
//! latents stand at positions of their own, spread over the context; they are not normed, and tokens see all of them.
//! Keys and values of the latents are computed in a sequence's first pass, and kept.

use sluice_ops::{Activation, AttentionShape, KeyRows, Ops};
use sluice_weights::{LatentShape, LayerHeads, TensorPart, WeightGroup};

use super::{
    Network, acquire,
    rows::{BatchRows, LatentKeys},
};
use crate::{
    error::EngineError,
    residency::{Residency, WeightGuard},
};

impl Network {
    /// Cross-attention with its residual; `hidden` has all rows or, in the last layer, the wanted ones.
    pub(super) fn cross_attention(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        hidden: &mut Activation,
        (rows, latents): (&BatchRows<'_>, &mut LatentKeys<'_>),
        sizes: LatentShape,
    ) -> Result<(), EngineError> {
        let group = acquire(ops, weights, WeightGroup::CrossAttention(layer))?;
        self.latent_keys(ops, layer, latents, &group, sizes)?;
        let is_last = layer + 1 == self.config.shape.layers;
        let norm = group.weight(TensorPart::CrossNorm);
        let x = ops.rms_norm(hidden, 0..hidden.len(), &norm, self.config.epsilon)?;
        let mut q = ops.linear(&x, &group.weight(TensorPart::CrossQuery))?;
        drop(x);
        let positions = match is_last {
            true => &rows.wanted_positions,
            false => &rows.positions,
        };
        if let Some(rope) = &self.rope {
            ops.rope([(&mut q, positions)], rope)?;
        }
        let caches: Vec<_> = latents
            .sequences
            .iter()
            .map(|(cache, _)| &**cache)
            .collect();
        let keys = KeyRows {
            pass: None,
            caches: &caches,
            layer,
        };
        let attended = ops.attend(
            &q,
            &keys,
            self.attention_shape(layer),
            latents.tasks(is_last),
        )?;
        drop(q);
        let output = group.weight(TensorPart::CrossOutput);
        Ok(ops.linear_add(hidden, 0, &attended, &output)?)
    }

    /// Computes keys and values of a layer's latents for the sequences whose first pass this is.
    fn latent_keys(
        &self,
        ops: &Ops,
        layer: usize,
        latents: &mut LatentKeys<'_>,
        group: &WeightGuard<'_>,
        sizes: LatentShape,
    ) -> Result<(), EngineError> {
        let width = self.config.shape.hidden_size;
        let positions = || (0..sizes.latents).map(|latent| latent * sizes.stride);
        for (cache, z) in &mut latents.sequences {
            if !cache.is_empty() {
                continue;
            }
            let len = sizes.latents * width;
            let z = ops.matrix(sizes.latents, width, &z[layer * len..][..len], ops.dtype())?;
            let mut k = ops.linear(&z, &group.weight(TensorPart::CrossKey))?;
            let v = ops.linear(&z, &group.weight(TensorPart::CrossValue))?;
            if let Some(rope) = &self.rope {
                ops.rope([(&mut k, &ops.indices(positions())?)], rope)?;
            }
            ops.put_kv(cache, layer, [&k, &v], 0..sizes.latents, 0)?;
        }
        Ok(())
    }

    /// How a layer's rows of queries, keys and values are made up of heads.
    pub(super) fn attention_shape(&self, layer: usize) -> AttentionShape {
        let LayerHeads { kv_heads, head_dim } = self.config.shape.heads(layer);
        AttentionShape {
            heads: self.config.shape.attention_heads,
            kv_heads,
            head_dim,
            // The norms of its heads are all that Gemma has.
            is_scaled: self.gemma().is_none(),
        }
    }
}
