//! The planner of a model: what plans need to know of it, whether it is loaded or not.

use std::sync::{Arc, PoisonError, RwLock};

use sluice_checkpoint::{
    Checkpoint, CheckpointError, PriorFile, disk_bandwidth, family::ModelConfig, weight_cache,
};
use sluice_cuda::{ATTEND_HEAD_DIM_MAX, HEAD_DIM_MAX};
use sluice_plan::{
    BLOCK_DEFAULT, CANVAS_DEFAULT, Machine, Plan, PlanError, PlanInput, Workload, sharing::Fit,
};
use sluice_shared::{
    level::Level,
    options::{PlanSettings, ResolvedPlanSettings},
};
use sluice_weights::{LayerKind, Shape, SourceTensor};

use super::mixes::ModelMixes;
use crate::{error::EngineError, model::dry_run::DryRun};

/// Makes plans for a model.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) config: ModelConfig,
    /// The tensors, with an estimate of their compressed size.
    estimated_sources: Arc<Vec<SourceTensor>>,
    /// The compressed copy, once it exists.
    compressed_copy: RwLock<Option<CompressedCopy>>,
    /// The mixes of level `optimized`.
    pub(crate) mixes: ModelMixes,
    /// Whether a compressed copy can be written somewhere.
    pub(super) can_compress: bool,
    pub(crate) machine: Machine,
    /// The learned prior beside a latent thought model.
    pub(super) prior: Option<PriorFile>,
    /// The checkpoint, whose converted weights are found by its fingerprint; `None` for a model that is not loaded.
    pub(crate) checkpoint: Option<Arc<Checkpoint>>,
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
    /// A planner for a model with these tensors, and its learned prior.
    pub(super) fn new(
        config: ModelConfig,
        sources: Vec<SourceTensor>,
        prior: Option<PriorFile>,
        machine: Machine,
    ) -> Self {
        let shape = prior.as_ref().map(|prior| prior.shape);
        let rehearsal = DryRun::new(config.clone(), &sources, shape, machine.device);
        Self {
            mlp_rows: rehearsal.mlp_rows(),
            prior,
            checkpoint: None,
            dry_run: rehearsal,
            config,
            estimated_sources: sources.into(),
            compressed_copy: RwLock::default(),
            mixes: ModelMixes::default(),
            can_compress: true,
            machine,
        }
    }

    /// The model's tensors, with exact compressed sizes where a copy exists.
    pub(crate) fn sources(&self) -> Arc<Vec<SourceTensor>> {
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
        // Before anything is read.
        check_device(&config, &machine)?;
        let shape = &config.shape;
        let sources = checkpoint.model_sources(shape)?;
        let sources = weight_cache::with_estimated_compression(checkpoint, sources)?;
        let machine = Machine {
            // Of the disk that this checkpoint lies on; the next model may lie on another.
            disk: disk_bandwidth(checkpoint),
            ..machine
        };
        let prior = match shape.layer_kind {
            LayerKind::LatentThought(sizes) => {
                checkpoint.prior([shape.layers * sizes.latents, shape.hidden_size])?
            }
            _ => None,
        };
        Ok(Self::new(config, sources, prior, machine))
    }

    /// A plan for the loaded model.
    pub(crate) fn plan(
        &self,
        choices: ResolvedPlanSettings,
        budget_bytes: u64,
        workload: Workload,
    ) -> Result<Plan, EngineError> {
        self.plan_beside(choices, budget_bytes, workload, self.mlp_rows, 0)
    }

    /// A plan for the usual request.
    pub(super) fn usual_plan(
        &self,
        settings: PlanSettings,
        budget_bytes: u64,
    ) -> Result<Plan, EngineError> {
        let workload = usual_workload(&self.config.shape);
        self.plan(settings.resolved(), budget_bytes, workload)
    }

    /// How the model fits within so many bytes, and the plan that a load would take: at the level that is asked for, or where
    /// that is not possible at the nearest that is no less faithful.
    pub(super) fn fit(
        &self,
        settings: PlanSettings,
        budget_bytes: u64,
    ) -> Result<(Fit, Result<Plan, EngineError>), EngineError> {
        let refused = match self.usual_plan(settings, budget_bytes) {
            Ok(plan) if plan.streamed_bytes() == 0 => return Ok((Fit::Whole, Ok(plan))),
            Ok(plan) => return Ok((Fit::Streamed, Ok(plan))),
            Err(error) if is_of_level(&error) => error,
            Err(error) => return Err(error),
        };
        let mut substitutes = settings.level.substitutes().iter();
        let substitute = substitutes.find_map(|&level| {
            let settings = PlanSettings {
                level,
                ..settings.with_unresolved_mix()
            };
            self.usual_plan(settings, budget_bytes).ok()
        });
        Ok(match substitute {
            Some(plan) => (Fit::Streamed, Ok(plan)),
            None => (Fit::Not, Err(refused)),
        })
    }

    /// A plan, while KV caches of `held_bytes` are held, whatever their format, and with `mlp_rows` rows going through
    /// an MLP at once.
    pub(super) fn plan_beside(
        &self,
        choices: ResolvedPlanSettings,
        budget_bytes: u64,
        workload: Workload,
        mlp_rows: usize,
        held_bytes: u64,
    ) -> Result<Plan, EngineError> {
        check_device(&self.config, &self.machine)?;
        let blocks = self.config.mask.and_then(|mask| mask.blocks);
        let workload = blocks.map_or(workload, |blocks| workload.in_blocks(blocks.length));
        let mut working =
            self.dry_run
                .working(&workload, mlp_rows, choices.settings.kv_cache_format)?;
        // Running requests keep their caches during a switch, whatever the new plan's workload would need.
        working.kv_cache_bytes = working.kv_cache_bytes.max(held_bytes);
        let mut sources = self.sources();
        if choices.level == Level::Optimized {
            let own = Vec::clone(&sources);
            sources = Arc::new(self.mixes.apply(choices.settings.effective_mix(), own)?);
        }
        let plan = Plan::new(&PlanInput {
            shape: &self.config.shape,
            sources: &sources,
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

/// Checks that the machine's device computes such a model.
fn check_device(config: &ModelConfig, machine: &Machine) -> Result<(), EngineError> {
    if machine.device.gpu.is_none() {
        return Ok(());
    }
    // The GPU's attention kernels are compiled for these sizes. Of DiffusionGemma's heads no gradient is asked, and no keys
    // are chosen by them.
    let max = match config.shape.layer_kind {
        LayerKind::Gemma(_) => ATTEND_HEAD_DIM_MAX,
        _ => HEAD_DIM_MAX,
    };
    let mut sizes = (0..config.shape.layers).map(|layer| config.shape.heads(layer).head_dim);
    match sizes.find(|head_dim| *head_dim > max || !head_dim.is_multiple_of(2)) {
        Some(head_dim) => Err(EngineError::HeadDim { head_dim, max }),
        None => Ok(()),
    }
}

/// Whether another level may be possible where this one was refused.
pub(super) fn is_of_level(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Plan(PlanError::BudgetTooSmall { .. } | PlanError::NotCompressed { .. })
            | EngineError::NoWeightCache { .. }
            | EngineError::NoMix(_)
            | EngineError::Checkpoint(CheckpointError::WeightCache { .. })
    )
}

/// The workload that a model is planned for before any request.
pub(crate) fn usual_workload(shape: &Shape) -> Workload {
    Workload::new(default_canvas(shape.context_length), BLOCK_DEFAULT, 1)
}

/// The default canvas of a plan.
#[must_use]
pub fn default_canvas(context_length: usize) -> usize {
    CANVAS_DEFAULT.min(context_length)
}
