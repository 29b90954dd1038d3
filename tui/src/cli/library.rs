//! The commands for models on disk.

use std::path::PathBuf;

use clap::Args;

use super::help;

/// `sluice pull`.
#[derive(Debug, Args)]
#[command(after_long_help = help::PULL)]
pub struct Pull {
    /// The model as the hub calls it, OWNER/NAME, or a short name such as smollm2; of a repository with several GGUF files, OWNER/NAME:LABEL,
    /// such as :Q4_K_M
    pub name: String,
    /// In a label's place, the GGUF file by its name
    #[arg(long, value_name = "NAME.gguf")]
    pub file: Option<String>,
    /// A branch, a tag or a commit [default: main]
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// Print each event as a JSON object on its own line; the last is "model"
    #[arg(long)]
    pub json: bool,
}

/// `sluice rm`.
#[derive(Debug, Args)]
#[command(after_help = help::REMOVE)]
pub struct Remove {
    /// The model, as `sluice list` calls it
    pub name: String,
    /// Unload it first, where it is loaded
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Only the weights that were converted of it and kept, of any model that `sluice list` shows some of
    #[arg(long, conflicts_with = "force")]
    pub converted: bool,
}

/// `sluice inspect`.
#[derive(Debug, Args)]
#[command(after_help = help::INSPECT)]
pub struct Inspect {
    /// A model as `sluice list` calls it, or a checkpoint's folder or file; of a .sluice file, all that is inside is told
    pub model: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
