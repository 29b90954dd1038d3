//! The commands that ask for plans, put them in force and measure them.

use std::{fmt, path::PathBuf};

use clap::Args;
use sluice_shared::{
    level::{EmbeddingPlacement, KvCacheFormat, Level, parse_max_slowdown},
    settings::PlanOptions,
    units,
};

use super::help;

/// `sluice plan`.
#[derive(Debug, Args)]
#[command(after_long_help = help::plan())]
pub struct Plan {
    /// A name from `sluice list`, or a checkpoint's folder, .gguf or .sluice file; only its headers are read.
    /// Without it and without --shape: the loaded model
    #[arg(value_name = "NAME|DIR", conflicts_with_all = ["shape", "model_flag"])]
    pub model: Option<PathBuf>,
    /// The same as a flag
    #[arg(
        long = "model",
        id = "model_flag",
        value_name = "NAME|DIR",
        conflicts_with = "shape",
        hide_short_help = true
    )]
    pub model_flag: Option<PathBuf>,
    /// A published shape, such as llada-8b; needs no weights
    #[arg(long, value_name = "NAME")]
    pub shape: Option<String>,
    /// How faithful the weights are, and how much memory they may take.
    #[command(flatten)]
    pub options: PlanArgs,
    /// What may be chosen beside a level.
    #[command(flatten)]
    pub details: PlanDetailArgs,
    /// Canvas length in tokens, prompt included [default: 256, or the model's context if it is shorter]
    #[arg(long, value_name = "N")]
    pub canvas: Option<u32>,
    /// Requests in a batch [default: 1]
    #[arg(long, value_name = "N")]
    pub requests: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A level and a budget, either of which may be left as it is.
#[derive(Debug, Default, Args)]
pub struct PlanArgs {
    /// Fidelity of the weights: off, standard, mild (or lossless), moderate (or q8), aggressive (or q4) or auto [default:
    /// the daemon's]
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<Level>,
    /// Device memory budget, such as 4GiB, or `default` for the memory that was free when the daemon started, less a margin
    /// [default: the daemon's]
    #[arg(long, value_name = "BYTES|default", value_parser = parse_budget)]
    pub budget: Option<Budget>,
}

/// What may be chosen beside a level.
#[derive(Debug, Default, Args)]
pub struct PlanDetailArgs {
    /// Where the embedding is kept: host, device, or auto (on the host at every level but off)
    /// [default: unchanged]
    #[arg(long, value_name = "PLACE")]
    pub embedding: Option<EmbeddingPlacement>,
    /// Slowdown that level auto accepts: a pass may take this many times as long as at the fastest level [default: unchanged]
    #[arg(long, value_name = "FACTOR", value_parser = parse_max_slowdown)]
    pub max_slowdown: Option<f64>,
    /// Format of an autoregressive model's KV cache: f32, bf16, q8_0, or auto for bf16, on a GPU for the dtype it computes
    /// in [default: unchanged]
    #[arg(long, value_name = "FORMAT")]
    pub kv_cache_format: Option<KvCacheFormat>,
}

impl PlanArgs {
    /// The change of the daemon's settings that is wished for.
    pub fn change(&self) -> PlanOptions {
        PlanOptions {
            level: self.level,
            budget_bytes: self.budget.map(Budget::bytes),
            ..PlanOptions::default()
        }
    }
}

impl PlanDetailArgs {
    /// The change of the daemon's settings that is wished for.
    pub fn change(&self) -> PlanOptions {
        PlanOptions {
            embedding: self.embedding,
            max_slowdown: self.max_slowdown,
            kv_cache_format: self.kv_cache_format,
            ..PlanOptions::default()
        }
    }
}

/// `sluice level`.
#[derive(Debug, Args)]
#[command(after_long_help = help::level())]
pub struct SetLevel {
    /// off, standard, mild (or lossless), moderate (or q8), aggressive (or q4) or auto
    pub level: Level,
    /// New budget as well, such as 4GiB, or `default`
    #[arg(long, value_name = "BYTES|default", value_parser = parse_budget)]
    pub budget: Option<Budget>,
    /// What may be chosen beside it.
    #[command(flatten)]
    pub details: PlanDetailArgs,
    /// Print each event as a JSON object on its own line; the last is "applied"
    #[arg(long)]
    pub json: bool,
}

/// `sluice budget`.
#[derive(Debug, Args)]
#[command(after_long_help = help::BUDGET)]
pub struct SetBudget {
    /// Device memory budget, such as 4GiB; `default` is the memory that was free when the daemon started,
    /// less a margin
    #[arg(value_name = "BYTES|default", value_parser = parse_budget)]
    pub budget: Budget,
    /// Print each event as a JSON object on its own line; the last is "applied"
    #[arg(long)]
    pub json: bool,
}

/// `sluice restore`.
#[derive(Debug, Args)]
#[command(after_long_help = help::SWITCH)]
pub struct Restore {
    /// What to restore: `start`, the settings that the daemon was started or the model loaded with (level, budget and all
    /// others); or `source`, the checkpoint's own weights
    #[arg(long, value_name = "PLACE", value_enum, default_value_t = RestoreTo::Start)]
    pub to: RestoreTo,
    /// Print each event as a JSON object on its own line; the last is "applied"
    #[arg(long)]
    pub json: bool,
}

/// `sluice fidelity`.
#[derive(Debug, Args)]
#[command(after_long_help = help::fidelity())]
pub struct Fidelity {
    /// A text in the model's language; each line that is not blank is a sample; without it or with
    /// `-`: standard input
    pub file: Option<PathBuf>,
    /// Level to measure, or `all` loadable levels; may be repeated [default: the level in force]
    #[arg(long = "level", value_name = "LEVEL|all", value_parser = parse_levels)]
    pub levels: Vec<LevelChoice>,
    /// Maximum number of samples; from more lines, evenly spaced ones are used [default: 64]
    #[arg(long, value_name = "N")]
    pub samples: Option<u32>,
    /// Seed of the masks [default: drawn by the daemon, and reported]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// List earlier measurements of all clients instead of measuring
    #[arg(long, conflicts_with_all = ["file", "levels", "samples", "seed"])]
    pub show: bool,
    /// Print each level's result as a JSON object on its own line
    #[arg(long)]
    pub json: bool,
}

/// What `sluice restore` goes back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RestoreTo {
    /// What the daemon was started or the model loaded with.
    Start,
    /// The checkpoint's own weights.
    Source,
}

/// Which levels are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LevelChoice {
    /// All that can be loaded, and differ.
    All,
    /// This one.
    One(Level),
}

/// A budget as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// The one that holds where nobody sets one.
    Default,
    /// This many bytes.
    Bytes(u64),
}

impl Budget {
    /// The bytes, where they are given.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Default => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Bytes(bytes) => bytes.fmt(f),
        }
    }
}

fn parse_levels(text: &str) -> Result<LevelChoice, String> {
    if text == "all" {
        return Ok(LevelChoice::All);
    }
    text.parse()
        .map(LevelChoice::One)
        .map_err(|problem: String| format!("{problem}, or `all`"))
}

fn parse_budget(text: &str) -> Result<Budget, String> {
    if text == "default" {
        return Ok(Budget::Default);
    }
    units::parse_bytes(text)
        .map(Budget::Bytes)
        .map_err(|problem| format!("{problem}, or `default`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_measured_by_its_name_or_with_all_others() {
        assert_eq!(parse_levels("all"), Ok(LevelChoice::All));
        assert_eq!(parse_levels("mild"), Ok(LevelChoice::One(Level::Mild)));
        assert_eq!(parse_levels("q8"), Ok(LevelChoice::One(Level::Moderate)));
        let problem = parse_levels("every").unwrap_err();
        assert!(
            problem.contains("moderate") && problem.contains("`all`"),
            "{problem}"
        );
    }

    #[test]
    fn a_budget_is_an_amount_or_the_default() {
        assert_eq!(parse_budget("default"), Ok(Budget::Default));
        assert_eq!(parse_budget("4GiB"), Ok(Budget::Bytes(4 << 30)));
        let problem = parse_budget("much").unwrap_err();
        assert!(
            problem.contains("4GiB") && problem.contains("`default`"),
            "{problem}"
        );
    }
}
