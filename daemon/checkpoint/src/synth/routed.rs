//! Weights that make the experts of a synthetic mixture as uneven as those of a trained one. Rows of random weights have
//! next to nothing in common, so that a pass would go through most experts, where the router of a trained model prefers
//! some.
//!
//! All rows of the embedding have a direction in common, and rows of a router have it by an amount of their own: an
//! expert that has much of it is preferred by all rows. What is left of a row, its token and what attention adds, decides
//! between those.

use sluice_formats::noise::Noise;
use sluice_weights::{LayerKind, Shape, TensorPart, TensorSpec};

/// Standard deviation with which training of LLaDA and most Llama-like models begins.
pub(super) const SPREAD: f64 = 0.02;

/// How uneven the experts of a synthetic mixture are, and how steady.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SynthRouter {
    /// How far routers prefer some experts to others; 0: not at all.
    pub skew: f32,
    /// How much a row follows single neighbours, and with it their changes: what heads' queries and keys are multiplied by,
    /// as a share of the default.
    pub drift: f32,
}

impl Default for SynthRouter {
    /// With which a pass goes through as many experts as was measured in LLaDA2.0-mini (`docs/families.md`).
    fn default() -> Self {
        Self {
            skew: 1.0,
            drift: 1.0,
        }
    }
}

impl SynthRouter {
    /// The elements of the norms of heads. At 1 attention would be so even that all masks of a block get the same experts.
    pub(super) fn head_norm(self) -> f32 {
        HEAD_NORM * self.drift
    }
}

// Found by trying, with `expert_reuse` of `tools/measure`.
const HEAD_NORM: f32 = 3.0;
/// Root mean square of a token's own elements of a mixture's embedding, so that it is not lost beside what layers add.
const EMBEDDING: f32 = 1.0;
/// The same of what all tokens have in common.
const COMMON: f32 = 0.25;
/// How far experts are preferred at a skew of 1, beside what decides between them.
const PREFERENCE: f32 = 4.9;
/// Streams of numbers beside those of tensors' elements.
const DIRECTION: u64 = u64::MAX;
const PREFERENCES: u64 = u64::MAX - 1;

/// A matrix whose rows have the direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RoutedMatrix {
    width: usize,
    /// The layer of a router; `None`: the embedding.
    layer: Option<usize>,
    /// What random elements are multiplied by.
    own: f32,
    /// The length of the direction's elements.
    common: f32,
}

impl RoutedMatrix {
    /// The embedding or a router of a mixture; `None` for other tensors.
    pub(super) fn of(spec: &TensorSpec, shape: &Shape, router: SynthRouter) -> Option<Self> {
        let LayerKind::Mixture(_) = shape.layer_kind else {
            return None;
        };
        let width = shape.hidden_size;
        let spread = SPREAD as f32;
        match spec.part {
            TensorPart::Embedding => Some(Self {
                width,
                layer: None,
                own: EMBEDDING / spread,
                common: COMMON,
            }),
            TensorPart::Router => Some(Self {
                width,
                layer: Some(spec.layer),
                own: 1.0,
                common: router.skew * PREFERENCE * spread / (width as f32).sqrt(),
            }),
            _ => None,
        }
    }

    /// Turns random elements, which begin with the one of this index, into the matrix's.
    pub(super) fn complete(&self, noise: Noise, start: usize, elements: &mut [f32]) {
        let direction = noise.stream(DIRECTION);
        let direction: Vec<f32> = (0..self.width)
            .map(
                |channel| match direction.uniform(0, channel as u64, 0) < 0.5 {
                    true => self.common,
                    false => -self.common,
                },
            )
            .collect();
        let preferences = noise.stream(PREFERENCES);
        let mut at = start;
        let mut rest = elements;
        while !rest.is_empty() {
            let (row, channel) = (at / self.width, at % self.width);
            let len = (self.width - channel).min(rest.len());
            let (now, after) = rest.split_at_mut(len);
            let preference = self.layer.map_or(1.0, |layer| {
                preferences.normal(layer as u64, row as u64, 0) as f32
            });
            for (element, common) in now.iter_mut().zip(&direction[channel..]) {
                *element = *element * self.own + preference * common;
            }
            rest = after;
            at += len;
        }
    }
}
