//! Experts that the CPU computes beside a GPU, where their weights lie in host memory.

use sluice_ops::{Activation, Ops, Phase, Routing};
use sluice_weights::WeightGroup;

use super::{
    Network,
    mixture::{ExpertRows, touched},
    waiting,
};
use crate::{error::EngineError, residency::Residency};

/// Some experts of a layer, and the rows that go through them.
pub(super) struct CpuExperts<'a> {
    /// The GPU's.
    ops: &'a Ops,
    /// Which of the rows each expert has.
    routing: Routing,
    /// Where these rows are in the pass.
    rows: Vec<usize>,
    /// The rows, in host memory.
    x: Activation,
}

impl Network {
    /// Takes the rows that go through these experts to the host. The GPU is waited for.
    pub(super) fn cpu_experts<'a>(
        &self,
        ops: &'a Ops,
        x: &Activation,
        routing: &Routing,
    ) -> Result<CpuExperts<'a>, EngineError> {
        let (routing, rows) = routing.compact();
        Ok(CpuExperts {
            x: ops.rows_to_host(x, &rows, self.mlp_rows)?,
            ops,
            routing,
            rows,
        })
    }
}

impl CpuExperts<'_> {
    /// Computes the experts, while the GPU does what was sent to it, and adds the sum of what they make of a row to the row of `out`
    /// that it is.
    pub(super) fn add(
        self,
        network: &Network,
        weights: &Residency,
        layer: usize,
        out: &mut Activation,
    ) -> Result<(), EngineError> {
        let host = self.ops.host()?;
        // A pass on a GPU has not marked the machine's threads as its own.
        let computing = host.device().compute();
        let mut sums = host.zeros(self.rows.len(), out.width())?;
        let mut compute = |ready: &[ExpertRows<'_>]| {
            // The GPU stands still for the CPU now, and for no copy.
            let _timed = self.ops.timed(Phase::Matmul);
            network.add_experts(host, &mut sums, &self.x, &self.routing, ready)
        };
        let mut ready = Vec::new();
        for expert in touched(&self.routing) {
            let group = WeightGroup::Expert(layer, expert);
            let guard = waiting(self.ops, weights, || {
                // While the pass waits, conversions may use its cores.
                let _waiting = host.device().wait();
                weights.acquire_on_host(group)
            })?;
            let is_read_anew = guard.is_read_anew();
            ready.push((self.routing.places(expert), guard));
            if is_read_anew {
                compute(&std::mem::take(&mut ready))?;
            }
        }
        compute(&ready)?;
        drop(computing);
        Ok((self.ops).add_from_host(out, &sums, &self.rows, network.mlp_rows)?)
    }
}
