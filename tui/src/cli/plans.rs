//! The commands that ask for plans, put them in force and measure them.

use std::{fmt, path::PathBuf};

use clap::Args;
use sluice_shared::{
    level::{Embedding, Kv, Level, parse_auto_factor},
    settings::Change,
    units,
};

use super::help;

/// `sluice plan`.
#[derive(Debug, Args)]
#[command(after_long_help = help::plan())]
pub struct Plan {
    /// A model as `sluice list` calls it, or a checkpoint's folder, .gguf or .sluice file; only its headers are read.
    /// Left out, and no --preset: the loaded model
    #[arg(value_name = "NAME|DIR", conflicts_with_all = ["preset", "model_flag"])]
    pub model: Option<PathBuf>,
    /// The same as a flag
    #[arg(
        long = "model",
        id = "model_flag",
        value_name = "NAME|DIR",
        conflicts_with = "preset",
        hide_short_help = true
    )]
    pub model_flag: Option<PathBuf>,
    /// A published shape, such as llada-8b; needs no weights
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// How faithful the weights are, and how much memory they may take.
    #[command(flatten)]
    pub wish: Wish,
    /// What may be chosen beside a level.
    #[command(flatten)]
    pub knobs: Knobs,
    /// Positions of a canvas, prompt included [default: 256, or what the context leaves]
    #[arg(long, value_name = "N")]
    pub canvas: Option<u32>,
    /// Requests that share a pass [default: 1]
    #[arg(long, value_name = "N")]
    pub requests: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A level and a budget, either of which may be left as it is.
#[derive(Debug, Default, Args)]
pub struct Wish {
    /// How faithful the weights are: off, standard, mild, moderate, aggressive or auto [default:
    /// the daemon's]
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<Level>,
    /// Most memory of the device, such as 4GiB, or `default` for what was free when the daemon started, less a margin
    /// [default: the daemon's]
    #[arg(long, value_name = "BYTES|default", value_parser = parse_budget)]
    pub budget: Option<Budget>,
}

/// What may be chosen beside a level.
#[derive(Debug, Default, Args)]
pub struct Knobs {
    /// Where the embedding's rows are: host, device, or auto for the host at all levels but off
    /// [default: as it is]
    #[arg(long, value_name = "PLACE")]
    pub embedding: Option<Embedding>,
    /// How much longer than the fastest level's a pass may take at level auto [default: as it is]
    #[arg(long, value_name = "FACTOR", value_parser = parse_auto_factor)]
    pub auto_factor: Option<f64>,
    /// How a causal model's keys and values are kept: f32, bf16, q8_0, or auto for bf16, on a card for what it computes
    /// in [default: as it is]
    #[arg(long, value_name = "FORMAT")]
    pub kv: Option<Kv>,
}

impl Wish {
    /// The change of the daemon's settings that is wished for.
    pub fn change(&self) -> Change {
        Change {
            level: self.level,
            budget_bytes: self.budget.map(Budget::bytes),
            ..Change::default()
        }
    }
}

impl Knobs {
    /// The change of the daemon's settings that is wished for.
    pub fn change(&self) -> Change {
        Change {
            embedding: self.embedding,
            auto_factor: self.auto_factor,
            kv: self.kv,
            ..Change::default()
        }
    }
}

/// `sluice level`.
#[derive(Debug, Args)]
#[command(after_long_help = help::level())]
pub struct SetLevel {
    /// off, standard, mild, moderate, aggressive or auto
    pub level: Level,
    /// Another budget along with it, such as 4GiB, or `default`
    #[arg(long, value_name = "BYTES|default", value_parser = parse_budget)]
    pub budget: Option<Budget>,
    /// What may be chosen beside it.
    #[command(flatten)]
    pub knobs: Knobs,
    /// Print each event as a JSON object on its own line; the last is "applied"
    #[arg(long)]
    pub json: bool,
}

/// `sluice budget`.
#[derive(Debug, Args)]
#[command(after_long_help = help::BUDGET)]
pub struct SetBudget {
    /// Most memory of the device, such as 4GiB; `default` is what was free when the daemon started,
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
    /// What to go back to: `start`, what the daemon was started or the model loaded with (level, budget and all else); or
    /// `source`, the checkpoint's own weights
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
    /// A text of the model's language, of which each line that is not blank is a sample; left out or
    /// `-`: standard input
    pub file: Option<PathBuf>,
    /// The level to measure, or `all` that can be loaded; may be repeated [default: the one in force]
    #[arg(long = "level", value_name = "LEVEL|all", value_parser = parse_levels)]
    pub levels: Vec<Levels>,
    /// Most samples; of more lines, so many are taken, evenly spread [default: 64]
    #[arg(long, value_name = "N")]
    pub samples: Option<u32>,
    /// Seed of the masks [default: drawn by the daemon, and reported]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Measure nothing: list what was measured before, by whichever client
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
pub enum Levels {
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

fn parse_levels(text: &str) -> Result<Levels, String> {
    if text == "all" {
        return Ok(Levels::All);
    }
    text.parse()
        .map(Levels::One)
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
        assert_eq!(parse_levels("all"), Ok(Levels::All));
        assert_eq!(parse_levels("mild"), Ok(Levels::One(Level::Mild)));
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
