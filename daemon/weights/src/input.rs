//! The inputs of a model's matrices. Queries, keys and values have the same, and so have gate and up.

use std::fmt;

use super::{Shape, TensorPart, TensorSpec, WeightGroup};

/// The input of one or more matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatrixInput {
    /// Of queries, keys and values of a layer.
    Attention(usize),
    /// Of a layer's attention output.
    AttentionOutput(usize),
    /// Of gate and up of a layer.
    Mlp(usize),
    /// Of a layer's down.
    Down(usize),
    /// Of the LM head.
    LmHead,
}

impl MatrixInput {
    /// All inputs of a model with so many layers, in the order in which a pass computes them.
    pub fn all(layers: usize) -> impl Iterator<Item = Self> {
        let each = |layer| {
            [
                Self::Attention(layer),
                Self::AttentionOutput(layer),
                Self::Mlp(layer),
                Self::Down(layer),
            ]
        };
        (0..layers).flat_map(each).chain([Self::LmHead])
    }

    /// The input of a tensor; `None` for embeddings and vectors, which multiply nothing.
    #[must_use]
    pub fn of(spec: &TensorSpec) -> Option<Self> {
        let layer = spec.layer;
        match spec.part {
            // Each expert has rows of its own, and so has what a canvas is told.
            _ if matches!(
                spec.group,
                WeightGroup::Expert(..)
                    | WeightGroup::SharedExpert(_)
                    | WeightGroup::SelfConditioning
            ) =>
            {
                None
            }
            TensorPart::Query | TensorPart::Key | TensorPart::Value => Some(Self::Attention(layer)),
            TensorPart::AttentionOutput => Some(Self::AttentionOutput(layer)),
            TensorPart::Gate | TensorPart::Up => Some(Self::Mlp(layer)),
            TensorPart::Down => Some(Self::Down(layer)),
            TensorPart::LmHead => Some(Self::LmHead),
            // Matrices of layers that can't be calibrated, and what multiplies nothing.
            _ => None,
        }
    }

    /// Elements of a row.
    #[must_use]
    pub fn width(self, shape: &Shape) -> usize {
        match self {
            Self::Attention(_) | Self::Mlp(_) | Self::LmHead => shape.hidden_size,
            Self::AttentionOutput(_) => shape.attention_heads * shape.head_dim,
            Self::Down(_) => shape.intermediate_size,
        }
    }

    /// Whether a pass computes it for all rows, and not only for those that are read at its end: so for all but what
    /// follows the keys and values of the last layer.
    #[must_use]
    pub fn has_all_rows(self, layers: usize) -> bool {
        match self {
            Self::Attention(_) => true,
            Self::AttentionOutput(layer) | Self::Mlp(layer) | Self::Down(layer) => {
                layer + 1 < layers
            }
            Self::LmHead => false,
        }
    }
}

/// The name in files and messages, such as `layers.3.attention_input`.
impl fmt::Display for MatrixInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attention(layer) => write!(f, "layers.{layer}.attention_input"),
            Self::AttentionOutput(layer) => write!(f, "layers.{layer}.attention_output_input"),
            Self::Mlp(layer) => write!(f, "layers.{layer}.mlp_input"),
            Self::Down(layer) => write!(f, "layers.{layer}.down_input"),
            Self::LmHead => f.write_str("lm_head_input"),
        }
    }
}
