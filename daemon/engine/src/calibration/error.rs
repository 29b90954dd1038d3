//! Errors of a calibration.

use sluice_checkpoint::{calibration::CalibrationError, features::FeatureRefusal};
use sluice_optimize::moments::MomentsError;
use sluice_weights::MatrixInput;

use crate::{error::EngineError, turns::TurnError};

/// Why a calibration failed. No file is left.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A pass was refused or failed, or there is no model.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The file can't be written, or the text is too little.
    #[error(transparent)]
    File(#[from] CalibrationError),
    /// The inputs of the model's matrices are not those that a calibration has.
    #[error("{family} models cannot be calibrated: {reason}")]
    Layers {
        /// The model's family.
        family: &'static str,
        /// Why.
        reason: FeatureRefusal,
    },
    /// The statistics of one input exceed the memory limit.
    #[error(
        "the statistics of {input} take {needed_bytes} bytes with the rows that wait for them; the limit is {limit_bytes}"
    )]
    Memory {
        /// The input that takes most.
        input: MatrixInput,
        /// Bytes that it takes.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The model computed a number that is none.
    #[error("{input}: {error}")]
    Rows {
        /// The input that has it.
        input: MatrixInput,
        /// Where in it.
        error: MomentsError,
    },
    /// Threads can't be started.
    #[error("cannot start threads: {0}")]
    Threads(String),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl From<TurnError> for CalibrateError {
    fn from(error: TurnError) -> Self {
        match error {
            TurnError::Engine(error) => error.into(),
            TurnError::Cancelled => Self::Cancelled,
        }
    }
}
