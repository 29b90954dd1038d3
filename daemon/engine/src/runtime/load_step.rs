//! What the thread of a load hands to the engine's thread: a plan that needs memory, then the model or an error.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool, mpsc},
};

use sluice_checkpoint::{Checkpoint, Source, family::ModelConfig};
use sluice_ops::StateShape;
use sluice_plan::Plan;
use sluice_tokenizer::{LimitReached, Patience, Tokenizer, TokenizerError, limits::PARSE_WAIT_MAX};

use super::{LoadEvent, LoadReport, PlanSettings, planner::Planner, state::LevelSubstitution};
use crate::{
    error::EngineError,
    prior::Prior,
    residency::{Residency, WeightReader},
    saved_state::StateModel,
    schedule::{self, LoadCommand},
};

/// What a load needs from the engine's thread.
pub(crate) enum LoadStep {
    /// Memory for this plan: whether it can be had is the answer.
    Budget {
        plan: Arc<Plan>,
        granted: mpsc::Sender<bool>,
    },
    /// The end of the load.
    Finished(LoadResult),
}

/// How a load ended, and whom to tell.
pub(crate) struct LoadResult {
    pub(super) result: Result<Box<ReadyModel>, EngineError>,
    pub(super) report: LoadReport,
}

impl LoadResult {
    /// The end of a load that failed before it began.
    pub(super) fn failed(load: LoadCommand, error: EngineError) -> Self {
        Self {
            result: Err(error),
            report: load.report,
        }
    }
}

impl schedule::LoadStep for LoadStep {
    fn refuse(self) {
        // A load that waits for memory notices that its sender is gone.
        if let Self::Finished(LoadResult { result, mut report }) = self {
            drop(result);
            report(LoadEvent::Finished(Err(EngineError::Stopped)));
        }
    }
}

/// A model that is completely read.
pub(super) struct ReadyModel {
    pub(super) opened: OpenedCheckpoint,
    pub(super) planner: Arc<Planner>,
    pub(super) plan: Arc<Plan>,
    pub(super) reader: Arc<WeightReader>,
    pub(super) weights: Residency,
    pub(super) prior: Option<Prior>,
    pub(super) settings: PlanSettings,
    pub(super) substitution: Option<LevelSubstitution>,
}

/// A checkpoint whose small files have been read.
pub(super) struct OpenedCheckpoint {
    pub(super) checkpoint: Arc<Checkpoint>,
    pub(super) config: ModelConfig,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    /// What tells its states from those of other models, if it has states.
    pub(super) state_model: Option<StateModel>,
}

impl OpenedCheckpoint {
    /// Opens a checkpoint, and reads its small files.
    ///
    /// With a program to do that in, the tokenizer is parsed in a process of its own, until `cancel` is set.
    pub(super) fn new(
        source: &Source,
        tokenizer_program: Option<&Path>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        let checkpoint = Checkpoint::open(source)?;
        let config = checkpoint.model()?;
        // The tokenizer first: it is small, and a broken one should not cost a long read.
        let text = checkpoint
            .tokenizer()?
            .map(|files| {
                let files = sluice_tokenizer::TokenizerFiles {
                    tokenizer: &files.tokenizer,
                    config: files.config.as_deref(),
                    template: files.template.as_deref(),
                };
                let patience = Patience::new(PARSE_WAIT_MAX, Arc::clone(cancel));
                match tokenizer_program {
                    Some(program) => Tokenizer::apart(program, &files, &patience),
                    None => Tokenizer::here(&files),
                }
            })
            .transpose()
            .map_err(|error| match error {
                TokenizerError::Limit(LimitReached::Gone) => EngineError::LoadCancelled,
                error => error.into(),
            })?
            .map(Arc::new);
        let state_model = match StateShape::of(&config.shape) {
            Some(shape) => Some(StateModel {
                fingerprint: checkpoint.content_fingerprint()?,
                shape,
            }),
            None => None,
        };
        Ok(Self {
            checkpoint: Arc::new(checkpoint),
            config,
            tokenizer: text,
            state_model,
        })
    }
}
