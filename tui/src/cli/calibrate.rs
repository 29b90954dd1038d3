//! Arguments of `sluice calibrate`.

use std::path::PathBuf;

use clap::{Args, value_parser};
use sluice_shared::units;

use super::{FollowArgs, help};

/// `sluice calibrate`.
#[derive(Debug, Args)]
#[command(after_long_help = help::CALIBRATE)]
pub struct Calibrate {
    /// Texts in the model's language, such as those it will work on; `-` is standard input [default: a built-in text]
    #[arg(value_name = "TEXT")]
    pub texts: Vec<PathBuf>,
    /// File to write; its name must end in .safetensors [default: NAME.calibration.safetensors in the daemon's folder of
    /// converted weights]
    #[arg(long, short, value_name = "FILE.safetensors")]
    pub output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long)]
    pub replace: bool,
    /// Maximum number of positions in all passes [default: 32768]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub positions: Option<u32>,
    /// Measure only the diagonals of the matrices: a small file, enough for weighted quantization
    #[arg(long)]
    pub diagonal: bool,
    /// Limit of the host memory for statistics, such as 4GiB; less takes more sweeps [default: a quarter of the free memory,
    /// at least 1GiB]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub memory: Option<u64>,
    /// Seed of masks and decodes [default: 0]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Threads for statistics, beside those of the passes [default: half of the cores of the daemon's machine]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// How to follow it.
    #[command(flatten)]
    pub following: FollowArgs,
}
