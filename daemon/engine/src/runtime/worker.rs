//! The state of the engine's thread, and how it is published; what the thread does works on this.

use std::sync::{Arc, atomic::AtomicBool};

use sluice_ops::{Ops, ledger::PeakMark};
use sluice_plan::Plan;

use super::{
    PARALLEL_MAX,
    current_model::CurrentModel,
    loader::RunningLoad,
    memory_watch::GpuMemoryWatch,
    shared::Shared,
    state::{PassTotals, PlanInForce},
    weight_cache::WeightCache,
};
use crate::{device_turn::DeviceTurn, error::EngineError};

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
    /// The load of another model in progress.
    pub(super) loading: Option<RunningLoad>,
    /// The watch over the GPU's memory.
    pub(super) memory_watch: GpuMemoryWatch,
    /// Models of other engines have gone, and nobody has looked since whether streamed weights have room now.
    pub(super) may_reclaim: bool,
    /// The turn that engines of one device take: this one computes while it has it.
    pub(super) turn: DeviceTurn,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, ops: Ops) -> Self {
        let group = &shared.group;
        Self {
            ops: Arc::new(ops),
            current: None,
            weight_cache: Arc::clone(&group.weight_cache),
            totals: PassTotals::default(),
            cancel: Arc::default(),
            parallel: group.options.parallel.clamp(1, PARALLEL_MAX),
            loading: None,
            memory_watch: GpuMemoryWatch::new(group.memory_at_start),
            may_reclaim: false,
            turn: group.turns.place(shared.heartbeat.clone()),
            shared,
        }
    }

    /// The loaded model.
    pub(super) fn current_mut(&mut self) -> Result<&mut CurrentModel, EngineError> {
        self.current.as_mut().ok_or(EngineError::NoModel)
    }

    /// Sets the ledger's limit by the settings in force, or those of the load in progress, and claims what the plans in
    /// force may take. What is already held stays.
    pub(super) fn update_limit(&self) {
        let state = &self.shared.state;
        let of_load = self.loading.as_ref().and_then(RunningLoad::limit_bytes);
        // The bytes that are allowed, even where other programs hold some of them: that lowers plans, but refuses no
        // allocation for which the device still has room.
        let limit = of_load.unwrap_or_else(|| state.allowed_bytes(&state.settings()));
        self.shared.ledger.set_limit(limit);
        self.shared.ledger.settle_claim(self.claim_bytes());
    }

    /// What no other engine may take: the peaks of the plan in force, of the one that a switch leads to, and what the load
    /// in progress was promised.
    pub(super) fn claim_bytes(&self) -> u64 {
        let current = self.current.as_ref();
        let in_force = current.map_or(0, |current| {
            let target = current.target().map_or(0, Plan::peak_bytes);
            current.plan.peak_bytes().max(target)
        });
        let loading = self.loading.as_ref();
        let promised = loading.map_or(0, RunningLoad::promised_bytes);
        in_force.max(promised)
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
            expert_visits: current.weights.expert_visits(),
            passes: self.totals,
        });
    }
}
