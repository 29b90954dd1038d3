//! What the engine is told besides requests, and what it answers: models to load and to unload, and changes of the settings.

use std::sync::Arc;

use sluice_checkpoint::Recommended;
use sluice_plan::{Plan, SwitchTime};
use sluice_shared::level::{AUTO_FACTOR, Choices, Embedding, Kv, Level};
use sluice_tokenizer::Text;

use crate::{error::EngineError, model::ModelInfo, request::ModelId};

/// What a plan is made for, as the user says it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// How faithful weights are.
    pub level: Level,
    /// Most bytes of the device's memory; `None`: what was free when the engine started, less a margin.
    pub budget_bytes: Option<u64>,
    /// Where the embedding is.
    pub embedding: Embedding,
    /// How much longer a pass may take for fidelity's sake under [`Level::Auto`]; at least 1.
    pub auto_factor: f64,
    /// How a causal model's keys and values are kept.
    pub kv: Kv,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            level: Level::Standard,
            budget_bytes: None,
            embedding: Embedding::Auto,
            auto_factor: AUTO_FACTOR,
            kv: Kv::Auto,
        }
    }
}

/// A change of the settings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Change {
    /// The new level, if it is to change.
    pub level: Option<Level>,
    /// The new budget, if it is to change; `Some(None)`: the default one.
    pub budget_bytes: Option<Option<u64>>,
    /// Where the embedding is to be, if that is to change.
    pub embedding: Option<Embedding>,
    /// The new factor of [`Level::Auto`], if it is to change.
    pub auto_factor: Option<f64>,
    /// How a causal model's keys and values are to be kept, if that is to change: from the next request on.
    pub kv: Option<Kv>,
}

impl Settings {
    /// All but the budget.
    #[must_use]
    pub fn choices(&self) -> Choices {
        Choices {
            embedding: self.embedding,
            auto_factor: self.auto_factor,
            kv: self.kv,
            ..Choices::from(self.level)
        }
    }

    /// The settings after a change.
    #[must_use]
    pub fn with(self, change: &Change) -> Self {
        Self {
            level: change.level.unwrap_or(self.level),
            budget_bytes: change.budget_bytes.unwrap_or(self.budget_bytes),
            embedding: change.embedding.unwrap_or(self.embedding),
            auto_factor: change.auto_factor.unwrap_or(self.auto_factor),
            kv: change.kv.unwrap_or(self.kv),
        }
    }
}

/// A model in memory, as everybody may see it.
#[derive(Debug)]
pub struct LoadedModel {
    /// Which loading this is.
    pub id: ModelId,
    /// What is known of it.
    pub info: ModelInfo,
    /// Its tokenizer and template, if the checkpoint has them.
    pub text: Option<Arc<Text>>,
    /// What the checkpoint says of how its tokens are chosen.
    pub recommended: Recommended,
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
        time: Option<SwitchTime>,
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
        done: usize,
        /// Steps in all.
        steps: usize,
    },
    /// The last event of every change: the plan now in force.
    Finished(Result<Arc<Plan>, EngineError>),
}

/// Takes a change's events, on the engine's thread; must not block.
pub type ApplyReport = Box<dyn FnMut(ApplyEvent) + Send>;
