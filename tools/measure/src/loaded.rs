//! A model with all its weights in memory.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use sluice_checkpoint::{Checkpoint, family::ModelConfig};
use sluice_engine::{
    model::network::Network,
    residency::{LoadOutcome, Residency, WeightReader},
};
use sluice_machine::Profile;
use sluice_ops::Ops;
use sluice_plan::{Machine, Plan, PlanInput, WorkingMemory, Workload};
use sluice_shared::{level::Level, options::ResolvedPlanSettings};

use crate::{Result, checkpoints::source};

/// A model with all its weights.
pub struct Loaded {
    /// What its `config.json` says.
    pub config: ModelConfig,
    /// Its operations.
    pub model: Network,
    /// Its weights.
    pub weights: Residency,
    /// Their bytes.
    pub bytes: u64,
}

impl Loaded {
    /// Loads a checkpoint at a level.
    ///
    /// # Errors
    /// When it can't be read, or memory is short.
    pub fn new(path: &Path, level: Level, ops: &Ops) -> Result<Self> {
        let checkpoint = Checkpoint::open(&source(path))?;
        let config = checkpoint.model()?;
        let sources = checkpoint.model_sources(&config.shape)?;
        let plan = Plan::new(&PlanInput {
            shape: &config.shape,
            sources: &sources,
            choices: ResolvedPlanSettings::from(level),
            budget_bytes: u64::MAX,
            workload: Workload::default(),
            working: WorkingMemory::default(),
            machine: &Machine::unmeasured(Profile::cpu(ops.device().threads()), u64::MAX),
        })?;
        let reader = Arc::new(WeightReader::new(Arc::new(checkpoint), &sources));
        let never = AtomicBool::new(false);
        let (device, ledger) = (ops.device(), ops.ledger());
        let LoadOutcome::Done(weights) =
            Residency::load(&plan, reader, device, ledger, &never, &mut |_| {})?
        else {
            unreachable!("nobody cancels");
        };
        Ok(Self {
            model: Network::new(config.clone(), ops)?,
            config,
            weights,
            bytes: plan.resident_bytes(),
        })
    }
}
