//! What the engine is told besides requests, and what it answers: models to load and to unload, and changes of the settings.

use std::sync::Arc;

use sluice_checkpoint::RecommendedSettings;
use sluice_plan::{Plan, SwitchEstimate};
pub use sluice_shared::options::{Budget, PlanOptions, PlanSettings};
use sluice_tokenizer::Tokenizer;

use crate::{error::EngineError, model::ModelInfo, request::ModelId};

/// A model in memory, as everybody may see it.
#[derive(Debug)]
pub struct LoadedModel {
    /// Which loading this is.
    pub id: ModelId,
    /// What is known of it.
    pub info: ModelInfo,
    /// Its tokenizer and template, if the checkpoint has them.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// What the checkpoint says of how its tokens are chosen.
    pub recommended: RecommendedSettings,
}

/// How a load goes.
#[derive(Debug)]
pub enum LoadEvent {
    /// The plan it follows.
    Planned(Arc<Plan>),
    /// Something the user should hear of.
    Notice(String),
    /// A converted copy is being written, from which weights will be read.
    Converting {
        /// Bytes of the copy that are done.
        done_bytes: u64,
        /// Bytes of it in all.
        total_bytes: u64,
    },
    /// So far.
    Progress {
        /// Bytes that are where they belong.
        loaded_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
    },
    /// The last event of every load.
    Finished(Result<Arc<LoadedModel>, EngineError>),
}

/// Takes a load's events, on the load's thread and the last one on the engine's; must not block.
pub type LoadReport = Box<dyn FnMut(LoadEvent) + Send>;

/// Told on the engine's thread whether a model went; must not block.
pub type UnloadReport = Box<dyn FnOnce(bool) + Send>;

/// How a change of the settings goes.
#[derive(Debug)]
pub enum ApplyEvent {
    /// What it leads to, and in how many steps.
    Planned {
        /// The plan that will be in force.
        plan: Arc<Plan>,
        /// Changes between passes.
        steps: usize,
        /// How long that will take, where rates are known.
        estimate: Option<SwitchEstimate>,
    },
    /// Something the user should hear of.
    Notice(String),
    /// A converted copy is being written, from which weights will be read; the plan before stays in force meanwhile.
    Converting {
        /// Bytes of the copy that are done.
        done_bytes: u64,
        /// Bytes of it in all.
        total_bytes: u64,
    },
    /// So far.
    Progress {
        /// Steps done.
        done_steps: usize,
        /// Steps in all.
        total_steps: usize,
    },
    /// The last event of every change: the plan now in force.
    Finished(Result<Arc<Plan>, EngineError>),
}

/// Takes a change's events, on the engine's thread; must not block.
pub type ApplyReport = Box<dyn FnMut(ApplyEvent) + Send>;
