//! Arguments of `sluice optimize`.

use std::path::PathBuf;

use clap::{Args, value_parser};
use sluice_shared::options::Budget;

use super::{FollowArgs, help};

/// `sluice optimize`.
#[derive(Debug, Args)]
#[command(after_long_help = help::OPTIMIZE)]
pub struct Optimize {
    /// Texts in the model's language, such as those it will work on; `-` is standard input [default: a built-in text]
    #[arg(value_name = "TEXT")]
    pub texts: Vec<PathBuf>,
    /// Device memory that the plan may take, such as 4GiB [default: the budget in force]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    pub budget: Option<Budget>,
    /// Calibration of this model to quantize by [default: the one in the daemon's folder of converted weights, which is made
    /// where it is missing]
    #[arg(long, value_name = "FILE.safetensors", conflicts_with = "uncalibrated")]
    pub calibration: Option<PathBuf>,
    /// Quantize without a calibration: faster, and less faithful
    #[arg(long)]
    pub uncalibrated: bool,
    /// How long a pass may take, as predicted: more weights stay as they are then, if the budget has room
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    pub max_pass_ms: Option<f64>,
    /// Do not put the mix in force
    #[arg(long)]
    pub no_apply: bool,
    /// Maximum number of texts that losses are measured on [default: 64]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=256))]
    pub samples: Option<u32>,
    /// Seed of the masks [default: 0]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Threads that quantize, beside those of the passes [default: half of the cores of the daemon's machine]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// How to follow it.
    #[command(flatten)]
    pub following: FollowArgs,
}
