//! The gated MLP with its norm and its residual.

use sluice_ops::{Activation, Ops};
use sluice_weights::{MatrixInput, TensorPart, WeightGroup};

use super::{Network, Observer, acquire, observe};
use crate::{
    error::EngineError,
    residency::{Residency, WeightGuard},
};

impl Network {
    /// The MLP with its residual, in chunks of rows: the two intermediate matrices exist for one chunk only.
    pub(super) fn mlp(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        hidden: &mut Activation,
        observer: Observer<'_, '_>,
    ) -> Result<(), EngineError> {
        let gate_up = acquire(ops, weights, WeightGroup::GateUp(layer))?;
        // Both groups are held for all chunks of rows, since a streamed one would have to be read again for each. So an
        // MLP holds two staging buffers at once, and a plan has three at least.
        let down = acquire(ops, weights, WeightGroup::Down(layer))?;
        let norm = gate_up.weight(TensorPart::MlpNorm);
        for start in (0..hidden.len()).step_by(self.mlp_rows) {
            let rows = start..hidden.len().min(start + self.mlp_rows);
            let x = ops.rms_norm(hidden, rows, &norm, self.config.epsilon)?;
            observe(observer, ops, MatrixInput::Mlp(layer), &x)?;
            let gate = self.gated(ops, &gate_up, &x)?;
            observe(observer, ops, MatrixInput::Down(layer), &gate)?;
            ops.linear_add(hidden, start, &gate, &down.weight(TensorPart::Down))?;
        }
        Ok(())
    }

    /// The activation of the gate's outputs, times up's.
    pub(super) fn gated(
        &self,
        ops: &Ops,
        gate_up: &WeightGuard<'_>,
        x: &Activation,
    ) -> Result<Activation, EngineError> {
        let weights = [TensorPart::Gate, TensorPart::Up].map(|part| gate_up.weight(part));
        let [mut gate, up] = ops.linear_each(x, weights.each_ref())?;
        self.activate(ops, &mut gate, &up)?;
        Ok(gate)
    }

    /// The model's activation of `gate`, times `up`, written to `gate`.
    pub(super) fn activate(
        &self,
        ops: &Ops,
        gate: &mut Activation,
        up: &Activation,
    ) -> Result<(), EngineError> {
        match self.gemma() {
            Some(_) => ops.gelu_mul(gate, up)?,
            None => ops.silu_mul(gate, up)?,
        }
        Ok(())
    }
}
