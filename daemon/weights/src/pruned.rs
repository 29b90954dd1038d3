//! What a pruned layer has of the model's shape: some of its KV heads, each with all query heads that share it, and
//! some of its MLP's channels. Rows and columns of the others are gone from its tensors.

use crate::{KeptKvHeads, Shape, TensorPart, TensorSpec};

/// What a layer has of the model's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptSizes {
    /// The KV heads that are left; `None` where all are.
    pub kv_heads: Option<KeptKvHeads>,
    /// The number of MLP channels that are left.
    pub channels: usize,
}

impl KeptSizes {
    /// The layer's tensor as it is after pruning.
    #[must_use]
    pub fn of_tensor(&self, spec: TensorSpec, shape: &Shape) -> TensorSpec {
        let mut spec = spec;
        let (rows_of_head, columns_of_head) = match spec.part {
            TensorPart::Query | TensorPart::QueryBias => (shape.attention_heads, 0),
            TensorPart::Key | TensorPart::KeyBias | TensorPart::Value | TensorPart::ValueBias => {
                (shape.kv_heads, 0)
            }
            TensorPart::AttentionOutput => (0, shape.attention_heads),
            TensorPart::Gate | TensorPart::Up => {
                spec.shape[0] = self.channels;
                return spec;
            }
            TensorPart::Down => {
                spec.shape[1] = self.channels;
                return spec;
            }
            _ => return spec,
        };
        let Some(kept) = &self.kv_heads else {
            return spec;
        };
        let width = |heads: usize| heads / shape.kv_heads * shape.head_dim * kept.len();
        if rows_of_head > 0 {
            spec.shape[0] = width(rows_of_head);
        }
        if columns_of_head > 0 {
            spec.shape[1] = width(columns_of_head);
        }
        spec.kept_kv_heads = Some(kept.clone());
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LayerKind, TensorNaming, WeightGroup};

    #[test]
    fn a_pruned_layer_has_fewer_rows_and_columns() {
        let shape = Shape {
            naming: TensorNaming::HuggingFace,
            layers: 2,
            hidden_size: 32,
            attention_heads: 6,
            kv_heads: 3,
            head_dim: 8,
            intermediate_size: 40,
            padded_vocab_size: 50,
            context_length: 16,
            causal: true,
            tied: false,
            biases: true,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        };
        let kept = KeptSizes {
            kv_heads: KeptKvHeads::new(&[0, 2], 3),
            channels: 30,
        };
        let pruned = |part: TensorPart| {
            let mut specs = shape.tensors().into_iter();
            let spec = specs.find(|spec| spec.part == part && spec.layer == 1);
            kept.of_tensor(spec.unwrap(), &shape)
        };
        for (part, expected) in [
            (TensorPart::AttentionNorm, &[32][..]),
            (TensorPart::Query, &[32, 32]),
            (TensorPart::QueryBias, &[32]),
            (TensorPart::Key, &[16, 32]),
            (TensorPart::ValueBias, &[16]),
            (TensorPart::AttentionOutput, &[32, 32]),
            (TensorPart::Gate, &[30, 32]),
            (TensorPart::Up, &[30, 32]),
            (TensorPart::Down, &[32, 30]),
        ] {
            let spec = pruned(part);
            assert_eq!(spec.shape, expected, "{part:?}");
            let is_of_heads = matches!(part.group(1), WeightGroup::Attention(_))
                && part != TensorPart::AttentionNorm;
            assert_eq!(spec.kept_kv_heads.is_some(), is_of_heads, "{part:?}");
        }
    }
}
