//! The state of the engine's thread, and how it is published; what the thread does works on this.

use std::sync::{Arc, atomic::AtomicBool};

use sluice_machine::Rates;
use sluice_ops::{Ops, ledger::PeakMark};

use super::{
    current_model::CurrentModel,
    loader::RunningLoad,
    memory_watch::GpuMemoryWatch,
    shared::Shared,
    state::{PassTotals, PlanInForce},
    weight_cache::WeightCache,
};
use crate::error::EngineError;

/// State that only the thread has.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) ops: Arc<Ops>,
    pub(super) current: Option<CurrentModel>,
    /// Where converted weights are kept.
    pub(super) weight_cache: Arc<WeightCache>,
    /// Times and bytes of passes under the plan in force.
    pub(super) totals: PassTotals,
    /// Set to cancel the running requests.
    pub(super) cancel: Arc<AtomicBool>,
    /// Most requests that share a pass.
    pub(super) parallel: usize,
    /// Rates of the device, where memory allowed to measure them; `None` until they are first needed.
    pub(super) rates: Option<Option<Rates>>,
    /// The load of another model in progress.
    pub(super) loading: Option<RunningLoad>,
    /// The watch over the GPU's memory.
    pub(super) memory_watch: GpuMemoryWatch,
}

impl Worker {
    /// A worker; the default budget leaves `spare_bytes` of the device's memory free.
    pub(super) fn new(
        shared: Arc<Shared>,
        ops: Ops,
        keeping: Arc<WeightCache>,
        parallel: usize,
        spare_bytes: u64,
    ) -> Self {
        let account = GpuMemoryWatch::new(ops.device(), &shared.ledger, spare_bytes);
        Self {
            shared,
            ops: Arc::new(ops),
            current: None,
            weight_cache: keeping,
            totals: PassTotals::default(),
            cancel: Arc::default(),
            parallel,
            rates: None,
            loading: None,
            memory_watch: account,
        }
    }

    /// The loaded model.
    pub(super) fn current_mut(&mut self) -> Result<&mut CurrentModel, EngineError> {
        self.current.as_mut().ok_or(EngineError::NoModel)
    }

    /// Sets the ledger's limit by the settings in force, or those of the load in progress. What is already held stays.
    pub(super) fn update_limit(&self) {
        let state = &self.shared.state;
        let of_load = self.loading.as_ref().and_then(RunningLoad::limit_bytes);
        // The bytes that are allowed, even where other programs hold some of them: that lowers plans, but refuses no
        // allocation for which the device still has room.
        let limit = of_load.unwrap_or_else(|| state.allowed_bytes(&state.settings()));
        self.shared.ledger.set_limit(limit);
    }

    /// Resets the measurements, since another plan is in force.
    pub(super) fn start_measuring(&mut self) {
        self.totals = PassTotals::default();
        self.shared.ledger.mark(PeakMark::Plan);
    }

    /// Publishes the state of the weights.
    pub(super) fn tell_state(&self) {
        let Some(current) = &self.current else { return };
        self.shared.state.set_in_force(PlanInForce {
            plan: Arc::clone(&current.plan),
            switch: current.switch.as_ref().map(|switch| switch.state()),
            weights_version: current.weights.weights_version(),
            groups: current.weights.groups(),
            passes: self.totals,
        });
    }
}
