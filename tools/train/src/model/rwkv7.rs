//! RWKV-7 with trainable weights.
//!
//! Paper: "RWKV-7 Goose with Expressive Dynamic State Evolution" (arXiv 2503.14456). Names and shapes are those of
//! flash-linear-attention; the arithmetic is that of the official model (`RWKV_Tmix_x070`, `RWKV_CMix_x070`). It differs
//! in computing in f32 throughout and in that the sequences of a pack are separate: the state and the row before are zero
//! at the beginning of each.

mod initial;

use std::ops::Range;

use anyhow::{Context as _, Result};
use candle_core::Tensor;

pub(super) use self::initial::random_weights;
use super::{Stream, Tensors};
use crate::{
    config::{Rwkv7Config, rwkv7::HEAD_WIDTH},
    ops::{self, Activation, Pack},
};

/// The layers and the LM head.
pub(super) struct Rwkv7 {
    config: Rwkv7Config,
    pub(super) embedding: Tensor,
    first_norm: Norm,
    layers: Vec<Layer>,
    final_norm: Norm,
    head: Tensor,
}

struct Norm {
    weight: Tensor,
    bias: Tensor,
}

/// A projection through few channels.
struct LowRank {
    down: Tensor,
    up: Tensor,
    bias: Option<Tensor>,
}

struct Layer {
    time_norm: Norm,
    /// For query, decay, key, value, rate and gate.
    shifts: [Tensor; 6],
    forget_weight: Tensor,
    rate_weight: Tensor,
    bonus_weight: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    decay: LowRank,
    rate: LowRank,
    /// The share of the first layer's values, in all layers but that.
    value_share: Option<LowRank>,
    gate: LowRank,
    group_norm: Norm,
    channel_norm: Norm,
    channel_shift: Tensor,
    channel_key: Tensor,
    channel_value: Tensor,
}

impl Norm {
    fn new(tensors: &mut Tensors<'_>) -> Result<Self> {
        Ok(Self {
            weight: tensors.next()?,
            bias: tensors.next()?,
        })
    }

    fn apply(&self, x: &Tensor, groups: usize, epsilon: f64) -> Result<Tensor> {
        Ok(ops::group_norm(
            x,
            &self.weight,
            &self.bias,
            groups,
            epsilon as f32,
        )?)
    }
}

impl LowRank {
    fn new(tensors: &mut Tensors<'_>, has_bias: bool) -> Result<Self> {
        Ok(Self {
            down: tensors.next()?,
            up: tensors.next()?,
            bias: has_bias.then(|| tensors.next()).transpose()?,
        })
    }

    /// The projection without its bias, with an activation between its halves.
    fn project(&self, x: &Tensor, inside: Option<Activation>) -> Result<Tensor> {
        let mut inner = ops::linear(x, &self.down)?;
        if let Some(activation) = inside {
            inner = ops::activate(&inner, None, activation)?;
        }
        Ok(ops::linear(&inner, &self.up)?)
    }

    /// The projection through an activation before and after.
    fn gate(&self, x: &Tensor, inside: Option<Activation>, outside: Activation) -> Result<Tensor> {
        let projected = self.project(x, inside)?;
        Ok(ops::activate(&projected, self.bias.as_ref(), outside)?)
    }
}

impl Rwkv7 {
    pub(super) fn new(config: &Rwkv7Config, tensors: &mut Tensors<'_>) -> Result<Self> {
        let embedding = tensors.next()?;
        let mut first_norm = None;
        let mut layers = Vec::new();
        for layer in 0..config.num_hidden_layers {
            if layer == 0 {
                first_norm = Some(Norm::new(tensors)?);
            }
            let mut next = || tensors.next();
            layers.push(Layer {
                time_norm: Norm {
                    weight: next()?,
                    bias: next()?,
                },
                shifts: [next()?, next()?, next()?, next()?, next()?, next()?],
                forget_weight: next()?,
                rate_weight: next()?,
                bonus_weight: next()?,
                query: next()?,
                key: next()?,
                value: next()?,
                out: next()?,
                decay: LowRank::new(tensors, true)?,
                rate: LowRank::new(tensors, true)?,
                value_share: (layer > 0)
                    .then(|| LowRank::new(tensors, true))
                    .transpose()?,
                gate: LowRank::new(tensors, false)?,
                group_norm: Norm::new(tensors)?,
                channel_norm: Norm::new(tensors)?,
                channel_shift: tensors.next()?,
                channel_key: tensors.next()?,
                channel_value: tensors.next()?,
            });
        }
        Ok(Self {
            config: config.clone(),
            embedding,
            first_norm: first_norm.context("a network needs layers")?,
            layers,
            final_norm: Norm::new(tensors)?,
            head: tensors.next()?,
        })
    }

    /// Sends the rows of a pack through a range of layers.
    pub(super) fn layers(
        &self,
        stream: Stream,
        range: Range<usize>,
        pack: &Pack,
    ) -> Result<Stream> {
        let epsilon = self.config.norm_eps;
        let Stream {
            mut x,
            mut first_values,
        } = stream;
        for (index, layer) in range.clone().zip(&self.layers[range]) {
            if index == 0 {
                x = self.first_norm.apply(&x, 1, epsilon)?;
            }
            let normed = layer.time_norm.apply(&x, 1, epsilon)?;
            let (mixed, values) =
                layer.time_mix(&normed, first_values.as_ref(), pack, &self.config)?;
            first_values.get_or_insert(values);
            x = (x + mixed)?;
            let normed = layer.channel_norm.apply(&x, 1, epsilon)?;
            let shifted = ops::token_shift(&normed, &layer.channel_shift, pack)?;
            let inner = ops::linear(&shifted, &layer.channel_key)?;
            let inner = ops::activate(&inner, None, Activation::SquaredRelu)?;
            x = (x + ops::linear(&inner, &layer.channel_value)?)?;
        }
        Ok(Stream { x, first_values })
    }

    /// Logits of rows: `[rows, vocabulary]`.
    pub(super) fn head(&self, x: &Tensor) -> Result<Tensor> {
        let normed = self.final_norm.apply(x, 1, self.config.norm_eps)?;
        Ok(ops::linear(&normed, &self.head)?)
    }
}

impl Layer {
    /// What is added to the stream, and the layer's own values.
    fn time_mix(
        &self,
        x: &Tensor,
        first_values: Option<&Tensor>,
        pack: &Pack,
        config: &Rwkv7Config,
    ) -> Result<(Tensor, Tensor)> {
        let heads = config.heads();
        let shift = |index: usize| ops::token_shift(x, &self.shifts[index], pack);
        let query = ops::linear(&shift(0)?, &self.query)?;
        let decay = self
            .decay
            .gate(&shift(1)?, Some(Activation::Tanh), Activation::Identity)?;
        let key = ops::linear(&shift(2)?, &self.key)?;
        let shifted = shift(3)?;
        let mut value = ops::linear(&shifted, &self.value)?;
        if let (Some(share), Some(first)) = (&self.value_share, first_values) {
            let share = share.gate(&shifted, None, Activation::Sigmoid)?;
            value = (&value + ((first - &value)? * share)?)?;
        }
        let rate = self.rate.gate(&shift(4)?, None, Activation::Sigmoid)?;
        let gate = self.gate.project(&shift(5)?, Some(Activation::Sigmoid))?;
        let forgotten = ops::normed_key(&key, &self.forget_weight, heads)?;
        let key = ops::rated_key(&key, &rate, &self.rate_weight)?;
        let inputs = Tensor::stack(&[&query, &decay, &key, &value, &forgotten, &rate], 0)?;
        let answer = ops::recurrence(&inputs, pack)?;
        // The epsilon is for the sum over a head instead of its mean.
        let epsilon = config.norm_eps * HEAD_WIDTH as f64;
        let answer = self.group_norm.apply(&answer, heads, epsilon)?;
        let own = Tensor::stack(&[&query, &key, &value], 0)?;
        let answer = (answer + ops::bonus(&own, &self.bonus_weight)?)?;
        Ok((ops::linear(&(answer * gate)?, &self.out)?, value))
    }
}
