//! The commands that ask for plans, put them in force and measure them.

use std::path::PathBuf;

use clap::{Arg, Args, builder::Resettable};
use sluice_shared::{
    level::Level,
    options::{Budget, PlanOptions},
};

use super::help;

/// `sluice plan`.
#[derive(Debug, Args)]
#[command(after_long_help = help::plan(), mut_args(daemon_default))]
pub struct Plan {
    /// A name from `sluice list`, or a checkpoint's folder, .gguf or .sluice file; only its headers are read.
    /// Several: how they share the budget, loaded one after another. Without it and without --shape: the present model
    #[arg(value_name = "NAME|DIR", conflicts_with_all = ["shape", "model_flag"])]
    pub model: Vec<PathBuf>,

    /// The same as a flag
    #[arg(
        long = "model",
        id = "model_flag",
        value_name = "NAME|DIR",
        conflicts_with = "shape",
        hide_short_help = true
    )]
    pub model_flag: Vec<PathBuf>,
    /// A published shape, such as llada-8b; needs no weights. May be repeated
    #[arg(long, value_name = "NAME")]
    pub shape: Vec<String>,
    /// All published shapes, one in a line: whether each fits, at which level, how quick it is, and its licence. For this
    /// machine; no daemon is asked
    #[arg(long, conflicts_with_all = ["model", "model_flag", "shape"])]
    pub all: bool,
    /// What the plan is made from.
    #[command(flatten)]
    pub options: PlanOptions,
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

/// An option of a plan that a daemon makes: its settings hold where it is left out.
pub(super) fn daemon_default(arg: Arg) -> Arg {
    PlanOptions::with_default(arg, |_| "the daemon's".to_owned())
}

/// The level without its flag.
fn positional(level: Arg) -> Arg {
    level.long(Resettable::Reset).required(true)
}

/// `sluice level`.
#[derive(Debug, Args)]
#[command(after_long_help = help::level())]
#[command(mut_arg("level", positional), mut_args(daemon_default))]
pub struct SetLevel {
    /// The level, and what else is to change.
    #[command(flatten)]
    pub options: PlanOptions,
    /// Loaded model to change, as `sluice ps` names it [default: the present one]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Print each picture of the operation as a JSON object on its own line; the last has the result
    #[arg(long)]
    pub json: bool,
}

/// `sluice budget`.
#[derive(Debug, Args)]
#[command(after_long_help = help::BUDGET)]
pub struct SetBudget {
    /// Device memory budget, such as 4GiB; `default` is the memory that was free when the daemon started,
    /// less a margin
    #[arg(value_name = "BYTES|default")]
    pub budget: Budget,
    /// Loaded model to change, as `sluice ps` names it [default: the present one]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Print each picture of the operation as a JSON object on its own line; the last has the result
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
    /// Loaded model to change, as `sluice ps` names it [default: the present one]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Print each picture of the operation as a JSON object on its own line; the last has the result
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

fn parse_levels(text: &str) -> Result<LevelChoice, String> {
    if text == "all" {
        return Ok(LevelChoice::All);
    }
    text.parse()
        .map(LevelChoice::One)
        .map_err(|problem: String| format!("{problem}, or `all`"))
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
}
