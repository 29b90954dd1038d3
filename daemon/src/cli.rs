//! The command line.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand, error::ErrorKind};
use sluice_shared::{
    dial::Dial,
    exit,
    level::{Embedding, Kv, Level},
};

use crate::{
    coded::{Compress, Decompress, Inspect, Verify},
    config::{
        AutoFactor, Budget, CacheLimit, Compute, Device, Filter, IdleUnload, Listen, PinLimit,
        ReadLimit, limits,
    },
    gpu::Gpu,
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
    /// Work that needs no daemon; without it, the daemon serves
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Checkpoint to serve: a Hugging Face folder, a .safetensors file in one, or a .gguf or .sluice file
    /// [default: the small demonstration model inside this program] [env: SLUICE_MODEL]
    #[arg(long, value_name = "DIR|FILE")]
    pub model: Option<PathBuf>,

    /// Unix socket to listen on [default: /run/sluice/sluice.sock if it exists, else
    /// $XDG_RUNTIME_DIR/sluice/sluice.sock, else a private folder under the temporary one]
    /// [env: SLUICE_SOCKET]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Loopback address to listen on beside the socket, such as 127.0.0.1:50051; port 0 takes any that is free and is printed.
    /// Every user of this machine can connect there, and nothing asks who they are [default: none] [env: SLUICE_LISTEN]
    #[arg(long, value_name = "ADDRESS|none")]
    pub listen: Option<Listen>,

    /// Where to compute: auto (the first NVIDIA card that can be used, else the CPU), cpu, or cuda:N
    /// (that card and nothing else) [default: auto] [env: SLUICE_DEVICE]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<Device>,

    /// What a card computes in: f32, f16, bf16, or auto (bf16 where the card has it, else f16); sums
    /// are f32 [default: auto] [env: SLUICE_COMPUTE]
    #[arg(long, value_name = "NUMBER")]
    pub compute: Option<Compute>,

    /// Configuration file [default: $XDG_CONFIG_HOME/sluice/sluiced.toml, else
    /// /etc/sluice/sluiced.toml, where they exist] [env: SLUICE_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Threads that compute [default: one a core] [env: SLUICE_THREADS]
    #[arg(long, value_name = "N", value_parser = limits::threads)]
    pub threads: Option<usize>,

    /// How faithful weights are: off, standard, mild, moderate, aggressive or auto
    /// [default: standard] [env: SLUICE_LEVEL]
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<Level>,

    /// Most memory to use, such as 4GiB; what has no room is streamed [default: what is free, less
    /// a margin] [env: SLUICE_BUDGET]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    pub budget: Option<Budget>,

    /// Most bytes a second that passes read of streamed weights, such as 500MB/s, or none: others need the disk
    /// [default: none] [env: SLUICE_READ_LIMIT]
    #[arg(long, value_name = "RATE|none", allow_negative_numbers = true)]
    pub read_limit: Option<ReadLimit>,

    /// Most memory of the host that is pinned for a card to copy streamed weights from, such as 16GiB; no other program
    /// gets it [default: auto, half of it at most] [env: SLUICE_PIN_LIMIT]
    #[arg(long, value_name = "BYTES|auto", allow_negative_numbers = true)]
    pub pin_limit: Option<PinLimit>,

    /// Where the embedding's rows are: host, device, or auto for the host at all levels but off
    /// [default: auto] [env: SLUICE_EMBEDDING]
    #[arg(long, value_name = "PLACE")]
    pub embedding: Option<Embedding>,

    /// How much longer than the fastest level's a pass may take at level auto, for fidelity's sake
    /// [default: 1.5] [env: SLUICE_AUTO_FACTOR]
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    pub auto_factor: Option<AutoFactor>,

    /// How a causal model's keys and values are kept: f32, bf16, q8_0, or auto for bf16, on a card for what it computes
    /// in [default: auto] [env: SLUICE_KV]
    #[arg(long, value_name = "FORMAT")]
    pub kv: Option<Kv>,

    /// How much of the reference requests give up for speed that say nothing of it: exact, quality, balanced,
    /// fast or auto; `sluice generate --help` tells what each stands for [default: exact] [env: SLUICE_DIAL]
    #[arg(long, value_name = "DIAL")]
    pub dial: Option<Dial>,

    /// Folder for converted weights, which later switches and loads read, and streaming at some levels
    /// [default: $CACHE_DIRECTORY, else $XDG_CACHE_HOME/sluice, else ~/.cache/sluice]
    /// [env: SLUICE_CACHE]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// Keep all weights that a level converts, so that the next switch or load reads them; with false only
    /// what is streamed is written [default: true where there is a folder] [env: SLUICE_KEEP_CONVERTED]
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub keep_converted: Option<bool>,

    /// Most bytes that converted weights take, such as 32GiB, or none for no limit: the least recently used
    /// go when there are more, but never one in use [default: 32GiB] [env: SLUICE_CACHE_LIMIT]
    #[arg(long, value_name = "BYTES|none", allow_negative_numbers = true)]
    pub cache_limit: Option<CacheLimit>,

    /// Folder that models are downloaded into [default: models below $STATE_DIRECTORY, else below
    /// $XDG_DATA_HOME/sluice, else below ~/.local/share/sluice] [env: SLUICE_MODELS]
    #[arg(long, value_name = "DIR")]
    pub models: Option<PathBuf>,

    /// Let the model go after so long without requests, such as 15m; the next request loads it again
    /// [default: never] [env: SLUICE_IDLE_UNLOAD]
    #[arg(long, value_name = "TIME|never", allow_negative_numbers = true)]
    pub idle_unload: Option<IdleUnload>,

    /// Requests that may wait while others run [default: 16] [env: SLUICE_QUEUE]
    #[arg(long, value_name = "N", value_parser = limits::queue)]
    pub queue: Option<usize>,

    /// Requests that share a pass over the weights, at most; each that joins takes memory for its canvas
    /// [default: 4] [env: SLUICE_PARALLEL]
    #[arg(long, value_name = "N", value_parser = limits::parallel)]
    pub parallel: Option<usize>,

    /// Seconds that running requests get to finish on shutdown [default: 10]
    /// [env: SLUICE_DRAIN_SECONDS]
    #[arg(long, value_name = "N", value_parser = limits::drain_seconds)]
    pub drain_seconds: Option<u64>,

    /// What to log, as a tracing filter such as `info` or `sluice_daemon=debug`
    /// [default: info] [env: SLUICE_LOG]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<Filter>,

    /// As `sluice run` starts it: in a session of its own, so that it outlives the terminal; without a model until one is
    /// asked for; the model goes after 15 minutes without requests where nobody says otherwise; FILE takes the log, up to
    /// 4 MiB, and FILE.old what was before
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
    /// Show what would live where, how much memory that takes and how long a pass would be
    ///
    /// Nothing is loaded: of a checkpoint the headers are read, a published shape needs no file at
    /// all. How fast this machine is is measured for a moment.
    Plan(Planning),

    /// Write a checkpoint of random weights, to try a model's size without downloading it
    ///
    /// The shape is a published model's, or a LLaDA model's of any size. There is no tokenizer:
    /// prompts are given as token ids.
    #[command(
        override_usage = "sluiced synth [OPTIONS] --preset <NAME> <DIR>\n       \
        sluiced synth [OPTIONS] --layers <N> --width <N> --heads <N> --mlp-width <N> --vocabulary <N> <DIR>"
    )]
    Synth(Synth),

    /// Make one coded file of a checkpoint: the same numbers in less space
    ///
    /// Everything that belongs to the model goes along, so that the file is the model. A run that is
    /// interrupted goes on where it was when the same command is given again.
    Compress(Compress),

    /// Make a coded file into the checkpoint's folder again, byte by byte
    Decompress(Decompress),

    /// Compare a coded file with its checksums, down to the tile
    Verify(Verify),

    /// Show what a coded file has in it
    Inspect(Inspect),

    /// Check an NVIDIA card's arithmetic, or time it
    #[command(subcommand)]
    Gpu(Gpu),
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
    /// Reads the command line. Help and version are printed here.
    ///
    /// # Errors
    /// The exit code, after the usage error (or the help) was printed.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, ExitCode> {
        Self::try_parse_from(arguments).map_err(|error| {
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
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn settings_of_the_daemon_are_no_flags_of_a_subcommand() {
        let line = [
            "sluiced", "--queue", "2", "synth", "--preset", "llada-8b", "x",
        ];
        assert!(Arguments::try_parse_from(line).is_err());
        let line = ["sluiced", "synth", "--preset", "llada-8b", "x"];
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
