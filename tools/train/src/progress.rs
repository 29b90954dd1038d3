//! How far a run got, and by which options: what is kept of it beside weights.

use serde::{Deserialize, Serialize};

use crate::{
    batch::BatchOptions, config::ModelConfig, latent::LatentOptions, optimizer::OptimizerOptions,
    precision::Precision, quantization::QuantizationOptions,
};

/// The progress of a run: what it needs to continue, and what the model card says of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The shape of the model.
    pub config: ModelConfig,
    /// Options that determine the data.
    pub batch: BatchOptions,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Steps until the learning rate is highest.
    pub warm_up_steps: u64,
    /// Steps that were taken.
    pub step: u64,
    /// Steps that were planned.
    pub steps_planned: u64,
    /// Tokens seen, prompts and padding included.
    pub tokens: u64,
    /// Time spent in steps, in seconds.
    pub train_seconds: f64,
    /// Planned time in seconds, if that and not the number of steps determines the learning rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_planned: Option<u64>,
    /// The fingerprint of the weights that the run began with; `None` for random ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_with: Option<String>,
    /// How the last part of the run computes with rounded weights, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<QuantizationOptions>,
    /// How a latent thought model's latents are learned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<LatentOptions>,
    /// Decays and limits of the optimizer.
    #[serde(default)]
    pub optimizer: OptimizerOptions,
    /// What passes compute from and keep.
    #[serde(default)]
    pub precision: Precision,
}
