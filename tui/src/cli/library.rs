//! The commands for models on disk.

use std::path::PathBuf;

use clap::Args;

use super::help;

/// `sluice pull`.
#[derive(Debug, Args)]
#[command(after_long_help = help::PULL)]
pub struct Pull {
    /// The model's name at the hub, OWNER/NAME, or a short name such as smollm2; for a repository with several GGUF files, OWNER/NAME:LABEL,
    /// such as :Q4_K_M
    pub name: String,
    /// Name of the GGUF file, instead of a label
    #[arg(long, value_name = "NAME.gguf")]
    pub file: Option<String>,
    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// Print each picture of the operation as a JSON object on its own line; the last has the result
    #[arg(long)]
    pub json: bool,
}

/// `sluice rm`.
#[derive(Debug, Args)]
#[command(after_help = help::REMOVE)]
pub struct Remove {
    /// The model's name in `sluice list`
    pub name: String,
    /// Unload it first if it is loaded
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Remove only its converted weights, for any model whose converted weights `sluice list` shows
    #[arg(long, conflicts_with = "force")]
    pub converted: bool,
}

/// `sluice inspect`.
#[derive(Debug, Args)]
#[command(after_help = help::INSPECT)]
pub struct Inspect {
    /// A name from `sluice list`, or a checkpoint's folder or file; for a .sluice file, its full contents are listed
    pub model: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
