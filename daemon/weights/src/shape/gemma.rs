//! The sizes of DiffusionGemma's layers, and their tensors.

use super::{ExpertShape, Shape, weight};
use crate::{TensorPart, TensorSpec, WeightGroup};

/// Sizes that only DiffusionGemma has. Each layer has a gated MLP and experts beside each other, and
/// attention within a window; some see all, with other heads and with keys that are values, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmaShape {
    /// Experts of each layer.
    pub experts: ExpertShape,
    /// Most positions that a token of the text sees in layers with a window, its own included.
    pub window: usize,
    /// Each layer whose number, counted from 1, is a multiple of this sees all.
    pub full_step: usize,
    /// Key and value heads of layers that see all.
    pub full_kv_heads: usize,
    /// Elements of a head of layers that see all.
    pub full_head_dim: usize,
}

impl GemmaShape {
    /// Whether a layer sees all.
    #[must_use]
    pub fn is_full(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.full_step)
    }

    /// The layer's number among those with a window, or among those that see all, counted from 0.
    #[must_use]
    pub fn number_of_kind(&self, layer: usize) -> usize {
        let full = layer / self.full_step;
        match self.is_full(layer) {
            true => full,
            false => layer - full,
        }
    }
}

/// The tensors of a layer in the order of their use, by what their names begin with.
pub(super) fn layer_tensors(
    shape: &Shape,
    gemma: &GemmaShape,
    prefix: &str,
    layer: usize,
) -> Vec<TensorSpec> {
    use TensorPart as Part;
    let (width, mlp) = (shape.hidden_size, shape.intermediate_size);
    let heads = shape.heads(layer);
    let queries = shape.attention_heads * heads.head_dim;
    let kv = heads.kv_heads * heads.head_dim;
    let head = [heads.head_dim];
    let name = |name: &str| format!("{prefix}.{layer}.{name}");
    let tensor = |own: &str, shape: &[usize], part| weight(&name(own), shape, layer, part);
    // Scales and scalars are no layers of their own, so their names have no `.weight`.
    let bare = |own: &str, shape: &[usize], part| TensorSpec {
        name: name(own),
        ..weight("", shape, layer, part)
    };
    let mut specs = vec![
        tensor("input_layernorm", &[width], Part::AttentionNorm),
        tensor("self_attn.q_proj", &[queries, width], Part::Query),
        tensor("self_attn.k_proj", &[kv, width], Part::Key),
    ];
    if shape.has_values(layer) {
        specs.push(tensor("self_attn.v_proj", &[kv, width], Part::Value));
    }
    specs.extend([
        tensor("self_attn.q_norm", &head, Part::QueryNorm),
        tensor("self_attn.k_norm", &head, Part::KeyNorm),
        tensor("self_attn.o_proj", &[width, queries], Part::AttentionOutput),
        tensor(
            "post_attention_layernorm",
            &[width],
            Part::AttentionPostNorm,
        ),
        tensor("pre_feedforward_layernorm", &[width], Part::MlpNorm),
        tensor("mlp.gate_proj", &[mlp, width], Part::Gate),
        tensor("mlp.up_proj", &[mlp, width], Part::Up),
        tensor("mlp.down_proj", &[width, mlp], Part::Down),
        bare("router.scale", &[width], Part::RouterNorm),
        tensor("router.proj", &[gemma.experts.count, width], Part::Router),
        bare(
            "router.per_expert_scale",
            &[gemma.experts.count],
            Part::ExpertScales,
        ),
        tensor("pre_feedforward_layernorm_2", &[width], Part::ExpertNorm),
    ]);
    specs.extend(gemma.experts.routed(&name("experts"), layer, width));
    specs.extend([
        tensor("post_feedforward_layernorm_1", &[width], Part::MlpPostNorm),
        tensor(
            "post_feedforward_layernorm_2",
            &[width],
            Part::ExpertPostNorm,
        ),
        tensor("post_feedforward_layernorm", &[width], Part::LayerPostNorm),
        bare("layer_scalar", &[1], Part::LayerScale),
        TensorSpec {
            name: format!("model.encoder.language_model.layers.{layer}.layer_scalar"),
            ..weight("", &[1], layer, Part::TextLayerScale)
        },
    ]);
    specs
}

/// The tensors of what a canvas is told of the pass before.
pub(super) fn self_conditioning(width: usize, mlp: usize) -> impl Iterator<Item = TensorSpec> {
    let parts: [(&str, &[usize], _); 4] = [
        ("pre_norm", &[width], TensorPart::MlpNorm),
        ("gate_proj", &[mlp, width], TensorPart::Gate),
        ("up_proj", &[mlp, width], TensorPart::Up),
        ("down_proj", &[width, mlp], TensorPart::Down),
    ];
    let spec = |(name, shape, part): (&str, &[usize], _)| TensorSpec {
        group: WeightGroup::SelfConditioning,
        ..weight(
            &format!("model.decoder.self_conditioning.{name}"),
            shape,
            0,
            part,
        )
    };
    parts.map(spec).into_iter()
}
