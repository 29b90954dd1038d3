//! RWKV-7's layers: a time mix whose state has a fixed size, and a channel mix, each with its norm and its residual.
//!
//! Paper: Peng et al. 2025 (arXiv 2503.14456). References: flash-linear-attention's `RWKV7Attention` and the package
//! `rwkv`. Rows of a sequence follow one another, each read after the one before it; prompts go through the projections
//! in chunks of rows, and through the recurrence row by row.

use sluice_formats::DType;
use sluice_ops::{
    Activation, ChannelFunction, Ops, PassStates, StatePart, TimeMixInputs, TimeMixVector,
};
use sluice_weights::{RWKV7_HEAD_DIM, Rwkv7Part, TensorPart, Weight, WeightGroup};

use super::{Network, acquire};
use crate::{error::EngineError, residency::Residency};

/// The vectors of [`TimeMixInputs`] in their order; the first layer lacks the last.
const VECTORS: [(TimeMixVector, Rwkv7Part); 8] = [
    (TimeMixVector::DecayBias, Rwkv7Part::DecayBias),
    (TimeMixVector::LearningRateBias, Rwkv7Part::LearningRateBias),
    (TimeMixVector::KeyScale, Rwkv7Part::KeyScale),
    (TimeMixVector::KeyLearningRate, Rwkv7Part::KeyLearningRate),
    (TimeMixVector::Bonus, Rwkv7Part::Bonus),
    (TimeMixVector::HeadNorm, Rwkv7Part::HeadNorm),
    (TimeMixVector::HeadNormBias, Rwkv7Part::HeadNormBias),
    (TimeMixVector::ValueBias, Rwkv7Part::ValueBias),
];

impl Network {
    /// The time mix with its residual. The first layer's values are kept in `first_value` for the layers after it.
    pub(super) fn time_mix(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        mut hidden: Activation,
        (states, first_value): (&mut PassStates<'_>, &mut Option<Activation>),
    ) -> Result<Activation, EngineError> {
        let group = acquire(ops, weights, WeightGroup::Attention(layer))?;
        let own = |part: Rwkv7Part| group.weight(TensorPart::Rwkv7(part));
        let epsilon = self.config.epsilon;
        let all = 0..hidden.len();
        if layer == 0 {
            let norm = ops.vectors(&[own(Rwkv7Part::FirstNorm), own(Rwkv7Part::FirstNormBias)])?;
            hidden = ops.layer_norm(&hidden, all.clone(), (&norm, [0, 1]), epsilon, DType::F32)?;
        }
        let vectors = ops.vectors(&[
            group.weight(TensorPart::AttentionNorm),
            group.weight(TensorPart::AttentionNormBias),
            own(Rwkv7Part::MixReceptance),
            own(Rwkv7Part::MixDecay),
            own(Rwkv7Part::MixKey),
            own(Rwkv7Part::MixValue),
            own(Rwkv7Part::MixLearningRate),
            own(Rwkv7Part::MixGate),
        ])?;
        let dtype = ops.dtype();
        let x = ops.layer_norm(&hidden, all.clone(), (&vectors, [0, 1]), epsilon, dtype)?;
        let place = (layer, StatePart::TimeMixInput);
        let mixed =
            |share: usize| ops.shift_mix(&x, all.clone(), states, place, (&vectors, 2 + share));
        let low_rank = |x: Activation, down, function: Option<ChannelFunction>, up| {
            let mut inner = ops.linear(&x, &own(down))?;
            drop(x);
            if let Some(function) = function {
                ops.channel_function(&mut inner, function)?;
            }
            ops.linear(&inner, &own(up))
        };
        let receptance = ops.linear(&mixed(0)?, &group.weight(TensorPart::Query))?;
        let decay = low_rank(
            mixed(1)?,
            Rwkv7Part::DecayDown,
            Some(ChannelFunction::Tanh),
            Rwkv7Part::DecayUp,
        )?;
        let key = ops.linear(&mixed(2)?, &group.weight(TensorPart::Key))?;
        let value_input = mixed(3)?;
        let value = ops.linear(&value_input, &group.weight(TensorPart::Value))?;
        let taken = match first_value {
            Some(_) => Some(low_rank(
                value_input,
                Rwkv7Part::ValueDown,
                None,
                Rwkv7Part::ValueUp,
            )?),
            None => None,
        };
        let learning_rate = low_rank(
            mixed(4)?,
            Rwkv7Part::LearningRateDown,
            None,
            Rwkv7Part::LearningRateUp,
        )?;
        let gate = low_rank(
            mixed(5)?,
            Rwkv7Part::GateDown,
            Some(ChannelFunction::Sigmoid),
            Rwkv7Part::GateUp,
        )?;
        ops.keep_inputs(&x, states, place)?;
        drop((x, vectors));
        let count = VECTORS.len() - usize::from(first_value.is_none());
        let vectors: Vec<Weight<'_>> = (VECTORS[..count].iter().enumerate())
            .map(|(row, &(vector, part))| {
                debug_assert_eq!(vector as usize, row);
                own(part)
            })
            .collect();
        let vectors = ops.vectors(&vectors)?;
        let inputs = TimeMixInputs {
            receptance: &receptance,
            decay: &decay,
            key: &key,
            value: &value,
            learning_rate: &learning_rate,
            gate: &gate,
            first_value: first_value.as_ref().zip(taken.as_ref()),
            vectors: &vectors,
            epsilon: RWKV7_HEAD_DIM as f32 * epsilon,
        };
        let out = ops.time_mix(&inputs, states, layer)?;
        drop((receptance, decay, key, taken, learning_rate, gate));
        if first_value.is_none() {
            *first_value = Some(value);
        }
        let output = group.weight(TensorPart::AttentionOutput);
        ops.linear_add(&mut hidden, 0, &out, &output)?;
        Ok(hidden)
    }

    /// The channel mix with its residual, in chunks of rows: the inner matrix exists for one chunk only.
    pub(super) fn channel_mix(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        hidden: &mut Activation,
        states: &mut PassStates<'_>,
    ) -> Result<(), EngineError> {
        let key = acquire(ops, weights, WeightGroup::GateUp(layer))?;
        // Both groups are held for all chunks of rows, since a streamed one would have to be read again for each.
        let value = acquire(ops, weights, WeightGroup::Down(layer))?;
        let vectors = ops.vectors(&[
            key.weight(TensorPart::MlpNorm),
            key.weight(TensorPart::MlpNormBias),
            key.weight(TensorPart::Rwkv7(Rwkv7Part::MixMlp)),
        ])?;
        // Of all rows at once, since a chunk reads the last row of the one before as it was.
        let (all, epsilon) = (0..hidden.len(), self.config.epsilon);
        let x = ops.layer_norm(hidden, all, (&vectors, [0, 1]), epsilon, ops.dtype())?;
        let place = (layer, StatePart::ChannelMixInput);
        for start in (0..hidden.len()).step_by(self.mlp_rows) {
            let rows = start..hidden.len().min(start + self.mlp_rows);
            let mixed = ops.shift_mix(&x, rows, states, place, (&vectors, 2))?;
            let mut inner = ops.linear(&mixed, &key.weight(TensorPart::Up))?;
            drop(mixed);
            ops.channel_function(&mut inner, ChannelFunction::SquaredRelu)?;
            ops.linear_add(hidden, start, &inner, &value.weight(TensorPart::Down))?;
        }
        Ok(ops.keep_inputs(&x, states, place)?)
    }

    /// The norm before the LM head.
    pub(super) fn final_layer_norm(
        &self,
        ops: &Ops,
        weights: &Residency,
        hidden: &Activation,
    ) -> Result<Activation, EngineError> {
        let group = acquire(ops, weights, WeightGroup::FinalNorm)?;
        let parts = [TensorPart::FinalNorm, TensorPart::FinalNormBias];
        let norm = ops.vectors(&parts.map(|part| group.weight(part)))?;
        let (all, epsilon) = (0..hidden.len(), self.config.epsilon);
        Ok(ops.layer_norm(hidden, all, (&norm, [0, 1]), epsilon, ops.dtype())?)
    }
}
