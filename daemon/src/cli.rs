//! The command line.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use sluice_report::renamed_flags;
use sluice_shared::exit;

use crate::{
    check::Checking,
    compression::{Compress, Decompress, Inspect, Prune, Verify},
    config::{Config, ConfigArguments, ConfigError, Environment, Flags},
    examine::Doctor,
    manual::Manual,
    planning::Planning,
    synth::Synth,
};

/// Keeps a language model loaded and serves generation over gRPC.
///
/// Settings come from defaults, a TOML file, SLUICE_* variables and flags; each gives way
/// to the next. `--print-config` shows what came from where.
#[derive(Debug, Default, Parser)]
#[command(
    name = "sluiced",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
pub struct Arguments {
    /// A command that needs no daemon; without one, the daemon serves
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Configuration file [default: $XDG_CONFIG_HOME/sluice/sluiced.toml, else /etc/sluice/sluiced.toml, where they exist]
    /// [env: SLUICE_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// What is said of the settings.
    #[command(flatten)]
    pub settings: Flags,

    /// Run in the background, as `sluice run` starts it: in its own session, so that it outlives the terminal; without a
    /// model until one is requested; unload the model after 15 minutes without requests unless configured otherwise; write
    /// the log to FILE, up to 4 MiB, and rotate it to FILE.old
    #[arg(long, value_name = "FILE", hide = true, conflicts_with_all = ["print_config", "check_config"])]
    pub background: Option<PathBuf>,

    /// Print the configuration in force, with the source of each key, and exit
    #[arg(long, conflicts_with = "check_config")]
    print_config: bool,

    /// Check the configuration and exit
    #[arg(long)]
    check_config: bool,
}

/// Work that needs no daemon.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show which weights the plan keeps on the device, the host and the disk, with the memory and the time of a pass
    ///
    /// Nothing is loaded. Only a checkpoint's headers are read, and a published shape needs no file. The
    /// machine's speed is measured for a moment.
    Plan(Planning),

    /// Write a checkpoint with random weights, to test a model's size without downloading it
    ///
    /// The shape is that of a published model, or of a LLaDA model of any size. The checkpoint has no
    /// tokenizer: prompts are token ids.
    #[command(
        override_usage = "sluiced synth [OPTIONS] --shape <NAME> <DIR>\n       \
        sluiced synth [OPTIONS] --layers <N> --hidden-size <N> --attention-heads <N> --intermediate-size <N> --vocab-size <N> <DIR>"
    )]
    Synth(Synth),

    /// Compress a checkpoint into one .sluice file, losslessly by default
    ///
    /// The file holds the whole model: weights, configuration and tokenizer. Run the same command again to
    /// resume an interrupted run.
    Compress(Compress),

    /// Decompress a .sluice file into the checkpoint's folder, byte for byte
    Decompress(Decompress),

    /// Verify the checksums of a .sluice file, tile by tile
    Verify(Verify),

    /// Write a smaller model, without some attention heads and feed-forward channels, into one .sluice file
    ///
    /// Rows and columns of what is removed are gone from the weights. Run the same command again to resume an
    /// interrupted run.
    Prune(Prune),

    /// List the contents of a .sluice file
    Inspect(Inspect),

    /// Examine the machine as a daemon of this user would find it: configuration, GPU, memory, folders, disk; and say what to do
    ///
    /// `sluice doctor` does the same, and looks at the daemon that runs. The exit code is 1 if something does not work.
    Doctor(Doctor),

    /// Write the manual pages of sluiced, its commands and sluiced.toml into a folder
    Man(Manual),

    /// Compare what a device computes with what reference implementations do
    ///
    /// Each case of each fixture is told as equal or as differing, and how; what this program doesn't know, a sampler or a
    /// model, as unknown. The exit code is 0 where something was compared and all of that is equal, else 1.
    Check(Checking),
}

/// What the daemon was started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Listen and serve.
    Serve,
    /// Show the configuration.
    PrintConfig,
    /// Check the configuration.
    CheckConfig,
}

impl Arguments {
    /// The configuration that these arguments lead to in this environment.
    ///
    /// # Errors
    /// What is wrong and where it was said.
    pub fn resolve(&self, environment: &Environment) -> Result<Config, ConfigError> {
        self.of_config().resolve(environment)
    }

    /// What they say of the configuration.
    #[must_use]
    pub fn of_config(&self) -> ConfigArguments {
        ConfigArguments {
            flags: self.settings.clone(),
            file: self.config.clone(),
            in_background: self.background.is_some(),
        }
    }

    /// Reads the command line. Help and version are printed here.
    ///
    /// # Errors
    /// The exit code, after the usage error (or the help) was printed.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, ExitCode> {
        let arguments: Vec<_> = arguments.into_iter().collect();
        Self::try_parse_from(&arguments).map_err(|error| {
            let error = renamed_flags::with_tip(error, &Self::command(), &arguments);
            // A closed pipe is no reason to fail differently.
            let _ = error.print();
            ExitCode::from(match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => exit::OK,
                _ => exit::USAGE,
            })
        })
    }

    /// What to do.
    #[must_use]
    pub fn task(&self) -> Task {
        if self.print_config {
            Task::PrintConfig
        } else if self.check_config {
            Task::CheckConfig
        } else {
            Task::Serve
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn settings_of_the_daemon_are_no_flags_of_a_subcommand() {
        let line = [
            "sluiced", "--queue", "2", "synth", "--shape", "llada-8b", "x",
        ];
        assert!(Arguments::try_parse_from(line).is_err());
        let line = ["sluiced", "synth", "--shape", "llada-8b", "x"];
        let arguments = Arguments::try_parse_from(line).unwrap();
        assert!(matches!(arguments.command, Some(Command::Synth(_))));
    }

    #[test]
    fn a_number_out_of_range_is_a_usage_error() {
        for wrong in [["--threads", "0"], ["--queue", "0"], ["--threads", "many"]] {
            let line = ["sluiced"].iter().chain(&wrong);
            assert!(Arguments::try_parse_from(line).is_err(), "{wrong:?}");
        }
    }
}
