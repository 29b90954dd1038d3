//! `sluiced compress`, `prune`, `decompress`, `verify` and `inspect`: checkpoints in one coded file. No daemon is started.

mod prune;

use std::path::PathBuf;

use clap::{
    Args,
    builder::{PathBufValueParser, TypedValueParser},
};
use sluice_checkpoint::{
    CheckpointError, Source,
    compression::{self, CompressError, CompressOptions},
};
use sluice_proto::{
    model::CompressionMethod,
    v1::{OperationKind, operation::Outcome},
};
use sluice_report::container as report;
use sluice_shared::{
    compression::{
        Coder, DAMAGED_HINT, TILE_ELEMENTS_DEFAULT, check_container_path, check_tensor_pattern,
        parse_bits_per_weight, parse_tile_elements,
    },
    exit, units,
};

pub use self::prune::{Prune, prune};
use crate::{
    config::Threads,
    offline::{ProgressLine, SystemError, print, until_signalled},
    operations::files::{compression_method, partial_path, tensor_filter},
    translate::container as wire,
};

/// What `sluiced compress` was asked for.
#[derive(Debug, Args)]
pub struct Compress {
    /// Checkpoint: a Hugging Face folder, or a .safetensors file in one
    #[arg(value_name = "DIR|FILE")]
    source: PathBuf,

    /// File to write, such as llada-8b.sluice
    #[arg(long, short, value_name = "FILE.sluice", value_parser = PathBufValueParser::new().try_map(check_container_path))]
    output: PathBuf,

    /// Compress losslessly (the default)
    #[arg(long)]
    lossless: bool,

    /// Trellis-quantize (TCQ) to this many bits per weight on average, 1.5 to 6; the LM head and embeddings stay lossless
    #[arg(long, value_name = "B", value_parser = parse_bits_per_weight, conflicts_with_all = ["lossless", "coder"])]
    bits: Option<f64>,

    /// Lossless coder: huffman (smallest file) or dictionary (fastest to decompress)
    #[arg(long, value_name = "NAME", default_value_t = Coder::Huffman)]
    coder: Coder,

    /// Elements of a tile, which is compressed as a unit and can be decompressed alone: 128, 256 or 512
    #[arg(long, value_name = "N", value_parser = parse_tile_elements, default_value_t = TILE_ELEMENTS_DEFAULT)]
    tile: u32,

    /// Tensors to leave uncompressed, by name; * matches any characters; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = check_tensor_pattern)]
    keep: Vec<String>,

    /// The only tensors to compress, by name, such as '*.mlp.*'; all others stay as they are; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = check_tensor_pattern)]
    only: Vec<String>,

    /// Leave tensors smaller than this uncompressed, such as 4MiB [default: those of fewer than 65,536 elements]
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    min_size: Option<u64>,

    /// Compress the embedding as well, whose rows are read one by one from the file otherwise; with --bits, the LM head too
    #[arg(long)]
    all: bool,

    /// Replace the file if it exists
    #[arg(long)]
    force: bool,

    /// Threads for compression [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,
}

/// What `sluiced decompress` was asked for.
#[derive(Debug, Args)]
pub struct Decompress {
    /// A .sluice file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Folder to write; it must not exist, or be empty
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,

    /// Threads for decompression [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,
}

/// What `sluiced verify` was asked for.
#[derive(Debug, Args)]
pub struct Verify {
    /// A .sluice file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// What `sluiced inspect` was asked for.
#[derive(Debug, Args)]
pub struct Inspect {
    /// A .sluice file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    System(#[from] SystemError),
    #[error(transparent)]
    Work(#[from] CompressError),
    /// Each place was told already.
    #[error("{0}")]
    Damaged(String),
}

impl Failure {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::System(_) => None,
            Self::Work(error) => error.hint(),
            Self::Damaged(_) => Some(DAMAGED_HINT),
        }
    }
}

/// The exit code of a command.
fn exit_code(result: Result<(), Failure>) -> u8 {
    let Err(failure) = result else {
        return exit::OK;
    };
    eprintln!("sluiced: {failure}");
    if let Some(hint) = failure.hint() {
        eprintln!("hint: {hint}");
    }
    exit::FAILURE
}

/// What came of it, as of a job that a daemon did.
fn report_outcome(path: &str, result: &Outcome, line: &ProgressLine) -> Result<(), Failure> {
    for notice in report::notices(result) {
        eprintln!("{notice}");
    }
    let said = report::outcome(path, result, line.elapsed_ms());
    println!("{}", said.map_err(Failure::Damaged)?);
    Ok(())
}

/// Makes a compressed file, and returns the exit code.
#[must_use]
pub fn compress(options: &Compress) -> u8 {
    exit_code(options.run())
}

impl Compress {
    fn run(&self) -> Result<(), Failure> {
        let source = std::path::absolute(&self.source).map_err(|cause| {
            CompressError::from(CheckpointError::Io {
                path: self.source.clone(),
                cause,
            })
        })?;
        let compression = CompressOptions {
            method: compression_method(self.bits.map_or(
                CompressionMethod::Lossless(self.coder),
                CompressionMethod::BitsPerWeight,
            )),
            tile: self.tile as usize,
            tensors: tensor_filter(&self.keep, &self.only, self.min_size.unwrap_or_default()),
            all: self.all,
            threads: self.threads.map_or(0, Threads::get),
            replace: self.force,
        };
        let mut line = ProgressLine::new(report::verb(OperationKind::Compress));
        let result = until_signalled(|cancel| {
            let source = Source::Folder(source);
            compression::compress(
                &source,
                &self.output,
                &compression,
                cancel,
                &mut |_, amount| line.show(amount.done_bytes, amount.total_bytes),
            )
        });
        line.clear();
        let made = result?;
        if let Err(error) = &made
            && let Some(kept) = partial_path(error, &self.output)
        {
            let kept = kept.display();
            eprintln!("the finished part is kept in {kept}; run the same command again to resume");
        }
        let made = Outcome::Compress(wire::compress_result(&made?));
        report_outcome(&self.output.display().to_string(), &made, &line)
    }
}

/// Makes a folder, and returns the exit code.
#[must_use]
pub fn decompress(options: &Decompress) -> u8 {
    exit_code(options.run())
}

impl Decompress {
    fn run(&self) -> Result<(), Failure> {
        let container = compression::open(&self.file)?;
        let threads = self.threads.map_or(0, Threads::get);
        let mut line = ProgressLine::new(report::verb(OperationKind::Decompress));
        let result = until_signalled(|cancel| {
            compression::decompress(
                &container,
                &self.output,
                threads,
                cancel,
                &mut |_, amount| line.show(amount.done_bytes, amount.total_bytes),
            )
        });
        line.clear();
        let made = Outcome::Decompress(wire::decompress_result(&result??));
        report_outcome(&self.output.display().to_string(), &made, &line)
    }
}

/// Compares a file with its checksums, and returns the exit code.
#[must_use]
pub fn verify(options: &Verify) -> u8 {
    exit_code(options.run())
}

impl Verify {
    fn run(&self) -> Result<(), Failure> {
        let container = compression::open(&self.file)?;
        let mut line = ProgressLine::new(report::verb(OperationKind::Verify));
        let result = until_signalled(|cancel| {
            compression::verify(&container, cancel, &mut |_, amount| {
                line.show(amount.done_bytes, amount.total_bytes);
            })
        });
        line.clear();
        let found = Outcome::Verify(wire::verify_result(&container, &result??));
        report_outcome(container.path(), &found, &line)
    }
}

/// Shows what a file has, and returns the exit code.
#[must_use]
pub fn inspect(options: &Inspect) -> u8 {
    exit_code(options.run())
}

impl Inspect {
    fn run(&self) -> Result<(), Failure> {
        let container = compression::open(&self.file)?;
        let contents = wire::contents(&container);
        let text = match self.json {
            true => format!("{:#}", report::json(&contents)),
            false => report::lines(&contents).join("\n"),
        };
        Ok(print(&(text + "\n"))?)
    }
}
