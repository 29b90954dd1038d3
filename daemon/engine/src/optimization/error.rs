//! Errors of an optimization.

use sluice_checkpoint::{CheckpointError, calibration::CalibrationError, quantize::QuantizeError};
use sluice_optimize::allocate::AllocateError;

use crate::{error::EngineError, turns::TurnError};

/// Why an optimization failed. What it has done is found again by the next one with the same model and texts.
#[derive(Debug, thiserror::Error)]
pub enum OptimizeError {
    /// A pass was refused or failed, there is no model, or the budget is too small.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The calibration cannot be used.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// A matrix cannot be quantized.
    #[error(transparent)]
    Quantize(QuantizeError),
    /// No choice of rates is possible.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The model has layers that cannot be optimized.
    #[error("the loaded model {0}, which cannot be optimized")]
    Layers(&'static str),
    /// The budget has room for the checkpoint's own weights.
    #[error("the budget has room for the checkpoint's own weights: there is nothing to quantize")]
    NothingToQuantize,
    /// No choice within the budget has so short a pass.
    #[error("a pass was to take at most {:.1} ms; the shortest within the budget takes {:.1} ms", 1000.0 * limit_s, 1000.0 * least_s)]
    PassTime {
        /// Seconds that a pass may take.
        limit_s: f64,
        /// Seconds of the shortest pass within the budget.
        least_s: f64,
    },
    /// A pass is limited in time, which cannot be predicted on this machine.
    #[error("a pass cannot be limited in time: the machine's rates could not be measured")]
    UnknownTimes,
    /// Threads can't be started.
    #[error("cannot start threads: {0}")]
    Threads(String),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl From<CheckpointError> for OptimizeError {
    fn from(error: CheckpointError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<QuantizeError> for OptimizeError {
    fn from(error: QuantizeError) -> Self {
        match error {
            QuantizeError::Cancelled => Self::Cancelled,
            QuantizeError::Checkpoint(error) => error.into(),
            QuantizeError::Calibration(error) => error.into(),
            other => Self::Quantize(other),
        }
    }
}

impl From<TurnError> for OptimizeError {
    fn from(error: TurnError) -> Self {
        match error {
            TurnError::Engine(error) => error.into(),
            TurnError::Cancelled => Self::Cancelled,
        }
    }
}
