//! The engine's commands besides requests, and their events: loads, unloads and changes of the settings.

use std::sync::{Arc, atomic::AtomicBool};

use sluice_checkpoint::RecommendedSettings;
use sluice_plan::{Plan, SwitchEstimate, sharing::Fit};
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

/// An event of a command that ends with a `T`.
#[derive(Debug)]
pub enum CommandEvent<T> {
    /// The plan it leads to. An estimate is followed by the exact plan.
    Planned {
        /// The plan that will be in force.
        plan: Arc<Plan>,
        /// Changes between passes; 0 for a load.
        steps: usize,
        /// How long the steps will take; `None` for a load, and where rates are not known.
        estimate: Option<SwitchEstimate>,
    },
    /// Something the user should hear of.
    Notice(String),
    /// How far the present stage is.
    Progress {
        /// The stage, which says what is counted.
        stage: CommandStage,
        /// How much is done.
        done: u64,
        /// How much there is in all.
        total: u64,
    },
    /// The last event of every command.
    Finished(Result<T, EngineError>),
}

/// A stage of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandStage {
    /// A converted copy is being written, from which weights will be read; the plan before stays in force. Counts bytes of the
    /// copy.
    Converting,
    /// The weights of a container are compared with their checksums. Counts bytes of the file.
    Verifying,
    /// Weights are being read into memory. Counts bytes.
    Loading,
    /// Weights are exchanged between passes. Counts steps.
    Switching,
}

/// An event of a load, which ends with the model.
pub type LoadEvent = CommandEvent<Arc<LoadedModel>>;

/// Takes a load's events, on the load's thread and the last one on the engine's; must not block.
pub type LoadReport = Box<dyn FnMut(LoadEvent) + Send>;

/// Asked how a model fits within so many bytes.
pub type FitFn<'a> = &'a mut dyn FnMut(u64) -> Result<Fit, EngineError>;

/// Makes room for a load that others may have to go for. Called on the load's thread, which may wait there.
pub trait LoadRoom: Send {
    /// The budget to plan for: what there will be once [`LoadRoom::make`] has returned. May be asked again, where that took
    /// too long.
    ///
    /// # Errors
    /// When there can be no place for the model.
    fn budget(&mut self, fit: FitFn<'_>) -> Result<u64, EngineError>;

    /// Makes that room, once all that the load can do before is done, or returns when `cancel` is set. False if that is not possible
    /// any more: the load is planned again.
    ///
    /// # Errors
    /// When the load is to end.
    fn make(&mut self, cancel: &AtomicBool) -> Result<bool, EngineError>;
}

/// Called on the engine's thread with whether a model was unloaded; must not block.
pub type UnloadReport = Box<dyn FnOnce(bool) + Send>;

/// An event of a change of the settings, which ends with the plan that is in force then.
pub type ApplyEvent = CommandEvent<Arc<Plan>>;

/// Takes a change's events, on the engine's thread; must not block.
pub type ApplyReport = Box<dyn FnMut(ApplyEvent) + Send>;
