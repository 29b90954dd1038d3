//! Arguments of `sluice bench`.

use std::path::PathBuf;

use clap::Args;
use sluice_shared::dial::Dial;

use super::{Details, help};

/// `sluice bench`.
#[derive(Debug, Args)]
#[command(after_long_help = help::bench())]
pub struct Bench {
    /// Prompts, one a line; `-` reads them from standard input. Left out: a few short ones
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
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub concurrent: u32,
    /// Times that each prompt is answered
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Requests beforehand that don't count, for each row
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub warmup: u32,
    /// Print each row as a JSON object on its own line
    #[arg(long)]
    pub json: bool,
    /// Positions of the dial to compare, a row each [default: the daemon's]
    #[arg(
        long = "dial",
        value_name = "DIAL",
        value_delimiter = ',',
        help_heading = "Decoding"
    )]
    pub dials: Vec<Dial>,
    /// Compare all positions of the dial
    #[arg(long, conflicts_with = "dials", help_heading = "Decoding")]
    pub all_dials: bool,
    /// How to decode, in all rows.
    #[command(flatten)]
    pub details: Details,
}
