//! What engines on one device share: the device and its threads, the budget, the turn, and what was measured.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64},
};

use sluice_machine::{MemoryStats, Rates, default_budget};
use sluice_ops::{CommonMemory, Ops, device::Device, ledger::SharedBudget, measure::measure};
use sluice_plan::TimeCorrections;

use super::{EngineOptions, memory_watch::StartFigures, weight_cache::WeightCache};
use crate::{device_turn::TurnLine, error::EngineError};

/// Shared by the engines of one device.
pub(super) struct EngineGroup {
    pub(super) options: EngineOptions,
    pub(super) device: Device,
    pub(super) common_memory: CommonMemory,
    /// What the models of all engines may take together.
    pub(super) budget: SharedBudget,
    /// The budget where none is set, in bytes.
    pub(super) budget_default: u64,
    pub(super) turns: TurnLine,
    /// A GPU's memory when the first engine started.
    pub(super) memory_at_start: Option<StartFigures>,
    /// Rates of the device, where memory allowed to measure them; `None` until they are first needed.
    rates: Mutex<Option<Option<Rates>>>,
    /// Where converted weights are kept.
    pub(super) weight_cache: Arc<WeightCache>,
    pub(super) last_model_id: AtomicU64,
    /// Corrections of predicted times, learned from passes of all models.
    pub(super) corrections: TimeCorrections,
}

impl EngineGroup {
    /// A group on a device that was just opened.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub(super) fn new(options: EngineOptions, device: Device) -> Result<Self, EngineError> {
        // Measured after the device was opened: the driver's context is no longer free.
        let free_bytes = device.memory().free_bytes;
        let own_bytes = device.context_bytes() + device.workspace_bytes();
        // A budget counts everything in the ledgers, so the context is added back to what is left.
        let budget_default = free_bytes.map_or(u64::MAX, |free| {
            default_budget(free).saturating_add(own_bytes)
        });
        let spare_bytes = free_bytes.map_or(0, |free| free - default_budget(free));
        let limit = options.settings.budget.bytes().unwrap_or(budget_default);
        let budget = SharedBudget::new(limit, pinned_limit(&options));
        let common_memory = CommonMemory::new(&device, &budget)?;
        let weight_cache = WeightCache {
            folder: options.weight_cache.clone(),
            always: options.keep_converted,
            bytes_max: options.weight_cache_bytes_max,
            has_told: AtomicBool::new(false),
        };
        Ok(Self {
            memory_at_start: StartFigures::read(&device, &budget, spare_bytes),
            rates: Mutex::new(options.rates.clone().map(Some)),
            options,
            device,
            budget,
            budget_default,
            turns: TurnLine::default(),
            weight_cache: Arc::new(weight_cache),
            last_model_id: AtomicU64::new(0),
            corrections: TimeCorrections::default(),
            common_memory,
        })
    }

    /// Rates of the device, where memory allowed to measure them; measured when first needed, by an engine's thread that has
    /// the turn.
    pub(super) fn rates(&self, ops: &Ops) -> Result<Option<Rates>, EngineError> {
        // Nothing of the value is left half-done by a panic.
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        match &*rates {
            Some(rates) => Ok(rates.clone()),
            None => Ok(rates.insert(measure(ops)?).clone()),
        }
    }
}

/// Most of the host's memory that all engines pin together, where the limit of each plan is what is free.
fn pinned_limit(options: &EngineOptions) -> u64 {
    let half = || MemoryStats::read().total_bytes.map(|total| total / 2);
    let limit = options.pinned_memory_limit_bytes.or_else(half);
    limit.unwrap_or(u64::MAX)
}
