//! The groups of matrices that a mix chooses one rate for: what a layer needs together, and what suffers alike.

use std::sync::Arc;

use sluice_weights::{SourceTensor, TensorPart};

use crate::request::MatrixKey;

/// What a group's matrices do. Groups of one kind are expected to suffer alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupKind {
    /// Queries and keys of a layer: errors of both meet in the same scores.
    QueryKey,
    /// Values of a layer.
    Value,
    /// Attention output of a layer.
    AttentionOutput,
    /// Gate and up of a layer.
    GateUp,
    /// Down of a layer.
    Down,
    /// The LM head.
    LmHead,
}

impl GroupKind {
    fn of(part: TensorPart) -> Option<Self> {
        match part {
            TensorPart::Query | TensorPart::Key => Some(Self::QueryKey),
            TensorPart::Value => Some(Self::Value),
            TensorPart::AttentionOutput => Some(Self::AttentionOutput),
            TensorPart::Gate | TensorPart::Up => Some(Self::GateUp),
            TensorPart::Down => Some(Self::Down),
            TensorPart::LmHead => Some(Self::LmHead),
            _ => None,
        }
    }
}

/// Matrices that get one rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixGroup {
    /// What they do.
    pub kind: GroupKind,
    /// Their layer; 0 for the LM head.
    pub layer: usize,
    /// Indices among the model's tensors.
    pub tensors: Vec<usize>,
    /// Number of weights.
    pub weights: u64,
}

impl MatrixGroup {
    /// Names of the group's tensors.
    #[must_use]
    pub fn names(&self, sources: &[SourceTensor]) -> Vec<String> {
        let tensors = self.tensors.iter();
        tensors
            .map(|&index| sources[index].spec.name.clone())
            .collect()
    }

    /// The group's matrices, as requests name them.
    #[must_use]
    pub fn keys(&self, sources: &[SourceTensor]) -> Arc<[MatrixKey]> {
        let specs = self.tensors.iter().map(|&index| &sources[index].spec);
        specs.map(|spec| (spec.layer, spec.part)).collect()
    }
}

/// The groups of a model, in the order of a pass.
#[must_use]
pub fn groups(sources: &[SourceTensor]) -> Vec<MatrixGroup> {
    let mut groups: Vec<MatrixGroup> = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let spec = &source.spec;
        let Some(kind) = GroupKind::of(spec.part) else {
            continue;
        };
        let (rows, width) = spec.size();
        let weights = (rows * width) as u64;
        let is_same = |group: &&mut MatrixGroup| (group.kind, group.layer) == (kind, spec.layer);
        match groups.iter_mut().rev().find(is_same) {
            Some(group) => {
                group.tensors.push(index);
                group.weights += weights;
            }
            None => groups.push(MatrixGroup {
                kind,
                layer: spec.layer,
                tensors: vec![index],
                weights,
            }),
        }
    }
    groups.sort_by_key(|group| (group.kind == GroupKind::LmHead, group.layer, group.kind));
    groups
}
