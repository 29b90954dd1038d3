//! Arguments of the commands for compressed files, and for jobs.

use std::path::PathBuf;

use clap::{
    Args, Subcommand,
    builder::{PathBufValueParser, TypedValueParser},
    value_parser,
};
use sluice_shared::{
    compression::{
        Coder, check_container_path, check_tensor_pattern, parse_bits_per_weight,
        parse_tile_elements,
    },
    mix::MixId,
    pruning::{PruneScore, parse_share},
    units,
};

use super::{help, parse_id};

/// `sluice compress`.
#[derive(Debug, Args)]
#[command(after_long_help = help::COMPRESS)]
pub struct Compress {
    /// A checkpoint's folder, a .safetensors file in one, or a name from `sluice list`
    #[arg(value_name = "DIR|NAME")]
    pub model: PathBuf,
    /// File to write; its name must end in .sluice
    #[arg(long, short, value_name = "FILE.sluice", value_parser = PathBufValueParser::new().try_map(check_container_path))]
    pub output: PathBuf,
    /// Compress losslessly (the default)
    #[arg(long)]
    pub lossless: bool,
    /// Trellis-quantize (TCQ) to this many bits per weight on average, 1.5 to 6; the LM head and embeddings stay lossless
    #[arg(long, value_name = "B", value_parser = parse_bits_per_weight, conflicts_with_all = ["lossless", "coder"])]
    pub bits: Option<f64>,
    /// Take the weights of this mix, which `sluice optimize` made of the model; all others losslessly
    #[arg(long, value_name = "MIX", conflicts_with_all = ["lossless", "coder", "bits"])]
    pub mix: Option<MixId>,
    /// Lossless coder: huffman (smallest file) or dictionary (fastest to decompress) [default: huffman]
    #[arg(long, value_name = "NAME")]
    pub coder: Option<Coder>,
    /// Elements of a tile, which is compressed as a unit and can be decompressed alone: 128, 256 or 512 [default: 512]
    #[arg(long, value_name = "N", value_parser = parse_tile_elements)]
    pub tile: Option<u32>,
    /// Tensors to leave uncompressed, by name; * matches any characters; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = check_tensor_pattern)]
    pub keep: Vec<String>,
    /// The only tensors to compress, by name, such as '*.mlp.*'; all others stay as they are; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = check_tensor_pattern)]
    pub only: Vec<String>,
    /// Leave tensors smaller than this uncompressed, such as 4MiB [default: those of fewer than 65,536 elements]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub min_size: Option<u64>,
    /// Compress the embedding as well, whose rows are read one by one from the file otherwise; with --bits, the LM head too
    #[arg(long)]
    pub all: bool,
    /// Threads for compression [default: half of the cores of the daemon's machine]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// How to follow it.
    #[command(flatten)]
    pub following: FollowArgs,
}

/// `sluice prune`.
#[derive(Debug, Args)]
#[command(after_long_help = help::PRUNE)]
pub struct Prune {
    /// A checkpoint's folder, a .safetensors or losslessly compressed .sluice file, or a name from `sluice list`
    #[arg(value_name = "DIR|FILE|NAME")]
    pub model: PathBuf,
    /// File to write; its name must end in .sluice
    #[arg(long, short, value_name = "FILE.sluice", value_parser = PathBufValueParser::new().try_map(check_container_path))]
    pub output: PathBuf,
    /// Share of the attention heads to remove, such as 0.2: KV heads of all layers, with their query heads
    #[arg(long, value_name = "SHARE", value_parser = parse_share, required_unless_present = "channels")]
    pub heads: Option<f64>,
    /// Share of the feed-forward channels to remove from each layer, such as 0.1
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub channels: Option<f64>,
    /// What they are chosen by: l2 (norm of their weights) or magnitude; with a calibration wanda, flap or obs [default: l2]
    #[arg(long, value_name = "NAME")]
    pub score: Option<PruneScore>,
    /// Calibration of this model, for scores by activations and for --compensate
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Fit the weights that stay to make up for those that go
    #[arg(long, requires = "calibration")]
    pub compensate: bool,
    /// Put the pruned model in the loaded one's place; `sluice load` of the original brings that back
    #[arg(long, conflicts_with = "detach")]
    pub load: bool,
    /// Threads [default: half of the cores of the daemon's machine]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// How to follow it.
    #[command(flatten)]
    pub following: FollowArgs,
}

/// `sluice decompress`.
#[derive(Debug, Args)]
#[command(after_long_help = help::DECOMPRESS)]
pub struct Decompress {
    /// A .sluice file
    pub file: PathBuf,
    /// Folder to write; it must not exist, or be empty
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Threads for decompression [default: half of the cores of the daemon's machine]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// How to follow it.
    #[command(flatten)]
    pub following: FollowArgs,
}

/// `sluice verify`.
#[derive(Debug, Args)]
#[command(after_long_help = help::VERIFY)]
pub struct Verify {
    /// A .sluice file
    pub file: PathBuf,
    /// How to follow it.
    #[command(flatten)]
    pub following: FollowArgs,
}

/// How a job is followed.
#[derive(Debug, Args)]
pub struct FollowArgs {
    /// Return as soon as the job has started; the daemon continues it
    #[arg(long)]
    pub detach: bool,
    /// Print each picture of the operation as a JSON object on its own line; the last has the result
    #[arg(long)]
    pub json: bool,
}

/// `sluice jobs`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Jobs {
    /// What to do; they are listed when it is left out.
    #[command(subcommand)]
    pub command: Option<JobsCommand>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What can be done with a job.
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// Watches a job, whoever started it
    Watch {
        /// Number of the job, from `sluice jobs`
        #[arg(value_parser = parse_job_id)]
        id: u64,
        /// Print each picture of the operation as a JSON object on its own line; the last has the result
        #[arg(long)]
        json: bool,
    },
    /// Cancels a job and reports which part of the output remains
    Cancel {
        /// Number of the job, from `sluice jobs`
        #[arg(value_parser = parse_job_id)]
        id: u64,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

fn parse_job_id(text: &str) -> Result<u64, String> {
    parse_id(text, "job", "sluice jobs")
}
