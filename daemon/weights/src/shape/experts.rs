//! The sizes of a mixture of experts, and its tensors.

use super::weight;
use crate::{TensorPart, TensorSpec, WeightGroup};

/// The sizes of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertShape {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a row goes through.
    pub per_token: usize,
    /// Elements of a row inside an expert.
    pub intermediate_size: usize,
    /// Elements of a row inside the expert that all rows go through; 0 where there is none.
    pub shared_intermediate_size: usize,
    /// Whether a bias is added where experts are chosen.
    pub has_choice_bias: bool,
    /// The first layers, which have a gated MLP instead.
    pub dense_layers: usize,
    /// Of the others, each whose number, counted from 1, is a multiple of this has experts.
    pub layer_step: usize,
}

impl ExpertShape {
    /// Whether this layer has experts.
    #[must_use]
    pub fn are_in(&self, layer: usize) -> bool {
        layer >= self.dense_layers && (layer + 1).is_multiple_of(self.layer_step)
    }

    /// The tensors of a layer's mixture in the order of their use, by the name of its norm and what other names begin with.
    pub(super) fn tensors(
        &self,
        norm: &str,
        prefix: &str,
        layer: usize,
        width: usize,
    ) -> Vec<TensorSpec> {
        let router = WeightGroup::Router(layer);
        let table = [self.count, width];
        let gate = format!("{prefix}.gate");
        let mut specs = vec![
            TensorSpec {
                group: router,
                ..weight(norm, &[width], layer, TensorPart::MlpNorm)
            },
            weight(&gate, &table, layer, TensorPart::Router),
        ];
        if self.has_choice_bias {
            specs.push(TensorSpec {
                name: format!("{gate}.expert_bias"),
                ..weight(&gate, &table[..1], layer, TensorPart::RouterBias)
            });
        }
        if self.shared_intermediate_size > 0 {
            let name = format!("{prefix}.shared_experts");
            let group = WeightGroup::SharedExpert(layer);
            let sizes = [self.shared_intermediate_size, width];
            specs.extend(expert_tensors(&name, group, layer, sizes));
        }
        specs.extend(self.routed(&format!("{prefix}.experts"), layer, width));
        specs
    }

    /// The tensors of a layer's experts, by what their names begin with.
    pub(super) fn routed(
        &self,
        prefix: &str,
        layer: usize,
        width: usize,
    ) -> impl Iterator<Item = TensorSpec> {
        let sizes = [self.intermediate_size, width];
        (0..self.count).flat_map(move |expert| {
            let group = WeightGroup::Expert(layer, expert);
            expert_tensors(&format!("{prefix}.{expert}"), group, layer, sizes)
        })
    }
}

fn expert_tensors(
    name: &str,
    group: WeightGroup,
    layer: usize,
    [inner, width]: [usize; 2],
) -> [TensorSpec; 3] {
    let parts = [
        ("gate_proj", [inner, width], TensorPart::Gate),
        ("up_proj", [inner, width], TensorPart::Up),
        ("down_proj", [width, inner], TensorPart::Down),
    ];
    parts.map(|(part_name, shape, part)| TensorSpec {
        group,
        ..weight(&format!("{name}.{part_name}"), &shape, layer, part)
    })
}
