//! In which numbers a run computes.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What passes compute from and keep. Master weights, gradients and sums are f32 either way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// f32 everywhere.
    #[default]
    F32,
    /// Weights rounded to BF16, and BF16 kept of a pass (mixed precision).
    Bf16,
}
