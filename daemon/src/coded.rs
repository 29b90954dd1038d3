//! `sluiced compress`, `decompress`, `verify` and `inspect`: checkpoints in one coded file. No daemon is started.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::{
    Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use serde_json::{Value, json};
use sluice_engine::checkpoint::{
    CheckpointError, Source,
    coded::{
        self, CompressError, Compression, Container, Glob, How, Lossless, Scheme, Target,
        TensorRecord, partial_of,
    },
};
use sluice_shared::{exit, units};

use crate::{
    config::limits,
    offline::{ProgressLine, SystemError, until_signalled},
};

/// What `sluiced compress` was asked for.
#[derive(Debug, Args)]
pub struct Compress {
    /// Checkpoint: a Hugging Face folder, or a .safetensors file in one
    #[arg(value_name = "DIR|FILE")]
    source: PathBuf,

    /// File to write, such as llada-8b.sluice
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,

    /// Keep every number as it is, bit for bit; this is what happens anyway
    #[arg(long)]
    lossless: bool,

    /// Bits that a number takes, on average, such as 4.5; the head and embeddings stay without loss
    #[arg(long, value_name = "B", value_parser = bits, conflicts_with_all = ["lossless", "coder"])]
    bits: Option<f64>,

    /// huffman takes the least space, palette is decoded the fastest
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Coder::Huffman)]
    coder: Coder,

    /// Numbers that are coded together, and can be decoded alone
    #[arg(long, value_name = "N", value_parser = tiles(), default_value = "256")]
    tile: usize,

    /// Tensors to leave as they are, by name, with * for any letters; may be given several times
    #[arg(long, value_name = "GLOB")]
    keep: Vec<String>,

    /// Code embeddings, too, whose single rows are read from the file otherwise; with --bits, the head as well
    #[arg(long)]
    all: bool,

    /// Replace the file if it exists
    #[arg(long)]
    force: bool,

    /// Threads that code [default: one a core]
    #[arg(long, value_name = "N", value_parser = limits::threads)]
    threads: Option<usize>,
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
    #[arg(long, value_name = "N", value_parser = limits::threads)]
    threads: Option<usize>,
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

/// Names of coders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Coder {
    Huffman,
    Palette,
}

/// Reads a rate.
fn bits(text: &str) -> Result<f64, String> {
    let bits = text.parse().ok().filter(|bits| (1.0..=8.0).contains(bits));
    bits.ok_or_else(|| "it must lie between 1 and 8".to_owned())
}

fn tiles() -> impl TypedValueParser<Value = usize> {
    const NAMES: [&str; 3] = ["128", "256", "512"];
    PossibleValuesParser::new(NAMES).map(|name| name.parse().expect("one of three numbers"))
}

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    System(#[from] SystemError),
    #[error(transparent)]
    Work(#[from] CompressError),
    /// Each was told already.
    #[error("{path} is damaged in {count} {}", if *count == 1 { "place" } else { "places" })]
    Damaged { path: String, count: usize },
}

impl Failure {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::System(_) => None,
            Self::Work(error) => error.hint(),
            Self::Damaged { .. } => {
                Some("make it again from the checkpoint, or copy it again from where it is whole")
            }
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
            how: match (self.bits, self.coder) {
                (Some(bits), _) => How::Rate(Target::Bits(bits)),
                (None, Coder::Huffman) => How::Lossless(Lossless::Huffman),
                (None, Coder::Palette) => How::Lossless(Lossless::Palette),
            },
            tile: self.tile,
            keep: self.keep.iter().map(|pattern| Glob::new(pattern)).collect(),
            all: self.all,
            threads: self.threads.unwrap_or(0),
            replace: self.force,
        };
        let mut line = ProgressLine::new("coding");
        let result = until_signalled(|cancel| {
            let source = Source::Folder(source);
            coded::compress(
                &source,
                &self.output,
                &compression,
                cancel,
                &mut |done, total| {
                    line.show(done, total);
                },
            )
        });
        line.clear();
        let made = result?;
        if matches!(made, Err(CompressError::Cancelled)) {
            let partial = partial_of(&self.output);
            if partial.exists() {
                let partial = partial.display();
                eprintln!("what is done is kept in {partial}; the same command goes on with it");
            }
        }
        let made = made?;
        for name in &made.left_out {
            eprintln!("left out: {name}");
        }
        if made.resumed > 0 {
            let resumed = units::count(made.resumed as u64);
            eprintln!("went on after {resumed} tensors of a run before");
        }
        let loss = match made.error {
            Some(error) => format!(", {:.1} dB", -20.0 * error.log10()),
            None => String::new(),
        };
        println!(
            "{path}: {size}, {percent:.1} % of {original}{loss}, coded in {took}",
            path = self.output.display(),
            size = units::bytes(made.bytes),
            percent = percent(made.bytes, made.original_bytes),
            original = units::bytes(made.original_bytes),
            took = units::duration_ms(line.elapsed().as_secs_f64() * 1000.0),
        );
        Ok(())
    }
}

/// Makes a folder, and returns the exit code.
#[must_use]
pub fn decompress(options: &Decompress) -> u8 {
    code(options.run())
}

impl Decompress {
    fn run(&self) -> Result<(), Failure> {
        let container = open(&self.file)?;
        let threads = self.threads.unwrap_or(0);
        let mut line = ProgressLine::new("writing");
        let result = until_signalled(|cancel| {
            coded::decompress(
                &container,
                &self.output,
                threads,
                cancel,
                &mut |done, total| {
                    line.show(done, total);
                },
            )
        });
        line.clear();
        let made = result??;
        println!(
            "{path}: {size} in {files} files, decoded in {took}",
            path = self.output.display(),
            size = units::bytes(made.original_bytes),
            files = made.files,
            took = units::duration_ms(line.elapsed().as_secs_f64() * 1000.0),
        );
        Ok(())
    }
}

/// Compares a file with its checksums, and returns the exit code.
#[must_use]
pub fn verify(options: &Verify) -> u8 {
    code(options.run())
}

impl Verify {
    fn run(&self) -> Result<(), Failure> {
        let container = open(&self.file)?;
        let bytes = container.header().bytes;
        let mut line = ProgressLine::new("verifying");
        let result =
            until_signalled(|cancel| container.verify(cancel, &mut |done| line.show(done, bytes)));
        line.clear();
        let found = result?.map_err(CompressError::from)?;
        for damage in &found {
            eprintln!("damaged: {damage}");
        }
        if !found.is_empty() {
            return Err(Failure::Damaged {
                path: container.path().to_owned(),
                count: found.len(),
            });
        }
        println!(
            "{path}: {size}, {tensors} tensors, all as they were written",
            path = self.file.display(),
            size = units::bytes(bytes),
            tensors = units::count(container.header().tensors.len() as u64),
        );
        Ok(())
    }
}

/// Shows what a file has, and returns the exit code.
#[must_use]
pub fn inspect(options: &Inspect) -> u8 {
    code(options.run())
}

impl Inspect {
    fn run(&self) -> Result<(), Failure> {
        let container = open(&self.file)?;
        let text = match self.json {
            true => format!("{:#}\n", as_json(&container)),
            false => as_text(&container),
        };
        match io::stdout().write_all(text.as_bytes()) {
            // A reader that has seen enough is no failure.
            Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => Err(SystemError {
                operation: "write",
                cause,
            }
            .into()),
            _ => Ok(()),
        }
    }
}

fn open(file: &Path) -> Result<Container, Failure> {
    Ok(Container::open(file).map_err(CompressError::from)?)
}

/// Tensors' numbers and bytes, added up.
#[derive(Default, Clone, Copy)]
struct Sum {
    tensors: u64,
    numbers: u64,
    bytes: u64,
    original_bytes: u64,
}

impl Sum {
    fn of<'a>(tensors: impl Iterator<Item = &'a TensorRecord>) -> Self {
        tensors.fold(Self::default(), |sum, tensor| Self {
            tensors: sum.tensors + 1,
            numbers: sum
                .numbers
                .saturating_add(tensor.numbers().unwrap_or(0) as u64),
            bytes: sum.bytes.saturating_add(tensor.length),
            original_bytes: sum.original_bytes.saturating_add(tensor.original_bytes()),
        })
    }

    /// Bits a number, and what they were; none of no numbers.
    fn bits(self) -> Option<(f64, f64)> {
        let bits = |bytes: u64| bytes as f64 * 8.0 / self.numbers as f64;
        (self.numbers > 0).then(|| (bits(self.bytes), bits(self.original_bytes)))
    }
}

fn scheme_name(tensor: &TensorRecord) -> &'static str {
    match tensor.scheme() {
        Some(Scheme::Plain) => "plain",
        Some(Scheme::Huffman) => "huffman",
        Some(Scheme::Palette) => "palette",
        Some(Scheme::Rate) => "rate",
        None => "unknown",
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 100.0,
        _ => part as f64 * 100.0 / whole as f64,
    }
}

fn as_text(container: &Container) -> String {
    let header = container.header();
    let all = Sum::of(header.tensors.iter());
    let mut lines = vec![
        format!(
            "{}: {}, {:.1} % of {}",
            container.path(),
            units::bytes(header.bytes),
            percent(header.bytes, all.original_bytes),
            units::bytes(all.original_bytes),
        ),
        format!(
            "source {}, tiles of {} numbers, {} extents, {} files",
            header.source_hash,
            header.tile,
            units::count(header.extents.len() as u64),
            header.files.len(),
        ),
        String::new(),
    ];
    let width = header
        .tensors
        .iter()
        .map(|tensor| tensor.name.chars().count());
    let width = width.max().unwrap_or(0).clamp(6, 60);
    let row = |name: &str, shape: &str, number: &str, scheme: &str, sum: Sum| {
        let bits = match sum.bits() {
            Some((bits, original)) => format!("{bits:>6.2} of {original:>2.0}"),
            None => String::new(),
        };
        format!(
            "{name:<width$}  {shape:>15}  {number:<5} {scheme:<8} {:>9} {bits}",
            units::bytes(sum.bytes)
        )
        .trim_end()
        .to_owned()
    };
    lines.push(format!(
        "{:<width$}  {:>15}  {:<5} {:<8} {:>9} bits a number",
        "tensor", "shape", "", "coded by", "bytes"
    ));
    for tensor in &header.tensors {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        lines.push(row(
            &tensor.name,
            &shape.join(" × "),
            &tensor.number,
            scheme_name(tensor),
            Sum::of([tensor].into_iter()),
        ));
    }
    lines.push(String::new());
    for name in ["plain", "huffman", "palette", "rate"] {
        let sum = Sum::of(header.tensors.iter().filter(|t| scheme_name(t) == name));
        if sum.tensors > 0 {
            let tensors = format!("{} tensors", units::count(sum.tensors));
            lines.push(row(&tensors, "", "", name, sum));
        }
    }
    let tensors = format!("{} tensors", units::count(all.tensors));
    lines.push(row(&tensors, "", "", "in all", all));
    lines.push(String::new());
    for file in header.shards.iter().chain(&header.files) {
        let what = match header.shards.iter().any(|shard| shard.name == file.name) {
            true => " (its header)",
            false => "",
        };
        lines.push(format!(
            "{}{what}: {}",
            file.name,
            units::bytes(file.length)
        ));
    }
    lines.join("\n") + "\n"
}

fn as_json(container: &Container) -> Value {
    let header = container.header();
    let all = Sum::of(header.tensors.iter());
    let bits = |sum: Sum| sum.bits().map(|(bits, _)| (bits * 1e4).round() / 1e4);
    let tensors: Vec<Value> = header
        .tensors
        .iter()
        .map(|tensor| {
            let sum = Sum::of([tensor].into_iter());
            json!({
                "name": tensor.name,
                "shape": tensor.shape,
                "number": tensor.number,
                "scheme": scheme_name(tensor),
                "extent": header.extents[tensor.extent].name,
                "bytes": sum.bytes,
                "original_bytes": sum.original_bytes,
                "bits": bits(sum),
                "hash": tensor.hash.to_string(),
                "original_hash": tensor.original_hash.to_string(),
            })
        })
        .collect();
    let files: Vec<Value> = header
        .files
        .iter()
        .map(|file| json!({ "name": file.name, "bytes": file.length, "hash": file.hash.to_string() }))
        .collect();
    json!({
        "path": container.path(),
        "bytes": header.bytes,
        "original_bytes": all.original_bytes,
        "numbers": all.numbers,
        "bits": bits(all),
        "source_hash": header.source_hash.to_string(),
        "tile": header.tile,
        "extents": header.extents.len(),
        "tensors": tensors,
        "files": files,
    })
}

#[cfg(test)]
mod tests {
    use sluice_engine::checkpoint::coded::TILES;

    use super::*;

    #[test]
    fn the_sizes_of_tiles_are_those_that_there_are() {
        let command = clap::Command::new("test");
        for tile in TILES {
            let name = tile.to_string();
            let parsed = tiles().parse_ref(&command, None, name.as_ref());
            assert_eq!(parsed.unwrap(), tile);
        }
    }
}
