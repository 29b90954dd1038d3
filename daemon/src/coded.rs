//! `sluiced compress`, `decompress`, `verify` and `inspect`: checkpoints in one coded file. No daemon is started.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{PathBufValueParser, TypedValueParser},
};
use sluice_checkpoint::{
    CheckpointError, Source,
    coded::{self, CompressError, Compression, Glob},
};
use sluice_proto::{
    model::How,
    v1::{JobKind, job_result::Kind},
};
use sluice_report::coded as report;
use sluice_shared::{
    coding::{
        Coder, DAMAGED_HINT, TILE_DEFAULT, coded_file, parse_bits, parse_pattern, parse_tile,
    },
    exit,
};

use crate::{
    config::Threads,
    jobs::coding::{how, kept},
    offline::{ProgressLine, SystemError, print, until_signalled},
    translate::coded as wire,
};

/// What `sluiced compress` was asked for.
#[derive(Debug, Args)]
pub struct Compress {
    /// Checkpoint: a Hugging Face folder, or a .safetensors file in one
    #[arg(value_name = "DIR|FILE")]
    source: PathBuf,

    /// File to write, such as llada-8b.sluice
    #[arg(long, short, value_name = "FILE.sluice", value_parser = PathBufValueParser::new().try_map(coded_file))]
    output: PathBuf,

    /// Keep every number as it is, bit for bit; this is what happens anyway
    #[arg(long)]
    lossless: bool,

    /// Bits that a number takes, on average, from 1.5 to 6; the head and embeddings stay without loss
    #[arg(long, value_name = "B", value_parser = parse_bits, conflicts_with_all = ["lossless", "coder"])]
    bits: Option<f64>,

    /// huffman takes the least space, palette is decoded the fastest
    #[arg(long, value_name = "NAME", default_value_t = Coder::Huffman)]
    coder: Coder,

    /// Numbers that are coded together, and can be decoded alone: 128, 256 or 512
    #[arg(long, value_name = "N", value_parser = parse_tile, default_value_t = TILE_DEFAULT)]
    tile: u32,

    /// Tensors to leave as they are, by name, with * for any letters; may be given several times
    #[arg(long, value_name = "GLOB", value_parser = parse_pattern)]
    keep: Vec<String>,

    /// Code embeddings, too, whose single rows are read from the file otherwise; with --bits, the head as well
    #[arg(long)]
    all: bool,

    /// Replace the file if it exists
    #[arg(long)]
    force: bool,

    /// Threads that code [default: one a core]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,
}

/// What `sluiced decompress` was asked for.
#[derive(Debug, Args)]
pub struct Decompress {
    /// Coded file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Folder to write; it must not exist, or be empty
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,

    /// Threads that decode [default: one a core]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,
}

/// What `sluiced verify` was asked for.
#[derive(Debug, Args)]
pub struct Verify {
    /// Coded file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// What `sluiced inspect` was asked for.
#[derive(Debug, Args)]
pub struct Inspect {
    /// Coded file
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
fn code(result: Result<(), Failure>) -> u8 {
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
fn tell(path: &str, result: &Kind, line: &ProgressLine) -> Result<(), Failure> {
    for notice in report::notices(result) {
        eprintln!("{notice}");
    }
    let said = report::outcome(path, result, line.elapsed_ms());
    println!("{}", said.map_err(Failure::Damaged)?);
    Ok(())
}

/// Makes a coded file, and returns the exit code.
#[must_use]
pub fn compress(options: &Compress) -> u8 {
    code(options.run())
}

impl Compress {
    fn run(&self) -> Result<(), Failure> {
        let source = std::path::absolute(&self.source).map_err(|cause| {
            CompressError::from(CheckpointError::Io {
                path: self.source.clone(),
                cause,
            })
        })?;
        let compression = Compression {
            how: how(self.bits.map_or(How::Lossless(self.coder), How::Bits)),
            tile: self.tile as usize,
            keep: self.keep.iter().map(|pattern| Glob::new(pattern)).collect(),
            all: self.all,
            threads: self.threads.map_or(0, Threads::get),
            replace: self.force,
        };
        let mut line = ProgressLine::new(report::verb(JobKind::Compress));
        let result = until_signalled(|cancel| {
            let source = Source::Folder(source);
            coded::compress(
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
            && let Some(kept) = kept(error, &self.output)
        {
            let kept = kept.display();
            eprintln!("what is done is kept in {kept}; the same command goes on with it");
        }
        let made = Kind::Compressed(wire::compressed(&made?));
        tell(&self.output.display().to_string(), &made, &line)
    }
}

/// Makes a folder, and returns the exit code.
#[must_use]
pub fn decompress(options: &Decompress) -> u8 {
    code(options.run())
}

impl Decompress {
    fn run(&self) -> Result<(), Failure> {
        let container = coded::open(&self.file)?;
        let threads = self.threads.map_or(0, Threads::get);
        let mut line = ProgressLine::new(report::verb(JobKind::Decompress));
        let result = until_signalled(|cancel| {
            coded::decompress(
                &container,
                &self.output,
                threads,
                cancel,
                &mut |_, amount| line.show(amount.done_bytes, amount.total_bytes),
            )
        });
        line.clear();
        let made = Kind::Decompressed(wire::decompressed(&result??));
        tell(&self.output.display().to_string(), &made, &line)
    }
}

/// Compares a file with its checksums, and returns the exit code.
#[must_use]
pub fn verify(options: &Verify) -> u8 {
    code(options.run())
}

impl Verify {
    fn run(&self) -> Result<(), Failure> {
        let container = coded::open(&self.file)?;
        let mut line = ProgressLine::new(report::verb(JobKind::Verify));
        let result = until_signalled(|cancel| {
            coded::verify(&container, cancel, &mut |_, amount| {
                line.show(amount.done_bytes, amount.total_bytes);
            })
        });
        line.clear();
        let found = Kind::Verified(wire::verified(&container, &result??));
        tell(container.path(), &found, &line)
    }
}

/// Shows what a file has, and returns the exit code.
#[must_use]
pub fn inspect(options: &Inspect) -> u8 {
    code(options.run())
}

impl Inspect {
    fn run(&self) -> Result<(), Failure> {
        let container = coded::open(&self.file)?;
        let contents = wire::contents(&container);
        let text = match self.json {
            true => format!("{:#}", report::json(&contents)),
            false => report::lines(&contents).join("\n"),
        };
        Ok(print(&(text + "\n"))?)
    }
}
