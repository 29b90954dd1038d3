//! The engine's commands besides requests, and their events: loads, unloads and changes of the settings.

use std::sync::Arc;

use sluice_checkpoint::RecommendedSettings;
use sluice_plan::{Plan, SwitchEstimate};
pub use sluice_shared::options::{Budget, PlanOptions, PlanSettings};
use sluice_tokenizer::Tokenizer;

use crate::{error::EngineError, model::ModelInfo, request::ModelId};

/// A loaded model, as the rest of the program sees it.
#[derive(Debug)]
pub struct LoadedModel {
    /// The id of this load of the model.
    pub id: ModelId,
    /// Its shape, vocabulary and limits.
    pub info: ModelInfo,
    /// Its tokenizer and template, if the checkpoint has them.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Settings that the checkpoint recommends for choosing tokens.
    pub recommended: RecommendedSettings,
}

/// An event of a load.
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
    /// How much has been loaded so far.
    Progress {
        /// Bytes that are in place.
        loaded_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
    },
    /// The last event of every load.
    Finished(Result<Arc<LoadedModel>, EngineError>),
}

/// Takes a load's events, on the load's thread and the last one on the engine's; must not block.
pub type LoadReport = Box<dyn FnMut(LoadEvent) + Send>;

/// Called on the engine's thread with whether a model was unloaded; must not block.
pub type UnloadReport = Box<dyn FnOnce(bool) + Send>;

/// An event of a change of the settings.
#[derive(Debug)]
pub enum ApplyEvent {
    /// The plan it leads to, and in how many steps.
    Planned {
        /// The plan that will be in force.
        plan: Arc<Plan>,
        /// Changes between passes.
        steps: usize,
        /// How long the steps will take; `None` where rates are not known.
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
    /// How many steps have been made so far.
    Progress {
        /// Steps that have been made.
        done_steps: usize,
        /// Steps in all.
        total_steps: usize,
    },
    /// The last event of every change: the plan now in force.
    Finished(Result<Arc<Plan>, EngineError>),
}

/// Takes a change's events, on the engine's thread; must not block.
pub type ApplyReport = Box<dyn FnMut(ApplyEvent) + Send>;
