//! Weight groups: weights that are used together, and that live, stream and change together.

use crate::{KeptKvHeads, Rwkv7Part};

/// Weights that are used together. Their order is that of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightGroup {
    /// The embedding, of which a pass reads single rows.
    Embedding,
    /// What a sentence encoder adds to the embedding's rows: positions and token types, and the norm of their sum.
    EmbeddingEnd,
    /// What tells a canvas what the pass before has predicted: a gated MLP and the norm before it.
    SelfConditioning,
    /// A layer's attention, or time mix, and the norm before it.
    Attention(usize),
    /// A layer's cross-attention to its latents and the norm before it.
    CrossAttention(usize),
    /// A layer's gate and up projections and the norm before them. RWKV-7 has no gate.
    GateUp(usize),
    // Apart from gate and up: in LLaDA-8B all three in one group would make each staging buffer half as large again.
    /// A layer's down projection.
    Down(usize),
    /// The router of a layer's experts and the norm before it, in the place of gate and up.
    Router(usize),
    /// The expert of a layer that all rows go through.
    SharedExpert(usize),
    // Each by itself: a pass multiplies by some of them, and they are far too large together for a staging buffer.
    /// One of a layer's experts, counted from 0: its gate, up and down projections.
    Expert(usize, usize),
    /// What ends a layer: norms behind its parts, and scalars.
    LayerEnd(usize),
    /// The norm before the LM head.
    FinalNorm,
    /// A part of the LM head: some rows of the vocabulary. The value counts the parts from 0.
    LmHead(usize),
}

impl WeightGroup {
    /// The layer that the group belongs to, if it belongs to one.
    #[must_use]
    pub fn layer(self) -> Option<usize> {
        match self {
            Self::Attention(layer)
            | Self::CrossAttention(layer)
            | Self::GateUp(layer)
            | Self::Down(layer)
            | Self::Router(layer)
            | Self::SharedExpert(layer)
            | Self::Expert(layer, _)
            | Self::LayerEnd(layer) => Some(layer),
            Self::Embedding
            | Self::EmbeddingEnd
            | Self::SelfConditioning
            | Self::FinalNorm
            | Self::LmHead(_) => None,
        }
    }

    /// Whether it is one of a mixture's experts, which not all rows go through.
    #[must_use]
    pub fn is_expert(self) -> bool {
        matches!(self, Self::Expert(..))
    }
}

/// A tensor's role in its weight group; shapes are [outputs, inputs].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorPart {
    /// [padded vocab size, hidden size].
    Embedding,
    /// [positions, hidden size].
    PositionEmbedding,
    /// [token types, hidden size].
    TokenTypeEmbedding,
    /// [1, hidden size], of the sum of the embeddings.
    EmbeddingNorm,
    /// [1, hidden size], of that norm.
    EmbeddingNormBias,
    /// [1, hidden size].
    AttentionNorm,
    /// [1, hidden size], of a norm that has a bias.
    AttentionNormBias,
    /// [attention heads · head dimension, hidden size]; RWKV-7's receptance.
    Query,
    /// [1, attention heads · head dimension].
    QueryBias,
    /// [KV heads · head dimension, hidden size].
    Key,
    /// [1, KV heads · head dimension].
    KeyBias,
    /// [KV heads · head dimension, hidden size].
    Value,
    /// [1, KV heads · head dimension].
    ValueBias,
    /// [1, head dimension], of the norm of each query head.
    QueryNorm,
    /// [1, head dimension], of the norm of each key head.
    KeyNorm,
    /// [hidden size, attention heads · head dimension].
    AttentionOutput,
    /// [1, hidden size].
    AttentionOutputBias,
    /// [1, hidden size], behind attention.
    AttentionPostNorm,
    /// [1, hidden size], before cross-attention.
    CrossNorm,
    /// [attention heads · head dimension, hidden size], of cross-attention.
    CrossQuery,
    /// [KV heads · head dimension, hidden size], of the layer's latents.
    CrossKey,
    /// [KV heads · head dimension, hidden size], of the layer's latents.
    CrossValue,
    /// [hidden size, attention heads · head dimension], of cross-attention.
    CrossOutput,
    /// [1, hidden size].
    MlpNorm,
    /// [1, hidden size], of a norm that has a bias.
    MlpNormBias,
    /// [intermediate size, hidden size]; its output goes through the activation.
    Gate,
    /// [intermediate size, hidden size].
    Up,
    /// [1, intermediate size].
    UpBias,
    /// [hidden size, intermediate size].
    Down,
    /// [1, hidden size].
    DownBias,
    /// [experts, hidden size].
    Router,
    /// [1, experts], added where experts are chosen.
    RouterBias,
    /// [1, hidden size], before the router, where experts have another norm.
    RouterNorm,
    /// [1, experts], by which what an expert counts is multiplied.
    ExpertScales,
    /// [1, hidden size], before experts, where the MLP or the router has another norm.
    ExpertNorm,
    /// [1, hidden size], behind the MLP.
    MlpPostNorm,
    /// [1, hidden size], behind the experts.
    ExpertPostNorm,
    /// [1, hidden size], behind the sum of both.
    LayerPostNorm,
    /// [1, 1], by which a layer's output is multiplied in a canvas.
    LayerScale,
    /// [1, 1], by which a layer's output is multiplied in text that is read causally.
    TextLayerScale,
    /// [1, hidden size].
    FinalNorm,
    /// [1, hidden size], of a norm that has a bias.
    FinalNormBias,
    /// [padded vocab size, hidden size].
    LmHead,
    /// What only RWKV-7's layers have.
    Rwkv7(Rwkv7Part),
}

impl TensorPart {
    /// The weight group that it belongs to, in `layer` where it belongs to one and has no experts; for the LM head its
    /// first part.
    #[must_use]
    pub fn group(self, layer: usize) -> WeightGroup {
        match self {
            Self::Embedding => WeightGroup::Embedding,
            Self::PositionEmbedding
            | Self::TokenTypeEmbedding
            | Self::EmbeddingNorm
            | Self::EmbeddingNormBias => WeightGroup::EmbeddingEnd,
            Self::AttentionNorm
            | Self::AttentionNormBias
            | Self::Query
            | Self::QueryBias
            | Self::Key
            | Self::KeyBias
            | Self::Value
            | Self::ValueBias
            | Self::QueryNorm
            | Self::KeyNorm
            | Self::AttentionOutput
            | Self::AttentionOutputBias
            | Self::AttentionPostNorm => WeightGroup::Attention(layer),
            Self::CrossNorm
            | Self::CrossQuery
            | Self::CrossKey
            | Self::CrossValue
            | Self::CrossOutput => WeightGroup::CrossAttention(layer),
            Self::Rwkv7(part) if !part.is_of_channel_mix() => WeightGroup::Attention(layer),
            Self::MlpNorm
            | Self::MlpNormBias
            | Self::Gate
            | Self::Up
            | Self::UpBias
            | Self::Rwkv7(_) => WeightGroup::GateUp(layer),
            Self::Down | Self::DownBias => WeightGroup::Down(layer),
            Self::Router
            | Self::RouterBias
            | Self::RouterNorm
            | Self::ExpertScales
            | Self::ExpertNorm => WeightGroup::Router(layer),
            Self::MlpPostNorm
            | Self::ExpertPostNorm
            | Self::LayerPostNorm
            | Self::LayerScale
            | Self::TextLayerScale => WeightGroup::LayerEnd(layer),
            Self::FinalNorm | Self::FinalNormBias => WeightGroup::FinalNorm,
            Self::LmHead => WeightGroup::LmHead(0),
        }
    }

    /// Whether it stays as the checkpoint has it at every lossy level: vectors, tables (of which a pass reads
    /// single rows), and matrices of low-rank products.
    #[must_use]
    pub fn is_never_quantized(self) -> bool {
        match self {
            Self::Query
            | Self::Key
            | Self::Value
            | Self::AttentionOutput
            | Self::CrossQuery
            | Self::CrossKey
            | Self::CrossValue
            | Self::CrossOutput
            | Self::Gate
            | Self::Up
            | Self::Down
            | Self::LmHead => false,
            Self::Rwkv7(_)
            | Self::Embedding
            | Self::PositionEmbedding
            | Self::TokenTypeEmbedding
            | Self::EmbeddingNorm
            | Self::EmbeddingNormBias
            | Self::AttentionNorm
            | Self::AttentionNormBias
            | Self::AttentionOutputBias
            | Self::UpBias
            | Self::DownBias
            | Self::QueryBias
            | Self::KeyBias
            | Self::ValueBias
            | Self::QueryNorm
            | Self::KeyNorm
            | Self::AttentionPostNorm
            | Self::CrossNorm
            | Self::MlpNorm
            | Self::MlpNormBias
            // A choice of other experts is a larger error than any of their weights has.
            | Self::Router
            | Self::RouterBias
            | Self::RouterNorm
            | Self::ExpertScales
            | Self::ExpertNorm
            | Self::MlpPostNorm
            | Self::ExpertPostNorm
            | Self::LayerPostNorm
            | Self::LayerScale
            | Self::TextLayerScale
            | Self::FinalNorm
            | Self::FinalNormBias => true,
        }
    }

    /// Whether it is a table, of which a pass reads single rows and which multiplies nothing.
    pub fn is_table(self) -> bool {
        matches!(
            self,
            Self::Embedding | Self::PositionEmbedding | Self::TokenTypeEmbedding
        )
    }

    /// Whether it is a matrix of an MLP, through which a long canvas goes in pieces.
    pub fn is_of_mlp(self) -> bool {
        matches!(self, Self::Gate | Self::Up | Self::Down)
    }
}

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Exact full name in the checkpoint.
    pub name: String,
    /// Shape in the checkpoint: one size for norms and biases, two for matrices ([outputs, inputs]).
    pub shape: Vec<usize>,
    /// Its layer; 0 for parts outside of layers.
    pub layer: usize,
    /// Its role in the group.
    pub part: TensorPart,
    /// The weight group that it belongs to; for the LM head its first part.
    pub group: WeightGroup,
    /// The KV heads whose rows or columns a pruned layer's tensor has; `None` where it has all, or none of any head.
    pub kept_kv_heads: Option<KeptKvHeads>,
}

impl TensorSpec {
    /// Rows and width of the tensor; a vector is one row.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        match self.shape[..] {
            [width] => (1, width),
            [rows, width] => (rows, width),
            _ => unreachable!("a model asks for vectors and matrices alone"),
        }
    }
}
