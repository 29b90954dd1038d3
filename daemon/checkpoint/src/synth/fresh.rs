//! Elements of vectors in a model that has not been trained yet. Matrices are random; what scales, mixes and decays
//! begins with values of its own, without which a pass would mean little.
//!
//! Reference for RWKV-7: BlinkDL/RWKV-LM, RWKV-v7/train_temp/src/model.py.

use sluice_weights::{LayerKind, Rwkv7Part, Shape, TensorPart, TensorSpec};

use super::{SynthRouter, routed::RoutedMatrix};

/// How a tensor begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum FreshTensor {
    /// Normally distributed.
    Random,
    /// All elements are this.
    Constant(f32),
    /// By channel.
    Rwkv7(FreshVector),
    /// The embedding or a router of a mixture.
    Routed(RoutedMatrix),
}

/// A vector of RWKV-7's layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FreshVector {
    part: Rwkv7Part,
    layer: usize,
    layers: usize,
    /// Number of channels.
    width: usize,
}

impl FreshTensor {
    pub(super) fn of(spec: &TensorSpec, shape: &Shape, router: SynthRouter) -> Self {
        use Rwkv7Part as Own;
        if let Some(matrix) = RoutedMatrix::of(spec, shape, router) {
            return Self::Routed(matrix);
        }
        match spec.part {
            TensorPart::QueryNorm | TensorPart::KeyNorm
                if matches!(shape.layer_kind, LayerKind::Mixture(_)) =>
            {
                Self::Constant(router.head_norm())
            }
            TensorPart::EmbeddingNorm
            | TensorPart::AttentionNorm
            | TensorPart::QueryNorm
            | TensorPart::KeyNorm
            | TensorPart::CrossNorm
            | TensorPart::MlpNorm
            | TensorPart::RouterNorm
            | TensorPart::ExpertScales
            | TensorPart::ExpertNorm
            | TensorPart::AttentionPostNorm
            | TensorPart::MlpPostNorm
            | TensorPart::ExpertPostNorm
            | TensorPart::LayerPostNorm
            | TensorPart::LayerScale
            | TensorPart::TextLayerScale
            | TensorPart::FinalNorm
            | TensorPart::Rwkv7(Own::FirstNorm | Own::HeadNorm) => Self::Constant(1.0),
            TensorPart::EmbeddingNormBias
            | TensorPart::AttentionNormBias
            | TensorPart::RouterBias
            | TensorPart::MlpNormBias
            | TensorPart::FinalNormBias
            | TensorPart::Rwkv7(Own::FirstNormBias | Own::HeadNormBias) => Self::Constant(0.0),
            TensorPart::Rwkv7(Own::KeyLearningRate) => Self::Constant(1.02),
            TensorPart::Rwkv7(Own::Bonus) => Self::Constant(-0.04),
            TensorPart::Rwkv7(part) if spec.shape.len() == 1 => Self::Rwkv7(FreshVector {
                part,
                layer: spec.layer,
                layers: shape.layers,
                width: spec.shape[0],
            }),
            _ => Self::Random,
        }
    }
}

impl FreshVector {
    /// The element of a channel.
    pub(super) fn element(&self, channel: usize) -> f32 {
        use Rwkv7Part as Own;
        let last = |count: usize| count.saturating_sub(1).max(1) as f32;
        // From 0 in the first layer to 1 in the last; from 1 to nearly 0.
        let depth = self.layer as f32 / last(self.layers);
        let height = 1.0 - self.layer as f32 / self.layers as f32;
        let place = channel as f32 / self.width as f32;
        let along = channel as f32 / last(self.width);
        let linear = along - 0.5;
        // Within each head, steep at both ends.
        let within = (channel % 64) as f32 / 63.0 * 2.0 - 1.0;
        let zigzag = within * within.abs();
        let mix = |exponent: f32| 1.0 - place.powf(exponent * height);
        match self.part {
            Own::MixReceptance | Own::MixGate => mix(0.2),
            Own::MixKey | Own::MixValue => mix(0.7),
            Own::MixDecay | Own::MixLearningRate => mix(0.9),
            Own::MixMlp => 1.0 - place.powf(height.powi(4)),
            Own::DecayBias => -5.5 + 6.0 * along.powf(1.0 + depth.powf(0.3)) + 2.5 * zigzag,
            Own::LearningRateBias => -0.19 + 0.3 * zigzag + 0.4 * linear,
            Own::ValueBias => 0.73 - 0.4 * linear,
            Own::KeyScale => 0.71 - 0.1 * linear,
            other => unreachable!("{other:?} has the same value everywhere, or is a matrix"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::PublishedShape;

    #[test]
    fn vectors_begin_in_their_ranges() {
        let shape = PublishedShape::find("rwkv7-0.1b").unwrap().shape();
        let mut vectors = 0;
        for spec in shape.tensors() {
            let FreshTensor::Rwkv7(vector) = FreshTensor::of(&spec, shape, SynthRouter::default())
            else {
                continue;
            };
            let range = match vector.part {
                Rwkv7Part::DecayBias => -8.0..=3.0,
                Rwkv7Part::LearningRateBias => -0.7..=0.4,
                _ => 0.0..=1.0,
            };
            let elements = (0..shape.hidden_size).map(|channel| vector.element(channel));
            for element in elements {
                assert!(range.contains(&element), "{}: {element}", spec.name);
            }
            vectors += 1;
        }
        // Seven mixes, and biases and scales; the first layer has no value's bias.
        assert_eq!(vectors, 12 * 11 - 1);
    }
}
