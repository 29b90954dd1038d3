//! The sizes of sentence encoders, and their tensors.

use super::{Shape, TensorNaming, weight};
use crate::{TensorPart, TensorSpec};

/// Sizes that only sentence encoders have. Their layers are BERT's: attention to the whole text and an MLP without a gate,
/// each with biases and with its norm behind it. A static table has no layers, and nothing but the embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderShape {
    /// Rows of the table of positions; 0 for a static table.
    pub positions: usize,
    /// Rows of the table of token types.
    pub token_types: usize,
}

impl EncoderShape {
    /// Whether a text's tokens go through layers, and not straight from the embedding into its vector.
    #[must_use]
    pub fn has_layers(&self) -> bool {
        self.positions > 0
    }
}

/// Every tensor in the order of use.
pub(super) fn tensors(shape: &Shape, encoder: &EncoderShape) -> Vec<TensorSpec> {
    use TensorPart as Part;
    let width = shape.hidden_size;
    let embedding = TensorSpec {
        name: shape.embedding_name(),
        ..weight(
            "",
            &[shape.padded_vocab_size, width],
            0,
            TensorPart::Embedding,
        )
    };
    let mut specs = vec![embedding];
    if !encoder.has_layers() {
        return specs;
    }
    let prefix = match shape.naming {
        TensorNaming::PrefixedBert => "bert.",
        _ => "",
    };
    let named = |name: String, sizes: &[usize], layer, part| TensorSpec {
        name,
        ..weight("", sizes, layer, part)
    };
    let own = |name: &str, sizes: &[usize], part| {
        named(format!("{prefix}embeddings.{name}"), sizes, 0, part)
    };
    specs.extend([
        own(
            "position_embeddings.weight",
            &[encoder.positions, width],
            Part::PositionEmbedding,
        ),
        own(
            "token_type_embeddings.weight",
            &[encoder.token_types, width],
            Part::TokenTypeEmbedding,
        ),
        own("LayerNorm.weight", &[width], Part::EmbeddingNorm),
        own("LayerNorm.bias", &[width], Part::EmbeddingNormBias),
    ]);
    let mlp = shape.intermediate_size;
    let parts: [(&str, &[usize], Part, Part); 8] = [
        (
            "attention.self.query",
            &[width, width],
            Part::Query,
            Part::QueryBias,
        ),
        (
            "attention.self.key",
            &[width, width],
            Part::Key,
            Part::KeyBias,
        ),
        (
            "attention.self.value",
            &[width, width],
            Part::Value,
            Part::ValueBias,
        ),
        (
            "attention.output.dense",
            &[width, width],
            Part::AttentionOutput,
            Part::AttentionOutputBias,
        ),
        (
            "attention.output.LayerNorm",
            &[width],
            Part::AttentionNorm,
            Part::AttentionNormBias,
        ),
        ("intermediate.dense", &[mlp, width], Part::Up, Part::UpBias),
        ("output.dense", &[width, mlp], Part::Down, Part::DownBias),
        (
            "output.LayerNorm",
            &[width],
            Part::MlpNorm,
            Part::MlpNormBias,
        ),
    ];
    for layer in 0..shape.layers {
        for (name, sizes, part, bias) in parts {
            let name = format!("{prefix}encoder.layer.{layer}.{name}");
            specs.push(named(format!("{name}.weight"), sizes, layer, part));
            specs.push(named(format!("{name}.bias"), &sizes[..1], layer, bias));
        }
    }
    specs
}
