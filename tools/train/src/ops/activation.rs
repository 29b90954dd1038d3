//! The activations of RWKV-7, element by element.

use super::numeric::sigmoid;

/// An activation of RWKV-7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// The hyperbolic tangent, inside the projection of the decay.
    Tanh,
    /// The logistic function, of gates and rates.
    Sigmoid,
    /// The value itself: of projections that only have a bias.
    Identity,
    /// The square of what is positive, inside the channel mix.
    SquaredRelu,
}

impl Activation {
    #[inline(always)]
    pub(super) fn value(self, x: f32) -> f32 {
        match self {
            Self::Tanh => 2.0 * sigmoid(2.0 * x) - 1.0,
            Self::Sigmoid => sigmoid(x),
            Self::Identity => x,
            Self::SquaredRelu => x.max(0.0) * x.max(0.0),
        }
    }

    /// The derivative at `x`, where the value is `value`.
    #[inline(always)]
    pub(super) fn slope(self, x: f32, value: f32) -> f32 {
        match self {
            Self::Tanh => 1.0 - value * value,
            Self::Sigmoid => value * (1.0 - value),
            Self::Identity => 1.0,
            Self::SquaredRelu => 2.0 * x.max(0.0),
        }
    }
}
