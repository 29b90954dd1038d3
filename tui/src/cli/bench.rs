//! Arguments of `sluice bench`.

use std::path::PathBuf;

use clap::Args;
use sluice_shared::preset::Preset;

use super::{AskedModel, DecodingDetails, help};

/// `sluice bench`.
#[derive(Debug, Args)]
#[command(after_long_help = help::bench())]
pub struct Bench {
    /// File of prompts, one per line; `-` reads standard input [default: a few short prompts]
    #[arg(value_name = "FILE", conflicts_with = "tokens")]
    pub prompts: Option<PathBuf>,
    /// Token ids in the prompts' place, for models without a tokenizer
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Option<Vec<u32>>,
    /// Take the prompts as they stand, without the chat template
    #[arg(long, conflicts_with = "tokens")]
    pub raw: bool,
    /// Positions to fill for each prompt [default: 128, or what the context leaves]
    #[arg(long, value_name = "N")]
    pub length: Option<u32>,
    /// Concurrent requests
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub concurrent: u32,
    /// Repetitions of each prompt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Warm-up requests per row, which are not measured
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub warmup: u32,
    /// The model that answers.
    #[command(flatten)]
    pub asked: AskedModel,
    /// Print each row as a JSON object on its own line
    #[arg(long)]
    pub json: bool,
    /// Presets to compare, one row each [default: the daemon's]
    #[arg(
        long = "preset",
        value_name = "PRESET",
        value_delimiter = ',',
        help_heading = "Decoding",
        conflicts_with = "stop"
    )]
    pub presets: Vec<Preset>,
    /// Compare all presets
    #[arg(long, conflicts_with_all = ["presets", "stop"], help_heading = "Decoding")]
    pub all_presets: bool,
    /// How to decode, in all rows.
    #[command(flatten)]
    pub details: DecodingDetails,
}
