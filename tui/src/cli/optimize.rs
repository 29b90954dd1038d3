//! Arguments of `sluice optimize` and `sluice quantize`.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{PathBufValueParser, TypedValueParser},
    value_parser,
};
use sluice_shared::{
    compression::{check_container_path, parse_mix_bits},
    options::Budget,
};

use super::{FollowArgs, help};

/// `sluice optimize`.
#[derive(Debug, Args)]
#[command(after_long_help = help::OPTIMIZE)]
pub struct Optimize {
    /// Device memory that the plan may take, such as 4GiB [default: the budget in force]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    pub budget: Option<Budget>,
    /// How long a pass may take, as predicted: more weights stay as they are then, if the budget has room
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    pub max_pass_ms: Option<f64>,
    /// How the mix is made.
    #[command(flatten)]
    pub mix: MixArgs,
}

/// `sluice quantize`.
#[derive(Debug, Args)]
#[command(after_long_help = help::QUANTIZE)]
pub struct Quantize {
    /// Bits per weight of all matrices, 1.75 to 8
    #[arg(long, value_name = "B", value_parser = parse_mix_bits)]
    pub bits: f64,
    /// How the mix is made.
    #[command(flatten)]
    pub mix: MixArgs,
}

/// How a mix is made, and what becomes of it.
#[derive(Debug, Args)]
pub struct MixArgs {
    /// Texts in the model's language, such as those it will work on; `-` is standard input [default: a built-in text]
    #[arg(value_name = "TEXT")]
    pub texts: Vec<PathBuf>,
    /// Calibration of this model to quantize by [default: the one in the daemon's folder of converted weights, which is made
    /// where it is missing]
    #[arg(long, value_name = "FILE.safetensors", conflicts_with = "uncalibrated")]
    pub calibration: Option<PathBuf>,
    /// Quantize without a calibration: faster, and less faithful
    #[arg(long)]
    pub uncalibrated: bool,
    /// Write the model with the mix's weights to this file, too; its name must end in .sluice
    #[arg(long, short, value_name = "FILE.sluice", value_parser = PathBufValueParser::new().try_map(check_container_path), conflicts_with = "detach")]
    pub output: Option<PathBuf>,
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
