//! The loaded model, and the plans that can be made for it.

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

/// What plans for a model are made from.
#[derive(Debug)]
pub(super) struct Planner {
    pub(super) config: ModelConfig,
    /// With an estimate of what a coded copy takes.
    estimated_sources: Arc<Vec<SourceTensor>>,
    /// That copy, once there is one.
    compressed_copy: RwLock<Option<CompressedCopy>>,
    /// Whether there is a place for one.
    pub(super) can_compress: bool,
    pub(super) machine: Machine,
    /// What converted copies of it are found by, where it is one that is loaded.
    pub(super) checkpoint: Option<Arc<Checkpoint>>,
    pub(super) dry_run: DryRun,
    /// Rows that go through an MLP together, while memory isn't short.
    pub(super) mlp_rows: usize,
}

/// A checkpoint's weights coded without loss.
#[derive(Debug, Clone)]
struct CompressedCopy {
    container: Arc<Checkpoint>,
    /// The model's tensors, with what they take there.
    sources: Arc<Vec<SourceTensor>>,
}

impl Planner {
    /// For a model with these tensors.
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

    /// The model's tensors, and what a coded copy takes, if there is one exactly.
    pub(super) fn sources(&self) -> Arc<Vec<SourceTensor>> {
        let copy = self
            .compressed_copy
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let exact = copy.as_ref().map(|copy| &copy.sources);
        Arc::clone(exact.unwrap_or(&self.estimated_sources))
    }

    /// The same, whether there is a copy or not.
    pub(super) fn estimated_sources(&self) -> &[SourceTensor] {
        &self.estimated_sources
    }

    /// The coded copy that plans count on, if there is one.
    pub(super) fn compressed_copy(&self) -> Option<Arc<Checkpoint>> {
        let copy = self
            .compressed_copy
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        copy.as_ref().map(|copy| Arc::clone(&copy.container))
    }

    /// Counts on this copy from now on, or on none.
    pub(super) fn set_compressed_copy(&self, container: Option<Arc<Checkpoint>>) {
        let copy = container.map(|container| {
            let sources = self.estimated_sources.iter().map(|source| SourceTensor {
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

    /// For a checkpoint, whose headers are checked, and whose disk is tried for a moment.
    pub(super) fn of_checkpoint(
        checkpoint: &Checkpoint,
        config: ModelConfig,
        machine: Machine,
    ) -> Result<Self, EngineError> {
        let shape = &config.shape;
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

    /// The same, where keys and values of so many bytes are held, however new ones will be kept, and so many rows go through
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
        match plan.is_estimate() && !self.can_compress {
            true => Err(PlanError::NotCompressed { level: plan.level }.into()),
            false => Ok(plan),
        }
    }
}

/// What a model is planned for before anybody asks it anything.
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
    /// What weights are read with.
    pub(super) reader: Arc<WeightReader>,
    /// In force; while a switch is under way, the one before it.
    pub(super) plan: Arc<Plan>,
    pub(super) switch: Option<WeightSwitch>,
    /// The requests that run.
    pub(super) serving: Option<Workload>,
    /// How their keys and values are kept, whatever the settings became meanwhile.
    pub(super) serving_kv_cache_format: Option<KvCacheFormat>,
    /// Keys and values of requests before, the latest last.
    pub(super) prefix_cache: Vec<KeptPrefix>,
    /// The plan in force has room for keys and values that were kept otherwise than those of requests to come.
    pub(super) holds_others: bool,
    /// The plan in force is for a wider request than the usual one, and nothing is gained by another.
    pub(super) stays_wide: bool,
    /// Rows that go through an MLP together: fewer when memory ran short.
    pub(super) mlp_rows: usize,
}

impl CurrentModel {
    /// Memory that a request takes besides weights and slots.
    pub(super) fn working(&self, workload: &Workload) -> Result<WorkingMemory, EngineError> {
        let kv = self.serving_kv_cache_format.unwrap_or_default();
        self.planner.dry_run.working(workload, self.mlp_rows, kv)
    }

    /// A plan that has room for what the running request holds.
    pub(super) fn plan(
        &self,
        choices: ResolvedPlanSettings,
        budget_bytes: u64,
        workload: Workload,
    ) -> Result<Plan, EngineError> {
        // Where it had to give way, it has as many rows at once as it has now.
        let mlp_rows = match self.serving {
            Some(_) => self.mlp_rows,
            None => self.planner.mlp_rows,
        };
        self.plan_with(choices, budget_bytes, workload, mlp_rows)
    }

    /// The same, with fewer rows at once in an MLP.
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

    /// These choices at the level in force, which a request that joins others doesn't change.
    pub(super) fn same_level(&self, choices: ResolvedPlanSettings) -> ResolvedPlanSettings {
        ResolvedPlanSettings {
            level: self.plan.level,
            ..choices
        }
    }

    /// Bytes of the keys and values of the requests that run.
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

    /// The present state as a plan: in the middle of a transition it is neither of the two.
    pub(super) fn as_it_stands(&self) -> Plan {
        // A running request has reserved what it takes, whatever the plan was made for.
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

    /// What plans are made for: the usual canvas, and the request that runs.
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
