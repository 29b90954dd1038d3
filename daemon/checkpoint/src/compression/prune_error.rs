//! Why a model cannot be pruned as it was asked for. It is here and not beside the pruning, since jobs on files have one
//! error.

use std::path::PathBuf;

use sluice_shared::pruning::PruneScore;

use crate::calibration::CalibrationError;

/// What is wrong with the model or the shares.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// The model cannot be pruned at all.
    #[error("{path} {reason}", path = path.display())]
    NotPrunable {
        /// Path of the model.
        path: PathBuf,
        /// Why, as a phrase that follows the path.
        reason: &'static str,
    },
    /// The model's layers have neither KV heads nor a gated MLP.
    #[error("{path} has layers without attention, which cannot be pruned", path = path.display())]
    WithoutAttention {
        /// Path of the model.
        path: PathBuf,
    },
    /// A share is none.
    #[error("the share of {units} to remove is {share}; it must be at least 0 and below 1")]
    Share {
        /// What it is a share of.
        units: &'static str,
        /// The share that was asked for.
        share: f64,
    },
    /// So many would leave a layer without any.
    #[error(
        "removing {removed} of {all} {units} would leave a layer without any: at most {most} can be removed"
    )]
    NothingLeft {
        /// What is removed.
        units: &'static str,
        /// How many would be removed.
        removed: usize,
        /// How many there are.
        all: usize,
        /// How many can be removed.
        most: usize,
    },
    /// The shares are so small that nothing would be removed.
    #[error(
        "these shares remove nothing: the model has {kv_heads} KV heads, and {channels} channels in each MLP"
    )]
    NothingRemoved {
        /// KV heads in all layers.
        kv_heads: usize,
        /// Channels of each MLP.
        channels: usize,
    },
    /// The score needs a calibration.
    #[error("the score {score} needs a calibration")]
    ScoreWithoutCalibration {
        /// The score that was asked for.
        score: PruneScore,
    },
    /// Compensation needs a calibration.
    #[error("compensation needs a calibration")]
    CompensationWithoutCalibration,
    /// The calibration can't be read, or is of another model.
    #[error(transparent)]
    Calibration(CalibrationError),
    /// The calibration has no whole matrices.
    #[error("the calibration has no whole matrices, which the score obs and compensation need")]
    DiagonalOnly,
    /// Weights and statistics of a tensor can't be used.
    #[error("cannot prune tensor {tensor}: {cause}")]
    Statistics {
        /// Name of the tensor.
        tensor: String,
        /// Why.
        cause: String,
    },
}

impl PruneError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotPrunable { .. } => {
                "give the original: a folder with safetensors, or a .sluice file that was compressed losslessly"
            }
            Self::WithoutAttention { .. } => {
                "compress it, or load it at level moderate or aggressive"
            }
            Self::Share { .. } => "give shares such as --heads 0.2 --channels 0.1",
            Self::NothingLeft { .. } => "remove a smaller share",
            Self::NothingRemoved { .. } => "remove a larger share with --heads or --channels",
            Self::ScoreWithoutCalibration { .. } | Self::CompensationWithoutCalibration => {
                "give the model's calibration with --calibration FILE, or use the scores l2 or magnitude"
            }
            Self::Calibration(_) => "calibrate the model that is pruned",
            Self::DiagonalOnly => "calibrate the model with whole matrices",
            Self::Statistics { .. } => "use the scores l2 or magnitude, without compensation",
        }
    }
}
