//! The tensors of RWKV-7's layers.

use crate::{Rwkv7Part, Rwkv7Ranks, TensorPart, TensorSpec};

/// The tensors of a layer in the order of their use, under the names that flash-linear-attention and Hugging Face's
/// folders have.
pub(super) fn layer_tensors(
    layer: usize,
    width: usize,
    intermediate_size: usize,
    ranks: &Rwkv7Ranks,
) -> Vec<TensorSpec> {
    use Rwkv7Part as Own;
    use TensorPart::Rwkv7;
    let vector = vec![width];
    let square = vec![width, width];
    let down = |rank: usize| vec![rank, width];
    let up = |rank: usize| vec![width, rank];
    let mut parts = Vec::new();
    if layer == 0 {
        parts.extend([
            ("pre_norm.weight", vector.clone(), Rwkv7(Own::FirstNorm)),
            ("pre_norm.bias", vector.clone(), Rwkv7(Own::FirstNormBias)),
        ]);
    }
    parts.extend([
        (
            "attn_norm.weight",
            vector.clone(),
            TensorPart::AttentionNorm,
        ),
        (
            "attn_norm.bias",
            vector.clone(),
            TensorPart::AttentionNormBias,
        ),
        ("attn.x_r", vector.clone(), Rwkv7(Own::MixReceptance)),
        ("attn.x_w", vector.clone(), Rwkv7(Own::MixDecay)),
        ("attn.x_k", vector.clone(), Rwkv7(Own::MixKey)),
        ("attn.x_v", vector.clone(), Rwkv7(Own::MixValue)),
        ("attn.x_a", vector.clone(), Rwkv7(Own::MixLearningRate)),
        ("attn.x_g", vector.clone(), Rwkv7(Own::MixGate)),
        ("attn.r_proj.weight", square.clone(), TensorPart::Query),
        (
            "attn.w_lora.lora.0.weight",
            down(ranks.decay),
            Rwkv7(Own::DecayDown),
        ),
        (
            "attn.w_lora.lora.2.weight",
            up(ranks.decay),
            Rwkv7(Own::DecayUp),
        ),
        (
            "attn.w_lora.lora.2.bias",
            vector.clone(),
            Rwkv7(Own::DecayBias),
        ),
        ("attn.k_proj.weight", square.clone(), TensorPart::Key),
        ("attn.v_proj.weight", square.clone(), TensorPart::Value),
    ]);
    if layer > 0 {
        parts.extend([
            (
                "attn.v_lora.lora.0.weight",
                down(ranks.value),
                Rwkv7(Own::ValueDown),
            ),
            (
                "attn.v_lora.lora.2.weight",
                up(ranks.value),
                Rwkv7(Own::ValueUp),
            ),
            (
                "attn.v_lora.lora.2.bias",
                vector.clone(),
                Rwkv7(Own::ValueBias),
            ),
        ]);
    }
    parts.extend([
        (
            "attn.a_lora.lora.0.weight",
            down(ranks.learning_rate),
            Rwkv7(Own::LearningRateDown),
        ),
        (
            "attn.a_lora.lora.2.weight",
            up(ranks.learning_rate),
            Rwkv7(Own::LearningRateUp),
        ),
        (
            "attn.a_lora.lora.2.bias",
            vector.clone(),
            Rwkv7(Own::LearningRateBias),
        ),
        (
            "attn.g_lora.lora.0.weight",
            down(ranks.gate),
            Rwkv7(Own::GateDown),
        ),
        (
            "attn.g_lora.lora.2.weight",
            up(ranks.gate),
            Rwkv7(Own::GateUp),
        ),
        ("attn.k_k", vector.clone(), Rwkv7(Own::KeyScale)),
        ("attn.k_a", vector.clone(), Rwkv7(Own::KeyLearningRate)),
        ("attn.r_k", vector.clone(), Rwkv7(Own::Bonus)),
        ("attn.g_norm.weight", vector.clone(), Rwkv7(Own::HeadNorm)),
        ("attn.g_norm.bias", vector.clone(), Rwkv7(Own::HeadNormBias)),
        ("attn.o_proj.weight", square, TensorPart::AttentionOutput),
        ("ffn_norm.weight", vector.clone(), TensorPart::MlpNorm),
        ("ffn_norm.bias", vector.clone(), TensorPart::MlpNormBias),
        ("ffn.x_k", vector, Rwkv7(Own::MixMlp)),
        (
            "ffn.key.weight",
            vec![intermediate_size, width],
            TensorPart::Up,
        ),
        (
            "ffn.value.weight",
            vec![width, intermediate_size],
            TensorPart::Down,
        ),
    ]);
    let spec = |(name, shape, part)| TensorSpec {
        name: format!("model.layers.{layer}.{name}"),
        shape,
        layer,
        part,
        group: part.group(layer),
        kept_kv_heads: None,
    };
    parts.into_iter().map(spec).collect()
}
