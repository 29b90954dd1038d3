//! The loaded model, with what a request or a switch changes of it.

use std::sync::Arc;

use sluice_plan::{Plan, WorkingMemory, Workload};
use sluice_shared::{level::KvCacheFormat, options::ResolvedPlanSettings};

use super::{
    planner::{Planner, usual_workload},
    prefix_cache::KeptPrefix,
    weight_switch::WeightSwitch,
};
use crate::{
    decode::Vocabulary,
    error::EngineError,
    model::network::Network,
    prior::Prior,
    request::ModelId,
    residency::{Residency, WeightReader},
};

/// The loaded model.
pub(super) struct CurrentModel {
    pub(super) id: ModelId,
    pub(super) model: Network,
    pub(super) weights: Residency,
    /// The learned prior of a latent thought model.
    pub(super) prior: Option<Prior>,
    pub(super) vocabulary: Arc<Vocabulary>,
    pub(super) planner: Arc<Planner>,
    /// Reads the weights.
    pub(super) reader: Arc<WeightReader>,
    /// The plan in force; during a switch, the one before it.
    pub(super) plan: Arc<Plan>,
    pub(super) switch: Option<WeightSwitch>,
    /// The combined workload of the running requests.
    pub(super) serving: Option<Workload>,
    /// The format of their KV caches, whatever the settings became meanwhile.
    pub(super) serving_kv_cache_format: Option<KvCacheFormat>,
    /// The prefix cache, the latest entry last.
    pub(super) prefix_cache: Vec<KeptPrefix>,
    /// Whether the plan in force counts KV caches in another format than later requests will use.
    pub(super) holds_others: bool,
    /// Whether the plan in force is for a larger request than the usual one, and nothing is gained by another.
    pub(super) stays_wide: bool,
    /// Rows that go through an MLP together: fewer when memory ran short.
    pub(super) mlp_rows: usize,
}

impl CurrentModel {
    /// Memory that a request takes besides weights and staging buffers.
    pub(super) fn working(&self, workload: &Workload) -> Result<WorkingMemory, EngineError> {
        let kv = self.serving_kv_cache_format.unwrap_or_default();
        self.planner.dry_run.working(workload, self.mlp_rows, kv)
    }

    /// A plan that has space for what the running requests hold.
    pub(super) fn plan(
        &self,
        choices: ResolvedPlanSettings,
        budget_bytes: u64,
        workload: Workload,
    ) -> Result<Plan, EngineError> {
        // Running requests that had to give way keep the smaller number of rows.
        let mlp_rows = match self.serving {
            Some(_) => self.mlp_rows,
            None => self.planner.mlp_rows,
        };
        self.plan_with(choices, budget_bytes, workload, mlp_rows)
    }

    /// A plan with a given number of rows at once in an MLP.
    pub(super) fn plan_with(
        &self,
        choices: ResolvedPlanSettings,
        budget_bytes: u64,
        workload: Workload,
        mlp_rows: usize,
    ) -> Result<Plan, EngineError> {
        let planner = &self.planner;
        planner.plan_beside(
            choices,
            budget_bytes,
            workload,
            mlp_rows,
            self.held_bytes()?,
        )
    }

    /// These settings at the level in force, which a joining request does not change.
    pub(super) fn same_level(&self, choices: ResolvedPlanSettings) -> ResolvedPlanSettings {
        ResolvedPlanSettings {
            level: self.plan.level,
            ..choices
        }
    }

    /// Bytes of the running requests' KV caches.
    pub(super) fn held_bytes(&self) -> Result<u64, EngineError> {
        match &self.serving {
            Some(serving) => Ok(self.working(serving)?.kv_cache_bytes),
            None => Ok(0),
        }
    }

    pub(super) fn set_mlp_rows(&mut self, rows: usize) {
        // Both together: plans count by this number, and passes compute by the model's.
        self.mlp_rows = rows;
        self.model.set_mlp_rows(rows);
    }

    /// The present state as a plan: during a transition it is neither the old nor the new one.
    pub(super) fn as_it_stands(&self) -> Plan {
        // Running requests have reserved their memory, whatever the plan was made for.
        let serving = self
            .serving
            .and_then(|workload| self.working(&workload).ok());
        Plan {
            groups: self.weights.group_plans(),
            staging: self.weights.staging(),
            working: serving.unwrap_or(self.plan.working),
            ..Plan::clone(&self.plan)
        }
    }

    /// Has the GPU compute all experts under the plan in force; returns whether the CPU has computed some.
    pub(super) fn leave_experts_to_gpu(&mut self) -> bool {
        let was_asked = self.weights.has_cpu_experts();
        self.weights.set_cpu_experts(None);
        let (shape, machine) = (&self.planner.config.shape, &self.planner.machine);
        self.plan = Arc::new(self.plan.without_cpu_experts(shape, machine));
        was_asked
    }

    /// The workload that plans are made for: the usual canvas, and the running requests.
    pub(super) fn workload(&self) -> Workload {
        let usual = usual_workload(&self.planner.config.shape);
        self.serving.map_or(usual, |serving| usual.widest(&serving))
    }

    /// The plan that a switch leads to, once it has begun to take effect.
    pub(super) fn target(&self) -> Option<&Plan> {
        let switch = self.switch.as_ref()?;
        switch.stepping_towards()?;
        Some(switch.target())
    }

    /// Replaces the reader. When it has a sound copy in place of one that has changed, the stream restarts with it.
    pub(super) fn set_reader(&mut self, reader: Arc<WeightReader>) -> Result<(), EngineError> {
        let is_sounder = reader.changed_converted() < self.reader.changed_converted();
        self.weights.set_reader(WeightReader::clone(&reader));
        self.reader = reader;
        match is_sounder {
            true => self.weights.stream(&[], &[], self.weights.staging()),
            false => Ok(()),
        }
    }

    /// Closes copies that the plan in force does not use.
    pub(super) fn release_converted_weights(&mut self) {
        let reader = WeightReader::clone(&self.reader).only_for(&self.plan);
        self.weights.set_reader(WeightReader::clone(&reader));
        self.reader = Arc::new(reader);
    }
}
