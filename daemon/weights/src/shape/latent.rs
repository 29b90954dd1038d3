//! The tensors of a latent thought model's cross-attention.

use crate::{TensorPart, TensorSpec};

/// The tensors of a layer in the order of their use.
pub(super) fn cross_attention(
    layer: usize,
    width: usize,
    queries: usize,
    kv: usize,
) -> impl Iterator<Item = TensorSpec> {
    let parts = [
        ("cross_attention_norm", vec![width], TensorPart::CrossNorm),
        (
            "cross_attention.wq",
            vec![queries, width],
            TensorPart::CrossQuery,
        ),
        ("cross_attention.wk", vec![kv, width], TensorPart::CrossKey),
        (
            "cross_attention.wv",
            vec![kv, width],
            TensorPart::CrossValue,
        ),
        (
            "cross_attention.wo",
            vec![width, queries],
            TensorPart::CrossOutput,
        ),
    ];
    parts
        .into_iter()
        .map(move |(name, shape, part)| TensorSpec {
            name: format!("layers.{layer}.{name}.weight"),
            shape,
            layer,
            part,
            group: part.group(layer),
            kept_kv_heads: None,
        })
}
