//! Arguments of `sluice report`.

use std::path::PathBuf;

use clap::{Args, value_parser};
use sluice_shared::level::Level;

use super::help;

/// `sluice report`.
#[derive(Debug, Args)]
#[command(after_long_help = help::report())]
pub struct Report {
    /// A name from `sluice list`, or a checkpoint's folder, .gguf or .sluice file, to load first [default: the loaded model]
    #[arg(value_name = "NAME|DIR")]
    pub model: Option<PathBuf>,
    /// A text in the model's language for KL, top token and bound; each line that is not blank is a sample; `-` is standard
    /// input [default: a built-in text]
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Levels, a row each [default: all that there are for the model]
    #[arg(long, alias = "level", value_name = "LEVEL,…", value_delimiter = ',', value_parser = parse_level)]
    pub levels: Vec<Level>,
    /// Maximum number of samples; from more lines, evenly spaced ones are used
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = value_parser!(u32).range(1..))]
    pub samples: u32,
    /// Seed of the masks
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Tokens to generate at each level
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(1..))]
    pub length: u32,
    /// Print each level as a JSON object on its own line
    #[arg(long)]
    pub json: bool,
}

/// A level that can be measured: `auto` comes to one of the others.
fn parse_level(text: &str) -> Result<Level, String> {
    match text.parse()? {
        Level::Auto => Err("auto comes to one of the other levels; name these".to_owned()),
        level => Ok(level),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_that_weights_can_be_at() {
        assert_eq!(parse_level("q8"), Ok(Level::Moderate));
        assert!(parse_level("auto").unwrap_err().contains("other levels"));
        assert!(parse_level("all").unwrap_err().contains("known are"));
    }
}
