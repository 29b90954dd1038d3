//! The commands for coded files, and for jobs.

use std::path::PathBuf;

use clap::{
    Args, Subcommand,
    builder::{PathBufValueParser, TypedValueParser},
    value_parser,
};
use sluice_shared::coding::{Coder, coded_file, parse_bits, parse_pattern, parse_tile};

use super::{help, parse_id};

/// `sluice compress`.
#[derive(Debug, Args)]
#[command(after_long_help = help::COMPRESS)]
pub struct Compress {
    /// A checkpoint's folder, or a .safetensors file in one; or a model as `sluice list` calls it
    #[arg(value_name = "DIR|NAME")]
    pub model: PathBuf,
    /// File to write, whose name ends in .sluice
    #[arg(long, short, value_name = "FILE.sluice", value_parser = PathBufValueParser::new().try_map(coded_file))]
    pub output: PathBuf,
    /// Keep every number as it is, bit for bit; this is what happens anyway
    #[arg(long)]
    pub lossless: bool,
    /// Bits that a number takes, on average, from 1.5 to 6; the head and embeddings stay without loss
    #[arg(long, value_name = "B", value_parser = parse_bits, conflicts_with_all = ["lossless", "coder"])]
    pub bits: Option<f64>,
    /// huffman takes the least space, palette is decoded the fastest [default: huffman]
    #[arg(long, value_name = "NAME")]
    pub coder: Option<Coder>,
    /// Numbers that are coded together, and can be decoded alone: 128, 256 or 512 [default: 512]
    #[arg(long, value_name = "N", value_parser = parse_tile)]
    pub tile: Option<u32>,
    /// Tensors to leave as they are, by name, with * for any letters; may be given several times
    #[arg(long, value_name = "GLOB", value_parser = parse_pattern)]
    pub keep: Vec<String>,
    /// Code embeddings, too, whose single rows are read from the file otherwise; with --bits, the head as well
    #[arg(long)]
    pub all: bool,
    /// Threads that code [default: half as many as the daemon's machine has cores]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// How to follow it.
    #[command(flatten)]
    pub following: Following,
}

/// `sluice decompress`.
#[derive(Debug, Args)]
#[command(after_long_help = help::DECOMPRESS)]
pub struct Decompress {
    /// Coded file
    pub file: PathBuf,
    /// Folder to write; it must not exist, or be empty
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Threads that decode [default: half as many as the daemon's machine has cores]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// How to follow it.
    #[command(flatten)]
    pub following: Following,
}

/// `sluice verify`.
#[derive(Debug, Args)]
#[command(after_long_help = help::VERIFY)]
pub struct Verify {
    /// Coded file
    pub file: PathBuf,
    /// How to follow it.
    #[command(flatten)]
    pub following: Following,
}

/// How a job is followed.
#[derive(Debug, Args)]
pub struct Following {
    /// Leave the job to the daemon as soon as it has begun
    #[arg(long)]
    pub detach: bool,
    /// Print each event as a JSON object on its own line; the last is "result"
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
    /// Follows a job, whoever began it
    Watch {
        /// The job, as `sluice jobs` numbers it
        #[arg(value_parser = parse_job_id)]
        id: u64,
        /// Print each event as a JSON object on its own line; the last is "result"
        #[arg(long)]
        json: bool,
    },
    /// Stops a job, and tells what is left of it
    Cancel {
        /// The job, as `sluice jobs` numbers it
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
