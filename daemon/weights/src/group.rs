//! The units of residency: weights that are used together, and live, stream and change together.

/// Weights that are used together. Their order is the order of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightGroup {
    /// The embedding, of which a pass reads single rows.
    Embedding,
    /// A layer's attention with the norm before it.
    Attention(usize),
    /// A layer's first MLP projections with the norm before them.
    GateUp(usize),
    /// A layer's second MLP projection.
    Down(usize),
    /// The norm before the head.
    FinalNorm,
    /// A part of the output projection: some rows of the vocabulary.
    LmHead(usize),
}

impl WeightGroup {
    /// Its layer, for what belongs to one.
    #[must_use]
    pub fn layer(self) -> Option<usize> {
        match self {
            Self::Attention(layer) | Self::GateUp(layer) | Self::Down(layer) => Some(layer),
            Self::Embedding | Self::FinalNorm | Self::LmHead(_) => None,
        }
    }
}

/// A tensor's part in its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorPart {
    /// [rows, width].
    Embedding,
    /// [1, width].
    AttentionNorm,
    /// [heads · head size, width].
    Query,
    /// [1, heads · head size].
    QueryBias,
    /// [key-value heads · head size, width].
    Key,
    /// [1, key-value heads · head size].
    KeyBias,
    /// [key-value heads · head size, width].
    Value,
    /// [1, key-value heads · head size].
    ValueBias,
    /// [width, heads · head size].
    AttentionOutput,
    /// [1, width].
    MlpNorm,
    /// [MLP width, width]; goes through the activation.
    Gate,
    /// [MLP width, width].
    Up,
    /// [width, MLP width].
    Down,
    /// [1, width].
    FinalNorm,
    /// [rows, width].
    LmHead,
}

impl TensorPart {
    /// The unit it is used with, in a layer where it belongs to one. The head's is its first part.
    #[must_use]
    pub fn group(self, layer: usize) -> WeightGroup {
        match self {
            Self::Embedding => WeightGroup::Embedding,
            Self::AttentionNorm
            | Self::Query
            | Self::QueryBias
            | Self::Key
            | Self::KeyBias
            | Self::Value
            | Self::ValueBias
            | Self::AttentionOutput => WeightGroup::Attention(layer),
            Self::MlpNorm | Self::Gate | Self::Up => WeightGroup::GateUp(layer),
            Self::Down => WeightGroup::Down(layer),
            Self::FinalNorm => WeightGroup::FinalNorm,
            Self::LmHead => WeightGroup::LmHead(0),
        }
    }

    /// Whether it is a matrix of an MLP, which rows go through in turns.
    pub fn is_of_mlp(self) -> bool {
        matches!(self, Self::Gate | Self::Up | Self::Down)
    }
}

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Exact full name in the checkpoint.
    pub name: String,
    /// Shape there: one size for norms and biases, two for matrices ([out, in]).
    pub shape: Vec<usize>,
    /// Layer, 0 for parts outside of layers.
    pub layer: usize,
    /// Its part there.
    pub part: TensorPart,
}

impl TensorSpec {
    /// Rows and numbers in a row; a vector is one row.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        match self.shape[..] {
            [width] => (1, width),
            [rows, width] => (rows, width),
            _ => unreachable!("a model asks for vectors and matrices alone"),
        }
    }
}
