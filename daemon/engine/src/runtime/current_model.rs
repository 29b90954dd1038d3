//! The loaded model, and the planner that makes its plans.

use std::sync::{Arc, PoisonError, RwLock};

use sluice_checkpoint::{Checkpoint, disk_bandwidth, family::ModelConfig, weight_cache};
use sluice_cuda::HEAD_DIM_MAX;
use sluice_plan::{BLOCK_DEFAULT, Machine, Plan, PlanError, PlanInput, WorkingMemory, Workload};
use sluice_shared::{level::KvCacheFormat, options::ResolvedPlanSettings};
use sluice_weights::{Shape, SourceTensor};

use super::{autoregressive::KeptPrefix, outline::default_canvas, switch::WeightSwitch};
use crate::{
    decode::Vocabulary,
    error::EngineError,
    model::{dry_run::DryRun, transformer::Transformer},
    request::ModelId,
    residency::{Residency, WeightReader},
};

/// Makes plans for a model.
#[derive(Debug)]
pub(super) struct Planner {
    pub(super) config: ModelConfig,
    /// The tensors, with an estimate of their compressed size.
    estimated_sources: Arc<Vec<SourceTensor>>,
    /// The compressed copy, once it exists.
    compressed_copy: RwLock<Option<CompressedCopy>>,
    /// Whether a compressed copy can be written somewhere.
    pub(super) can_compress: bool,
    pub(super) machine: Machine,
    /// The checkpoint, whose converted weights are found by its fingerprint; `None` for a model that is not loaded.
    pub(super) checkpoint: Option<Arc<Checkpoint>>,
    pub(super) dry_run: DryRun,
    /// Rows that go through an MLP together, while memory is not short.
    pub(super) mlp_rows: usize,
}

/// A checkpoint's weights, losslessly compressed.
#[derive(Debug, Clone)]
struct CompressedCopy {
    container: Arc<Checkpoint>,
    /// The model's tensors, with their exact compressed size.
    sources: Arc<Vec<SourceTensor>>,
}

impl Planner {
    /// A planner for a model with these tensors.
    pub(super) fn new(config: ModelConfig, sources: Vec<SourceTensor>, machine: Machine) -> Self {
        let rehearsal = DryRun::new(config.clone(), &sources, machine.device);
        Self {
            mlp_rows: rehearsal.mlp_rows(),
            checkpoint: None,
            dry_run: rehearsal,
            config,
            estimated_sources: sources.into(),
            compressed_copy: RwLock::default(),
            can_compress: true,
            machine,
        }
    }

    /// The model's tensors, with exact compressed sizes where a copy exists.
    pub(super) fn sources(&self) -> Arc<Vec<SourceTensor>> {
        let copy = self
            .compressed_copy
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let exact = copy.as_ref().map(|copy| &copy.sources);
        Arc::clone(exact.unwrap_or(&self.estimated_sources))
    }

    /// The model's tensors with estimated compressed sizes, whether a copy exists or not.
    pub(super) fn estimated_sources(&self) -> &[SourceTensor] {
        &self.estimated_sources
    }

    /// The compressed copy that plans use, if it exists.
    pub(super) fn compressed_copy(&self) -> Option<Arc<Checkpoint>> {
        let copy = self
            .compressed_copy
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        copy.as_ref().map(|copy| Arc::clone(&copy.container))
    }

    /// Uses this compressed copy for plans from now on, or none.
    pub(super) fn set_compressed_copy(&self, container: Option<Arc<Checkpoint>>) {
        let copy = container.map(|container| {
            let sources = self.estimated_sources.iter().map(|source| SourceTensor {
                // Only tensors that were to be compressed count: the copy may hold others as they are.
                compressed_copy: (source.compressed_copy.as_ref())
                    .and_then(|_| container.compressed(&source.spec.name)),
                ..source.clone()
            });
            CompressedCopy {
                sources: Arc::new(sources.collect()),
                container,
            }
        });
        *self
            .compressed_copy
            .write()
            .unwrap_or_else(PoisonError::into_inner) = copy;
    }

    /// A planner for a checkpoint: checks its headers, and measures its disk for a moment.
    pub(super) fn of_checkpoint(
        checkpoint: &Checkpoint,
        config: ModelConfig,
        machine: Machine,
    ) -> Result<Self, EngineError> {
        let shape = &config.shape;
        // Refused before anything is read: the GPU's attention kernels are compiled for these sizes.
        let has_kernel = shape.head_dim <= HEAD_DIM_MAX && shape.head_dim.is_multiple_of(2);
        if machine.device.gpu.is_some() && !has_kernel {
            return Err(EngineError::HeadDim {
                head_dim: shape.head_dim,
            });
        }
        let sources = checkpoint.sources(shape.tensors())?;
        let sources = weight_cache::with_estimated_compression(checkpoint, sources)?;
        let machine = Machine {
            disk: disk_bandwidth(checkpoint),
            ..machine
        };
        Ok(Self::new(config, sources, machine))
    }

    /// A plan for the loaded model.
    pub(super) fn plan(
        &self,
        choices: ResolvedPlanSettings,
        budget_bytes: u64,
        workload: Workload,
    ) -> Result<Plan, EngineError> {
        self.plan_beside(choices, budget_bytes, workload, self.mlp_rows, 0)
    }

    /// A plan, while KV caches of `held_bytes` are held, whatever their format, and with `mlp_rows` rows going through
    /// an MLP at once.
    fn plan_beside(
        &self,
        choices: ResolvedPlanSettings,
        budget_bytes: u64,
        workload: Workload,
        mlp_rows: usize,
        held_bytes: u64,
    ) -> Result<Plan, EngineError> {
        let mut working =
            self.dry_run
                .working(&workload, mlp_rows, choices.settings.kv_cache_format)?;
        // Running requests keep their caches during a switch, whatever the new plan's workload would need.
        working.kv_cache_bytes = working.kv_cache_bytes.max(held_bytes);
        let plan = Plan::new(&PlanInput {
            shape: &self.config.shape,
            sources: &self.sources(),
            choices,
            budget_bytes,
            working,
            workload,
            machine: &self.machine,
        })?;
        // Without a folder the estimate would never become exact, so there would be no plan to put in force.
        match plan.is_estimate() && !self.can_compress {
            true => Err(PlanError::NotCompressed { level: plan.level }.into()),
            false => Ok(plan),
        }
    }
}

/// The workload that a model is planned for before any request.
pub(super) fn usual_workload(shape: &Shape) -> Workload {
    Workload::new(default_canvas(shape.context_length), BLOCK_DEFAULT, 1)
}

/// The loaded model.
pub(super) struct CurrentModel {
    pub(super) id: ModelId,
    pub(super) model: Transformer,
    pub(super) weights: Residency,
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
}
