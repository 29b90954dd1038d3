//! How likely tokens are with some latents, and the gradient for these: a forward and a backward pass of a latent thought
//! model, written by hand on the engine's operations, so that weights may be streamed and in any format.
//!
//! Weights get no gradients. Of the forward pass only what goes into each block is kept; what lies between is computed
//! again. The backward pass takes the weight groups in the reverse of their order, each once.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use sluice_ops::{
    Activation, AttentionKeys, AttentionRange, AttentionTasks, BackwardRange, BackwardTasks,
    Indices, KeyRows, KeySegment, Ops, OpsError,
};
use sluice_weights::{LatentShape, LayerKind, TensorPart, Weight, WeightGroup};

use super::{Interrupt, Network, acquire};
use crate::{
    error::EngineError,
    residency::{Residency, WeightGuard},
};

/// A text and latents for it.
#[derive(Debug, Clone, Copy)]
pub struct LatentText<'a> {
    /// Tokens that are read, from position 0 on.
    pub tokens: &'a [u32],
    /// For each of them the token that comes next.
    pub targets: &'a [u32],
    /// Targets before this one are given, and count nothing.
    pub first_target: usize,
    /// For each layer the same number of latents of the hidden size.
    pub z: &'a [f32],
    /// Whether the gradient is wanted, and not the cross-entropy alone.
    pub wants_gradient: bool,
}

/// How likely a text is with its latents.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentGradient {
    /// Cross-entropy of all targets that count together, in nats.
    pub nll: f64,
    /// Its gradient, an element for each of the latents; zeros where no text of the pass wants it.
    pub d_z: Vec<f32>,
}

/// The rows of a pass.
struct Rows {
    positions: Indices,
    /// Positions of the latents of a layer, one sequence after another.
    latent_positions: Indices,
    own: AttentionTasks,
    latents: AttentionTasks,
    /// The same ranges for the way back.
    own_back: BackwardTasks,
    latents_back: BackwardTasks,
}

/// What goes into the blocks of a layer.
struct LayerInputs {
    attention: Activation,
    cross: Activation,
    mlp: Activation,
}

/// A forward and a backward pass.
struct LatentPass<'a> {
    network: &'a Network,
    ops: &'a Ops,
    weights: &'a Residency,
    texts: &'a [LatentText<'a>],
    rows: Rows,
    sizes: LatentShape,
    cancel: &'a AtomicBool,
}

impl Network {
    /// Cross-entropies and gradients for the latents of texts that go through the layers together.
    ///
    /// # Errors
    /// When memory cannot be allocated, or `cancel` is set: it is checked before each layer.
    ///
    /// # Panics
    /// When the model has no latents, or a text none of its tokens, not a target for each, or too few latents.
    pub fn latent_gradients(
        &self,
        ops: &Ops,
        weights: &Residency,
        texts: &[LatentText<'_>],
        cancel: &AtomicBool,
    ) -> Result<Vec<LatentGradient>, Interrupt> {
        let LayerKind::LatentThought(sizes) = self.config.shape.layer_kind else {
            unreachable!("only such models are asked");
        };
        let pass = || {
            let pass = LatentPass {
                network: self,
                ops,
                weights,
                texts,
                rows: rows(ops, texts, sizes)?,
                sizes,
                cancel,
            };
            let (kept, hidden) = pass.forward()?;
            pass.backward(kept, hidden)
        };
        // As for other passes: operations of a resident model run on one pool thread.
        match weights.is_resident() {
            true => ops.device().within(pass),
            false => pass(),
        }
    }
}

impl LatentPass<'_> {
    /// The forward pass: what goes into each block, and what comes out of the last.
    fn forward(&self) -> Result<(Vec<LayerInputs>, Activation), Interrupt> {
        let Self {
            network,
            ops,
            weights,
            ..
        } = *self;
        weights.check_unchanged()?;
        let tokens = self.texts.iter().flat_map(|text| text.tokens);
        let tokens: Vec<u32> = tokens.copied().collect();
        let mut hidden = network.embedded(ops, weights, &tokens)?;
        let mut kept = Vec::with_capacity(network.config.shape.layers);
        for layer in 0..network.config.shape.layers {
            self.check()?;
            let keep = |hidden: &Activation| match self.wants_gradients() {
                true => ops.copy(hidden).map(Some),
                false => Ok(None),
            };
            let attention = keep(&hidden)?;
            let group = acquire(ops, weights, WeightGroup::Attention(layer))?;
            let qkv = self.own_projections(&group, &hidden)?;
            let tasks = (&self.rows.own, TensorPart::AttentionOutput);
            self.attend_add(&group, qkv, tasks, &mut hidden)?;
            drop(group);
            let cross = keep(&hidden)?;
            let group = acquire(ops, weights, WeightGroup::CrossAttention(layer))?;
            let qkv = self.cross_projections(&group, &hidden, layer)?;
            let tasks = (&self.rows.latents, TensorPart::CrossOutput);
            self.attend_add(&group, qkv, tasks, &mut hidden)?;
            drop(group);
            let mlp = keep(&hidden)?;
            network.mlp(ops, weights, layer, &mut hidden, &mut None)?;
            kept.extend(
                attention
                    .zip(cross)
                    .zip(mlp)
                    .map(|((attention, cross), mlp)| LayerInputs {
                        attention,
                        cross,
                        mlp,
                    }),
            );
        }
        Ok((kept, hidden))
    }

    fn backward(
        &self,
        kept: Vec<LayerInputs>,
        hidden: Activation,
    ) -> Result<Vec<LatentGradient>, Interrupt> {
        let (losses, mut d_hidden) = self.cross_entropy(hidden)?;
        let of_layer = self.sizes.latents * self.network.config.shape.hidden_size;
        let zeros = self.texts.iter().map(|text| vec![0.0; text.z.len()]);
        let mut found: Vec<Vec<f32>> = zeros.collect();
        let _reversed = self.weights.reversed();
        for (layer, inputs) in kept.into_iter().enumerate().rev() {
            self.check()?;
            let LayerInputs {
                attention,
                cross,
                mlp,
            } = inputs;
            self.mlp_backward(layer, &mlp, &mut d_hidden)?;
            drop(mlp);
            let d_z = self.cross_backward(layer, &cross, &mut d_hidden)?;
            drop(cross);
            let values = self.ops.read(&d_z)?;
            for (found, values) in found.iter_mut().zip(values.chunks_exact(of_layer)) {
                found[layer * of_layer..][..of_layer].copy_from_slice(values);
            }
            // What goes into the first layer is the embedding, which has no gradient.
            if layer > 0 {
                self.attention_backward(layer, &attention, &mut d_hidden)?;
            }
        }
        let gradients = found.into_iter().zip(losses);
        Ok(gradients
            .map(|(d_z, nll)| LatentGradient { nll, d_z })
            .collect())
    }

    fn wants_gradients(&self) -> bool {
        self.texts.iter().any(|text| text.wants_gradient)
    }

    fn check(&self) -> Result<(), Interrupt> {
        self.network.heartbeat.beat();
        match self.cancel.load(Ordering::Relaxed) {
            true => Err(Interrupt::Cancelled),
            false => Ok(()),
        }
    }

    fn norm(&self, x: &Activation, weight: &Weight<'_>) -> Result<Activation, OpsError> {
        let epsilon = self.network.config.epsilon;
        self.ops.rms_norm(x, 0..x.len(), weight, epsilon)
    }

    /// Queries, keys and values of the pass's rows, rotated.
    fn own_projections(
        &self,
        group: &WeightGuard<'_>,
        hidden: &Activation,
    ) -> Result<[Activation; 3], EngineError> {
        let x = self.norm(hidden, &group.weight(TensorPart::AttentionNorm))?;
        let project = |part| self.ops.linear(&x, &group.weight(part));
        let mut q = project(TensorPart::Query)?;
        let mut k = project(TensorPart::Key)?;
        let v = project(TensorPart::Value)?;
        if let Some(rope) = &self.network.rope {
            let positions = &self.rows.positions;
            (self.ops).rope([(&mut q, positions), (&mut k, positions)], rope)?;
        }
        Ok([q, k, v])
    }

    /// Queries of the pass's rows, and keys and values of a layer's latents, rotated.
    fn cross_projections(
        &self,
        group: &WeightGuard<'_>,
        hidden: &Activation,
        layer: usize,
    ) -> Result<[Activation; 3], EngineError> {
        let ops = self.ops;
        let x = self.norm(hidden, &group.weight(TensorPart::CrossNorm))?;
        let mut q = ops.linear(&x, &group.weight(TensorPart::CrossQuery))?;
        drop(x);
        let width = self.network.config.shape.hidden_size;
        let len = self.sizes.latents * width;
        let z = self
            .texts
            .iter()
            .flat_map(|text| &text.z[layer * len..][..len]);
        let z: Vec<f32> = z.copied().collect();
        let z = ops.matrix(z.len() / width, width, &z, ops.dtype())?;
        let mut k = ops.linear(&z, &group.weight(TensorPart::CrossKey))?;
        let v = ops.linear(&z, &group.weight(TensorPart::CrossValue))?;
        if let Some(rope) = &self.network.rope {
            let Rows {
                positions,
                latent_positions,
                ..
            } = &self.rows;
            ops.rope([(&mut q, positions), (&mut k, latent_positions)], rope)?;
        }
        Ok([q, k, v])
    }

    fn attend_add(
        &self,
        group: &WeightGuard<'_>,
        [q, k, v]: [Activation; 3],
        (tasks, output): (&AttentionTasks, TensorPart),
        hidden: &mut Activation,
    ) -> Result<(), EngineError> {
        let keys = KeyRows {
            pass: Some([&k, &v]),
            caches: &[],
            layer: 0,
        };
        // All of its layers have the same heads.
        let shape = self.network.attention_shape(0);
        let attended = self.ops.attend(&q, &keys, shape, tasks)?;
        let output = group.weight(output);
        Ok(self.ops.linear_add(hidden, 0, &attended, &output)?)
    }

    /// Cross-entropies of the texts, and the gradient for what comes out of the last layer.
    fn cross_entropy(&self, hidden: Activation) -> Result<(Vec<f64>, Activation), EngineError> {
        let Self {
            network,
            ops,
            weights,
            texts,
            ..
        } = *self;
        let targets: Vec<u32> = texts
            .iter()
            .flat_map(|text| text.targets)
            .copied()
            .collect();
        let x = network.final_norm(ops, weights, &hidden)?;
        let mut all = ops.start_cross_entropy(&targets, x.width())?;
        for (group, first) in weights.lm_head_parts() {
            let head = acquire(ops, weights, group)?;
            ops.add_cross_entropy(&mut all, &x, &head.weight(TensorPart::LmHead), first)?;
        }
        drop(x);
        let (losses, mut d_x) = ops.finish_cross_entropy(all)?;
        let mut row = 0;
        for text in texts {
            ops.zero_rows(&mut d_x, row..row + text.first_target)?;
            row += text.targets.len();
        }
        let group = acquire(ops, weights, WeightGroup::FinalNorm)?;
        let mut d_hidden = ops.zeros(hidden.len(), hidden.width())?;
        let norm = group.weight(TensorPart::FinalNorm);
        self.norm_backward(&mut d_hidden, &hidden, &d_x, &norm)?;
        let mut rest = losses.as_slice();
        let sums = texts.iter().map(|text| {
            let (own, others) = rest.split_at(text.targets.len());
            rest = others;
            own[text.first_target..].iter().sum()
        });
        Ok((sums.collect(), d_hidden))
    }

    fn norm_backward(
        &self,
        d_hidden: &mut Activation,
        inputs: &Activation,
        d_x: &Activation,
        weight: &Weight<'_>,
    ) -> Result<(), OpsError> {
        let epsilon = self.network.config.epsilon;
        self.ops
            .rms_norm_backward(d_hidden, inputs, d_x, weight, epsilon)
    }

    fn mlp_backward(
        &self,
        layer: usize,
        inputs: &Activation,
        d_hidden: &mut Activation,
    ) -> Result<(), EngineError> {
        let ops = self.ops;
        let down = acquire(ops, self.weights, WeightGroup::Down(layer))?;
        let gate_up = acquire(ops, self.weights, WeightGroup::GateUp(layer))?;
        let parts = [TensorPart::MlpNorm, TensorPart::Gate, TensorPart::Up];
        let [norm, gate_weight, up_weight] = parts.map(|part| gate_up.weight(part));
        let x = self.norm(inputs, &norm)?;
        let mut gate = ops.linear(&x, &gate_weight)?;
        let mut up = ops.linear(&x, &up_weight)?;
        drop(x);
        let d_inner = ops.linear_transposed(d_hidden, &down.weight(TensorPart::Down))?;
        ops.silu_mul_backward(&mut gate, &mut up, &d_inner)?;
        drop(d_inner);
        let mut d_x = ops.linear_transposed(&gate, &gate_weight)?;
        ops.linear_transposed_add(&mut d_x, &up, &up_weight)?;
        Ok(self.norm_backward(d_hidden, inputs, &d_x, &norm)?)
    }

    /// The gradient for the latents of a layer, one sequence after another.
    fn cross_backward(
        &self,
        layer: usize,
        inputs: &Activation,
        d_hidden: &mut Activation,
    ) -> Result<Activation, EngineError> {
        let ops = self.ops;
        let group = acquire(ops, self.weights, WeightGroup::CrossAttention(layer))?;
        let weight = |part| group.weight(part);
        let [q, k, v] = self.cross_projections(&group, inputs, layer)?;
        let d_out = ops.linear_transposed(d_hidden, &weight(TensorPart::CrossOutput))?;
        let ranges = &self.rows.latents_back;
        let shape = self.network.attention_shape(layer);
        let back = ops.attend_backward([&q, &k, &v], &d_out, shape, ranges);
        let [mut d_q, mut d_k, d_v] = back?;
        drop((q, k, v, d_out));
        if let Some(rope) = &self.network.rope {
            ops.rope_backward(&mut d_q, &self.rows.positions, rope)?;
            ops.rope_backward(&mut d_k, &self.rows.latent_positions, rope)?;
        }
        let d_x = ops.linear_transposed(&d_q, &weight(TensorPart::CrossQuery))?;
        self.norm_backward(d_hidden, inputs, &d_x, &weight(TensorPart::CrossNorm))?;
        let mut d_z = ops.linear_transposed(&d_k, &weight(TensorPart::CrossKey))?;
        ops.linear_transposed_add(&mut d_z, &d_v, &weight(TensorPart::CrossValue))?;
        Ok(d_z)
    }

    fn attention_backward(
        &self,
        layer: usize,
        inputs: &Activation,
        d_hidden: &mut Activation,
    ) -> Result<(), EngineError> {
        let ops = self.ops;
        let group = acquire(ops, self.weights, WeightGroup::Attention(layer))?;
        let weight = |part| group.weight(part);
        let [q, k, v] = self.own_projections(&group, inputs)?;
        let d_out = ops.linear_transposed(d_hidden, &weight(TensorPart::AttentionOutput))?;
        let ranges = &self.rows.own_back;
        let shape = self.network.attention_shape(layer);
        let back = ops.attend_backward([&q, &k, &v], &d_out, shape, ranges);
        let [mut d_q, mut d_k, d_v] = back?;
        drop((q, k, v, d_out));
        if let Some(rope) = &self.network.rope {
            ops.rope_backward(&mut d_q, &self.rows.positions, rope)?;
            ops.rope_backward(&mut d_k, &self.rows.positions, rope)?;
        }
        let mut d_x = ops.linear_transposed(&d_q, &weight(TensorPart::Query))?;
        ops.linear_transposed_add(&mut d_x, &d_k, &weight(TensorPart::Key))?;
        ops.linear_transposed_add(&mut d_x, &d_v, &weight(TensorPart::Value))?;
        let norm = weight(TensorPart::AttentionNorm);
        Ok(self.norm_backward(d_hidden, inputs, &d_x, &norm)?)
    }
}

/// Where the rows of the texts stand, and what they see.
fn rows(ops: &Ops, texts: &[LatentText<'_>], sizes: LatentShape) -> Result<Rows, EngineError> {
    let mut end = 0;
    let own: Vec<Range<usize>> = (texts.iter())
        .map(|text| {
            assert!(!text.tokens.is_empty() && text.tokens.len() == text.targets.len());
            let start = end;
            end += text.tokens.len();
            start..end
        })
        .collect();
    let of_latents = |index: usize| index * sizes.latents..(index + 1) * sizes.latents;
    let each = || own.iter().cloned().enumerate();
    let tasks = each().map(|(_, rows)| AttentionRange {
        queries: rows.clone(),
        keys: AttentionKeys::PassWindow {
            rows,
            window: sizes.window,
        },
    });
    let latent_tasks = each().map(|(index, queries)| AttentionRange {
        queries,
        keys: AttentionKeys::Pass(vec![KeySegment {
            start: of_latents(index).start,
            len: sizes.latents,
        }]),
    });
    let own_back = each().map(|(_, rows)| BackwardRange {
        queries: rows.clone(),
        keys: rows,
        window: Some(sizes.window),
    });
    let latents_back = each().map(|(index, queries)| BackwardRange {
        queries,
        keys: of_latents(index),
        window: None,
    });
    let latent_positions =
        (0..texts.len()).flat_map(|_| (0..sizes.latents).map(|latent| latent * sizes.stride));
    Ok(Rows {
        positions: ops.indices(own.iter().flat_map(|rows| 0..rows.len()))?,
        latent_positions: ops.indices(latent_positions)?,
        own: ops.attention_tasks(tasks.collect())?,
        latents: ops.attention_tasks(latent_tasks.collect())?,
        own_back: ops.backward_tasks(own_back.collect())?,
        latents_back: ops.backward_tasks(latents_back.collect())?,
    })
}
