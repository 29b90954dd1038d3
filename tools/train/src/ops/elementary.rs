//! The same operations composed of candle's elementary ones, which have gradients on every device. They are used where
//! the fused ones do not run, and the tests compare the fused ones with them.

mod rwkv7;

use std::ops::Range;

use candle_core::{D, DType, Result, Tensor};
use sluice_weights::RopePairs;

use super::{Pack, Rotation, span::Span};

pub(super) use self::rwkv7::{
    activate, bonus, group_norm, normed_key, rated_key, recurrence, token_shift,
};

/// [`super::linear`], from candle's matmul.
pub(super) fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    x.matmul(&weight.t()?)
}

/// [`super::rms_norm`], from candle's elementary operations.
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    let mean_square = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(epsilon))?;
    x.broadcast_div(&mean_square.sqrt()?)?.broadcast_mul(weight)
}

/// [`super::rotate`], from candle's elementary operations.
pub(super) fn rotate(x: &Tensor, rotation: &Rotation) -> Result<Tensor> {
    let Rotation {
        positions,
        heads,
        theta,
        pairs,
    } = rotation;
    let (rows, width) = x.dims2()?;
    let (heads, half) = (*heads, width / heads / 2);
    let angles: Vec<f32> = positions
        .iter()
        .flat_map(|position| {
            (0..half)
                .map(move |pair| *position as f32 * theta.powf(-(pair as f64) / half as f64) as f32)
        })
        .collect();
    let angles = Tensor::from_vec(angles, (rows, 1, half), x.device())?;
    let (cos, sin) = (angles.cos()?, angles.sin()?);
    // The axis along which the two of a pair lie.
    let (shape, axis) = match pairs {
        RopePairs::HalfSplit => ((rows, heads, 2, half), 2),
        RopePairs::Interleaved => ((rows, heads, half, 2), 3),
    };
    let split = x.reshape(shape)?;
    let [first, second] = [0, 1].map(|which| split.narrow(axis, which, 1)?.squeeze(axis));
    let (first, second) = (first?, second?);
    let turned = [
        (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?,
        (second.broadcast_mul(&cos)? + first.broadcast_mul(&sin)?)?,
    ];
    Tensor::stack(&turned, axis)?.reshape((rows, width))
}

/// [`super::gated`], from candle's elementary operations.
pub(super) fn gated(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.silu()? * up
}

/// [`super::attention`], one sequence after another.
pub(super) fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    packs: [&Pack; 2],
    heads: usize,
    span: Span,
) -> Result<Tensor> {
    let [queries, keys] = packs;
    let (_, width) = query.dims2()?;
    let sequences = queries
        .sequences()
        .zip(keys.sequences())
        .map(|(rows, keys)| {
            let (length, seen) = (rows.len(), keys.len());
            let split = |x: &Tensor, rows: &Range<usize>| {
                x.narrow(0, rows.start, rows.len())?
                    .reshape((rows.len(), heads, width / heads))?
                    .transpose(0, 1)?
                    .contiguous()
            };
            let (query, key, value) = (
                split(query, &rows)?,
                split(key, &keys)?,
                split(value, &keys)?,
            );
            let mut scores = (query.matmul(&key.t()?)? / ((width / heads) as f64).sqrt())?;
            if let Span::Before(_) = span {
                let unseen: Vec<f32> = (0..length * seen)
                    .map(|index| {
                        if span.keys(index / seen, seen).contains(&(index % seen)) {
                            0.0
                        } else {
                            f32::NEG_INFINITY
                        }
                    })
                    .collect();
                let unseen = Tensor::from_vec(unseen, (length, seen), query.device())?;
                scores = scores.broadcast_add(&unseen)?;
            }
            // Detached: the shift by the maximum cancels out, and needs no gradient.
            let largest = scores.max_keepdim(D::Minus1)?.detach();
            let scores = scores.broadcast_sub(&largest)?.exp()?;
            let probabilities = scores.broadcast_div(&scores.sum_keepdim(D::Minus1)?)?;
            probabilities
                .matmul(&value)?
                .transpose(0, 1)?
                .contiguous()?
                .reshape((length, width))
        })
        .collect::<Result<Vec<_>>>()?;
    Tensor::cat(&sequences, 0)
}

/// [`super::cross_entropy`], from candle's elementary operations.
pub(super) fn cross_entropy(logits: &Tensor, targets: &[u32], weights: &[f32]) -> Result<Tensor> {
    let device = logits.device();
    let largest = logits.max_keepdim(D::Minus1)?.detach();
    let logits = logits.broadcast_sub(&largest)?;
    let log_sum = logits.exp()?.sum_keepdim(D::Minus1)?.log()?;
    let targets = Tensor::from_slice(targets, (targets.len(), 1), device)?.to_dtype(DType::U32)?;
    let losses = (log_sum - logits.gather(&targets, 1)?)?;
    (losses.squeeze(1)? * Tensor::from_slice(weights, weights.len(), device)?)?.sum_all()
}

/// [`super::divergence`], from candle's elementary operations.
pub(super) fn divergence(logits: &Tensor, reference: &Tensor, weights: &[f32]) -> Result<Tensor> {
    let log_probabilities = |logits: &Tensor| {
        let largest = logits.max_keepdim(D::Minus1)?.detach();
        let logits = logits.broadcast_sub(&largest)?;
        logits.broadcast_sub(&logits.exp()?.sum_keepdim(D::Minus1)?.log()?)
    };
    let reference = log_probabilities(&reference.detach())?;
    let ratios = (&reference - log_probabilities(logits)?)?;
    let divergences = (reference.exp()? * ratios)?.sum(D::Minus1)?;
    (divergences * Tensor::from_slice(weights, weights.len(), logits.device())?)?.sum_all()
}
