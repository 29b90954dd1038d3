//! What the engine's thread publishes about its present model.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sluice_ops::ledger::Ledger;
use sluice_plan::{Plan, Workload};
use sluice_shared::level::Level;

use super::{LoadedModel, PlanOptions, PlanSettings, planner::Planner};
use crate::{
    error::EngineError,
    residency::{ExpertStats, WeightGroupState},
};

/// The published state; only the engine's thread writes it.
pub(super) struct EngineState {
    budget_default: u64,
    ledger: Ledger,
    present: Mutex<Present>,
}

struct Present {
    settings: PlanSettings,
    /// The settings that the present model was loaded with.
    loaded_with: Option<PlanSettings>,
    /// The level that replaced the requested one, if that was not possible.
    substitution: Option<LevelSubstitution>,
    model: Option<Arc<LoadedModel>>,
    planner: Option<Arc<Planner>>,
    in_force: Option<PlanInForce>,
    /// The GPU memory that this process may use, while others hold more than when the engine started.
    available_bytes: Option<u64>,
}

/// A level that replaced the requested one, and is no less faithful.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelSubstitution {
    /// The level that was requested.
    pub requested: Level,
    /// The level that was taken.
    pub taken: Level,
    /// Why the requested level was not possible.
    pub reason: String,
}

impl fmt::Display for LevelSubstitution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requested: asked,
            taken,
            reason,
        } = self;
        let faithful = match (asked.is_lossless(), taken.is_lossless()) {
            (Some(false), Some(true)) | (Some(false), Some(false)) => "more faithful",
            _ => "as faithful",
        };
        write!(f, "level {taken} ({faithful}) replaces {asked}: {reason}")
    }
}

/// The plan in force, and what was measured under it.
#[derive(Debug, Clone)]
pub struct PlanInForce {
    /// The plan; during a switch, the one before it.
    pub plan: Arc<Plan>,
    /// The progress of the switch; `None` where none is in progress.
    pub switch: Option<SwitchProgress>,
    /// The weights version.
    pub weights_version: u64,
    /// The state of every weight group.
    pub groups: Vec<WeightGroupState>,
    /// What the last pass touched of each layer's experts, by the number of the layer; empty where all are on the device.
    pub expert_visits: Vec<(usize, ExpertStats)>,
    /// Passes since the plan was put in force.
    pub passes: PassTotals,
}

/// The progress of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchProgress {
    /// Steps that have been made.
    pub done_steps: usize,
    /// Steps in all.
    pub total_steps: usize,
}

/// Times and bytes of the passes under a plan.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PassTotals {
    /// The number of passes.
    pub passes: u64,
    /// The sum of their times.
    pub pass_time: Duration,
    /// The last one's time.
    pub last_pass_time: Duration,
    /// Rows that the last one's layers computed.
    pub last_rows: usize,
    /// Time that they waited for streamed weight groups.
    pub waited: Duration,
    /// Bytes streamed for them.
    pub streamed_bytes: u64,
    /// Peak bytes of device memory.
    pub peak_bytes: u64,
    /// What they touched of a mixture's experts, where not all of them are on the device.
    pub experts: ExpertStats,
}

impl EngineState {
    pub(super) fn new(settings: PlanSettings, budget_default: u64, ledger: Ledger) -> Self {
        Self {
            budget_default,
            ledger,
            present: Mutex::new(Present {
                settings,
                loaded_with: None,
                substitution: None,
                model: None,
                planner: None,
                in_force: None,
                available_bytes: None,
            }),
        }
    }

    pub(super) fn budget_default(&self) -> u64 {
        self.budget_default
    }

    /// The bytes that these settings allow.
    pub(super) fn allowed_bytes(&self, settings: &PlanSettings) -> u64 {
        settings.budget.bytes().unwrap_or(self.budget_default)
    }

    /// The bytes that plans under these settings may use: less than allowed while other programs, or models of other
    /// engines, have taken some.
    pub(super) fn budget_bytes(&self, settings: &PlanSettings) -> u64 {
        let available = self.lock().available_bytes;
        // What other engines have claimed and do not hold yet is among what the device has free.
        let promised = self.ledger.others_unheld_bytes();
        let available = available.map_or(u64::MAX, |bytes| bytes.saturating_sub(promised));
        let allowed = self.ledger.room_bytes(self.allowed_bytes(settings));
        allowed.min(available)
    }

    /// Bytes of the device's memory that are held.
    pub(super) fn used_bytes(&self) -> u64 {
        self.ledger.used_bytes()
    }

    pub(super) fn available_bytes(&self) -> Option<u64> {
        self.lock().available_bytes
    }

    pub(super) fn set_available_bytes(&self, bytes: Option<u64>) {
        self.lock().available_bytes = bytes;
    }

    pub(super) fn settings(&self) -> PlanSettings {
        self.lock().settings
    }

    pub(super) fn set_settings(&self, settings: PlanSettings) {
        let mut present = self.lock();
        present.settings = settings;
        // The user has chosen a level since.
        let is_chosen = |other: &LevelSubstitution| other.taken != settings.level;
        if present.substitution.as_ref().is_some_and(is_chosen) {
            present.substitution = None;
        }
    }

    pub(super) fn set_loaded_with(
        &self,
        settings: PlanSettings,
        substitution: Option<LevelSubstitution>,
    ) {
        let mut present = self.lock();
        present.loaded_with = Some(settings);
        present.substitution = substitution;
    }

    pub(super) fn loaded_with(&self) -> Option<PlanSettings> {
        self.lock().loaded_with
    }

    pub(super) fn substitution(&self) -> Option<LevelSubstitution> {
        self.lock().substitution.clone()
    }

    pub(super) fn model(&self) -> Option<Arc<LoadedModel>> {
        self.lock().model.clone()
    }

    pub(super) fn planner(&self) -> Option<Arc<Planner>> {
        self.lock().planner.clone()
    }

    pub(super) fn in_force(&self) -> Option<PlanInForce> {
        self.lock().in_force.clone()
    }

    pub(super) fn level_in_force(&self) -> Option<Level> {
        let present = self.lock();
        present
            .in_force
            .as_ref()
            .map(|in_force| in_force.plan.level)
    }

    pub(super) fn plan(
        &self,
        change: &PlanOptions,
        workload: Workload,
    ) -> Result<Plan, EngineError> {
        // The lock is not held while planning, which may take long: readers would wait for it.
        let (planner, settings) = {
            let present = self.lock();
            let planner = present.planner.clone().ok_or(EngineError::NoModel)?;
            (planner, present.settings.with(change))
        };
        planner.plan(settings.resolved(), self.budget_bytes(&settings), workload)
    }

    pub(super) fn set_model(&self, model: Arc<LoadedModel>, planner: Arc<Planner>) {
        let mut present = self.lock();
        present.model = Some(model);
        present.planner = Some(planner);
    }

    /// Publishes that there is no model.
    pub(super) fn clear(&self) {
        let mut present = self.lock();
        // The settings stay, but for a mix that nobody named: they are the engine's and not the model's.
        present.settings = present.settings.with_unresolved_mix();
        present.loaded_with = None;
        present.substitution = None;
        present.model = None;
        present.planner = None;
        present.in_force = None;
    }

    pub(super) fn set_in_force(&self, in_force: PlanInForce) {
        self.lock().in_force = Some(in_force);
    }

    fn lock(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
