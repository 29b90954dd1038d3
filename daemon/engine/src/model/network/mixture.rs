//! A mixture of experts with its norm and its residual: each row goes through the experts that its router chooses.
//!
//! A row's experts are added in their order, not in that of the router's choice, so that a pass needs each expert once, however
//! many rows there are, and no output of an expert for longer than it takes to add it.

use std::ops::Range;

use sluice_ops::{Activation, Ops, Routing};
use sluice_weights::{ExpertShape, TensorPart, WeightGroup};

use super::{Network, acquire, try_acquire};
use crate::{
    error::EngineError,
    residency::{Residency, WeightGuard},
};

/// An expert, and the places of its rows.
pub(super) type ExpertRows<'a> = (Range<usize>, WeightGuard<'a>);

/// On a GPU a piece has this many times as many rows of experts as an MLP's has rows: each expert has few of them.
const GPU_PIECE_FACTOR: usize = 8;

/// The experts that rows go through, rising.
pub(super) fn touched(routing: &Routing) -> impl Iterator<Item = usize> + Clone {
    (0..routing.experts()).filter(|&expert| !routing.places(expert).is_empty())
}

impl Network {
    /// The mixture with its residual. What is between an expert's matrices exists for some rows at a time.
    pub(super) fn mixture(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        hidden: &mut Activation,
        experts: &ExpertShape,
    ) -> Result<(), EngineError> {
        let group = acquire(ops, weights, WeightGroup::Router(layer))?;
        let norm = group.weight(TensorPart::MlpNorm);
        // Of all rows, since experts add to the rows that it is made of.
        let x = ops.rms_norm(hidden, 0..hidden.len(), &norm, self.config.epsilon)?;
        let bias = (experts.has_choice_bias).then_some(TensorPart::RouterBias);
        let routing = self.route(ops, &group, &x, bias, experts)?;
        drop(group);
        if experts.shared_intermediate_size > 0 {
            let shared = acquire(ops, weights, WeightGroup::SharedExpert(layer))?;
            for start in (0..hidden.len()).step_by(self.mlp_rows) {
                let rows = start..hidden.len().min(start + self.mlp_rows);
                let gate = self.gated(ops, &shared, &ops.take_rows(&x, &ops.indices(rows)?)?)?;
                ops.linear_add(hidden, start, &gate, &shared.weight(TensorPart::Down))?;
            }
        }
        self.add_routed(ops, weights, layer, hidden, &x, &routing)
    }

    /// Chooses experts for each row by a layer's router, with the weight that it has for each expert, if any.
    pub(super) fn route(
        &self,
        ops: &Ops,
        group: &WeightGuard<'_>,
        x: &Activation,
        of_experts: Option<TensorPart>,
        experts: &ExpertShape,
    ) -> Result<Routing, EngineError> {
        let router = self.config.router.as_ref();
        let router = router.expect("a configuration with experts has a router");
        let of_experts = of_experts.map(|part| group.weight(part));
        Ok(ops.route(
            x,
            router,
            &group.weight(TensorPart::Router),
            of_experts.as_ref(),
            experts.per_token,
            self.mlp_rows,
        )?)
    }

    /// Adds to `out` what the experts of a layer make of the rows that the router gives each: those that the CPU computes beside a
    /// GPU after the others.
    pub(super) fn add_routed(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        out: &mut Activation,
        x: &Activation,
        routing: &Routing,
    ) -> Result<(), EngineError> {
        let touched = touched(routing);
        let rows: Vec<_> = (0..routing.experts())
            .map(|expert| routing.places(expert).len())
            .collect();
        let Some(of_cpu) = weights.experts_of_cpu(layer, &rows) else {
            weights.want_experts(layer, touched, |_| false);
            self.add_acquired(ops, weights, layer, out, x, routing)?;
            // What a plan would take that has the CPU compute some.
            return match ops.is_dry_run_of_gpu() {
                true => self
                    .cpu_experts(ops, x, routing)?
                    .add(self, weights, layer, out),
                false => Ok(()),
            };
        };
        weights.want_experts(layer, touched, |expert| of_cpu[expert]);
        // The rows come first: afterwards the GPU would have to do all that was sent before.
        let cpu_experts = self.cpu_experts(ops, x, &routing.only(|expert| of_cpu[expert]))?;
        // All of the GPU's work is sent by then, and what it waits for is being copied.
        let on_gpu = routing.only(|expert| !of_cpu[expert]);
        self.add_acquired(ops, weights, layer, out, x, &on_gpu)?;
        cpu_experts.add(self, weights, layer, out)
    }

    /// Adds what these experts make of their rows on the device.
    fn add_acquired(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        out: &mut Activation,
        x: &Activation,
        routing: &Routing,
    ) -> Result<(), EngineError> {
        // In their order, which a row's sum follows, and as many together as are there: what is missing is brought meanwhile.
        let mut ready: Vec<ExpertRows<'_>> = Vec::new();
        for expert in touched(routing) {
            let group = WeightGroup::Expert(layer, expert);
            let guard = match try_acquire(ops, weights, group) {
                Some(guard) => guard,
                None => {
                    if ready.len() > weights.experts_held_waiting() {
                        self.add_experts(ops, out, x, routing, &std::mem::take(&mut ready))?;
                    }
                    acquire(ops, weights, group)?
                }
            };
            ready.push((routing.places(expert), guard));
        }
        self.add_experts(ops, out, x, routing, &ready)
    }

    /// Adds what experts make of their rows, which lie behind one another. Rows go together by their places among those of all
    /// experts, whichever experts these are: what a GPU makes of a row depends on how many of its expert's go with it.
    pub(super) fn add_experts(
        &self,
        ops: &Ops,
        hidden: &mut Activation,
        x: &Activation,
        routing: &Routing,
        experts: &[ExpertRows<'_>],
    ) -> Result<(), EngineError> {
        let (Some((first, _)), Some((last, _))) = (experts.first(), experts.last()) else {
            return Ok(());
        };
        let together = match ops.device().is_gpu() {
            true => GPU_PIECE_FACTOR * self.mlp_rows,
            false => self.mlp_rows,
        };
        let mut start = first.start;
        while start < last.end {
            let end = (start / together + 1) * together;
            let piece = start..end.min(last.end);
            start = piece.end;
            let (mut offsets, mut gate_up, mut down) = (vec![0], Vec::new(), Vec::new());
            for (places, group) in experts {
                if places.start.max(piece.start) < places.end.min(piece.end) {
                    offsets.push(places.end.min(piece.end) - piece.start);
                    gate_up.push([TensorPart::Gate, TensorPart::Up].map(|part| group.weight(part)));
                    down.push(group.weight(TensorPart::Down));
                }
            }
            let rows = ops.indices(routing.rows(piece.clone()))?;
            let gathered = ops.take_rows(x, &rows)?;
            let [mut gate, up] = ops.grouped_linear_each(&gathered, &gate_up, &offsets, x.len())?;
            drop(gathered);
            self.activate(ops, &mut gate, &up)?;
            drop(up);
            let out = ops.grouped_linear(&gate, &down, &offsets, x.len())?;
            ops.add_routed(hidden, &out, routing, piece)?;
        }
        Ok(())
    }
}
