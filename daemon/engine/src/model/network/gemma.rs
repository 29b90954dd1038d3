//! What only DiffusionGemma's layers have: norms behind each part, a gated MLP beside experts, scalars, and what a canvas is
//! told of the pass before.
//!
//! Reference: `DiffusionGemmaForBlockDiffusion` of transformers 5.23. Text and canvases go through the same weights, but for
//! a scalar of each layer; rows of both may share a pass.

use std::ops::Range;

use sluice_ops::{Activation, Indices, Ops, RopeTable, SoftEmbeddings};
use sluice_weights::{GemmaShape, LayerKind, TensorPart, WeightGroup};

use super::{Network, acquire};
use crate::{
    error::EngineError,
    residency::{Residency, WeightGuard},
};

impl Network {
    /// The sizes of DiffusionGemma's layers; `None` for other models.
    pub(super) fn gemma(&self) -> Option<&GemmaShape> {
        match &self.config.shape.layer_kind {
            LayerKind::Gemma(gemma) => Some(gemma),
            _ => None,
        }
    }

    /// Whether text goes through the layers in another way than the canvases behind it.
    #[must_use]
    pub fn reads_text_apart(&self) -> bool {
        self.gemma().is_some()
    }

    /// What logits are bounded by, smoothly; `None`: they are not.
    #[must_use]
    pub fn soft_cap(&self) -> Option<f32> {
        self.config.soft_cap
    }

    /// The kind of a layer's attention, 0 unless it sees all where others have a window, and its number among the layers of
    /// that kind.
    pub(super) fn kind(&self, layer: usize) -> (usize, usize) {
        let kind = |gemma: &GemmaShape| {
            let kind = usize::from(gemma.is_full(layer));
            (kind, gemma.number_of_kind(layer))
        };
        self.gemma().map_or((0, layer), kind)
    }

    /// The rotations of a layer's keys and, where those have another, of its queries.
    pub(super) fn ropes(&self, layer: usize) -> (Option<&RopeTable>, Option<&RopeTable>) {
        match self.kind(layer) {
            (0, _) => (self.rope.as_ref(), self.query_rope.as_ref()),
            _ => (self.full_rope.as_ref(), None),
        }
    }

    /// Scales embeddings, and adds to those of canvases what the pass before has predicted.
    pub(super) fn self_conditioning(
        &self,
        ops: &Ops,
        weights: &Residency,
        hidden: &mut Activation,
        canvases: &[(Range<usize>, Option<&SoftEmbeddings>)],
    ) -> Result<(), EngineError> {
        let (width, epsilon) = (self.config.shape.hidden_size, self.config.epsilon);
        let scale = (width as f32).sqrt();
        ops.scale(hidden, scale)?;
        if canvases.is_empty() {
            return Ok(());
        }
        let group = acquire(ops, weights, WeightGroup::SelfConditioning)?;
        for (rows, soft) in canvases {
            let mut canvas = ops.take_rows(hidden, &ops.indices(rows.clone())?)?;
            // In a canvas's first pass nothing was predicted, and nothing comes of zeros.
            if let Some(soft) = soft {
                let soft = ops.embed_soft(soft, scale)?;
                self.add_mlp(ops, [&group, &group], &soft, &mut canvas)?;
            }
            ops.bare_norm_heads(&mut canvas, width, epsilon)?;
            ops.set_rows(hidden, rows.start, &canvas)?;
        }
        Ok(())
    }

    /// The gated MLP and the experts, each with its norms, and their residual; `are_text` says for each row whether it is
    /// one of text or of a canvas.
    pub(super) fn feed_forward(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        hidden: &mut Activation,
        (gemma, are_text): (&GemmaShape, &Indices),
    ) -> Result<(), EngineError> {
        let epsilon = self.config.epsilon;
        let width = self.config.shape.hidden_size;
        let mut sum = ops.zeros(hidden.len(), width)?;
        let gate_up = acquire(ops, weights, WeightGroup::GateUp(layer))?;
        let down = acquire(ops, weights, WeightGroup::Down(layer))?;
        self.add_mlp(ops, [&gate_up, &down], hidden, &mut sum)?;
        drop((gate_up, down));
        let mut routed = ops.zeros(hidden.len(), width)?;
        self.experts_of(ops, weights, layer, (hidden, &mut routed), gemma)?;
        let end = acquire(ops, weights, WeightGroup::LayerEnd(layer))?;
        let mut both = ops.zeros(hidden.len(), width)?;
        for (x, norm) in [
            (sum, TensorPart::MlpPostNorm),
            (routed, TensorPart::ExpertPostNorm),
        ] {
            ops.add_rms_norm(&mut both, &x, &end.weight(norm), epsilon)?;
        }
        let norm = end.weight(TensorPart::LayerPostNorm);
        ops.add_rms_norm(hidden, &both, &norm, epsilon)?;
        let scales = [TensorPart::LayerScale, TensorPart::TextLayerScale];
        let scales = scales.map(|part| end.weight(part));
        Ok(ops.scale_rows(hidden, scales.each_ref(), are_text)?)
    }

    /// Adds what a gated MLP, whose weights these groups have, makes of rows to `out`.
    fn add_mlp(
        &self,
        ops: &Ops,
        [gate_up, down]: [&WeightGuard<'_>; 2],
        rows: &Activation,
        out: &mut Activation,
    ) -> Result<(), EngineError> {
        let norm = gate_up.weight(TensorPart::MlpNorm);
        for start in (0..rows.len()).step_by(self.mlp_rows) {
            let piece = start..rows.len().min(start + self.mlp_rows);
            let x = ops.rms_norm(rows, piece, &norm, self.config.epsilon)?;
            let gate = self.gated(ops, gate_up, &x)?;
            ops.linear_add(out, start, &gate, &down.weight(TensorPart::Down))?;
        }
        Ok(())
    }

    /// Adds what the experts make of rows to `out`.
    fn experts_of(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        (rows, out): (&Activation, &mut Activation),
        gemma: &GemmaShape,
    ) -> Result<(), EngineError> {
        let group = acquire(ops, weights, WeightGroup::Router(layer))?;
        let epsilon = self.config.epsilon;
        // In `f32` whatever the device computes in: rounded rows choose other experts now and then.
        let mut x = ops.zeros(rows.len(), rows.width())?;
        let norm = group.weight(TensorPart::RouterNorm);
        ops.add_rms_norm(&mut x, rows, &norm, epsilon)?;
        let scales = Some(TensorPart::ExpertScales);
        let routing = self.route(ops, &group, &x, scales, &gemma.experts)?;
        drop(x);
        let norm = group.weight(TensorPart::ExpertNorm);
        let x = ops.rms_norm(rows, 0..rows.len(), &norm, epsilon)?;
        drop(group);
        self.add_routed(ops, weights, layer, out, &x, &routing)
    }
}
