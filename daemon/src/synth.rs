//! `sluiced synth`: writes a checkpoint of random weights. No daemon is started.

use std::path::{Path, PathBuf};

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use rustix::fs::statvfs;
use sluice_checkpoint::{
    CheckpointError,
    family::{PRESETS, Preset},
    synth::{Element, SynthError, Synthesis, check},
};
use sluice_shared::{exit, units};
use sluice_weights::{Naming, Shape};

use crate::{
    config::Threads,
    offline::{ProgressLine, SystemError, until_signalled},
};

/// What `sluiced synth` was asked for.
#[derive(Debug, Args)]
pub struct Synth {
    /// Folder to write; it must not exist, or be empty
    #[arg(value_name = "DIR")]
    target: PathBuf,

    /// Shape of a published model
    #[arg(long, value_name = "NAME", value_parser = presets())]
    preset: Option<&'static Preset>,

    #[command(flatten)]
    custom: Custom,

    /// How numbers are stored
    #[arg(long, value_name = "FORMAT", value_parser = elements(), default_value = "bf16")]
    format: Element,

    /// The same seed gives the same weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Threads that make numbers [default: one a core]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,
}

/// A shape by its numbers.
#[derive(Debug, Args)]
struct Custom {
    /// Layers
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "preset",
        required_unless_present = "preset"
    )]
    layers: Option<usize>,

    /// Numbers in a row between layers
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "preset",
        required_unless_present = "preset"
    )]
    width: Option<usize>,

    /// Query heads; they share the width
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "preset",
        required_unless_present = "preset"
    )]
    heads: Option<usize>,

    /// Key and value heads [default: as many as query heads]
    #[arg(long, value_name = "N", conflicts_with = "preset")]
    kv_heads: Option<usize>,

    /// Numbers in a row inside the MLP
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "preset",
        required_unless_present = "preset"
    )]
    mlp_width: Option<usize>,

    /// Token ids, the mask's included
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "preset",
        required_unless_present = "preset"
    )]
    vocabulary: Option<usize>,

    /// Most positions of prompt and answer together [default: 4096]
    #[arg(long, value_name = "N", conflicts_with = "preset")]
    context: Option<usize>,
}

/// Reads a preset's name.
pub(crate) fn presets() -> impl TypedValueParser<Value = &'static Preset> {
    PossibleValuesParser::new(PRESETS.iter().map(|preset| preset.name))
        .map(|name| Preset::find(&name).expect("its name was possible"))
}

fn elements() -> impl TypedValueParser<Value = Element> {
    let find = |name: String| Element::ALL.into_iter().find(|one| one.name() == name);
    PossibleValuesParser::new(Element::ALL.map(Element::name))
        .map(move |name| find(name).expect("its name was possible"))
}

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// A shape by its flags.
    #[error("{flag} {problem}")]
    Flag { flag: &'static str, problem: String },
    #[error(
        "{path} needs {needed}, but only {free} are free there",
        path = path.display(),
        needed = units::bytes(*needed_bytes),
        free = units::bytes(*free_bytes)
    )]
    NoRoom {
        path: PathBuf,
        needed_bytes: u64,
        free_bytes: u64,
    },
    #[error(transparent)]
    System(#[from] SystemError),
    #[error(transparent)]
    Synth(#[from] SynthError),
}

/// Writes it, and returns the exit code.
#[must_use]
pub fn run(options: &Synth) -> u8 {
    match write(options) {
        Ok(()) => exit::OK,
        Err(failure) => {
            eprintln!("sluiced: {failure}");
            match failure {
                Failure::Flag { .. } => exit::USAGE,
                _ => exit::FAILURE,
            }
        }
    }
}

fn write(options: &Synth) -> Result<(), Failure> {
    let synthesis = Synthesis {
        shape: options.shape()?,
        element: options.format,
        seed: options.seed,
        threads: options.threads.map_or(0, Threads::get),
    };
    check_room(&options.target, synthesis.weight_bytes())?;
    let mut line = ProgressLine::new("writing");
    let result = until_signalled(|cancel| {
        synthesis.write(&options.target, cancel, &mut |done, total| {
            line.show(done, total);
        })
    });
    line.clear();
    result??;
    println!(
        "{path}: {size}, {parameters} parameters, written in {took}",
        path = options.target.display(),
        size = units::bytes(synthesis.weight_bytes()),
        parameters = units::count(synthesis.shape.parameters()),
        took = units::duration_ms(line.elapsed_ms()),
    );
    Ok(())
}

impl Synth {
    fn shape(&self) -> Result<Shape, Failure> {
        if let Some(preset) = self.preset {
            return Ok(preset.shape().clone());
        }
        let given = |value: Option<usize>| value.expect("required where there is no preset");
        let custom = &self.custom;
        let (width, heads) = (given(custom.width), given(custom.heads));
        let shape = Shape {
            naming: Naming::Llada,
            layers: given(custom.layers),
            width,
            heads,
            kv_heads: custom.kv_heads.unwrap_or(heads),
            head_dim: width.checked_div(heads).unwrap_or(0),
            mlp_width: given(custom.mlp_width),
            embedding_rows: given(custom.vocabulary),
            context_length: custom.context.unwrap_or(4096),
            causal: false,
            tied: false,
            biases: false,
        };
        match check(&shape) {
            Ok(()) => Ok(shape),
            Err(CheckpointError::Config { key, problem }) => Err(Failure::Flag {
                flag: flag_of(key),
                problem,
            }),
            Err(error) => Err(SynthError::from(error).into()),
        }
    }
}

/// The flag that sets a key of `config.json`.
fn flag_of(key: &'static str) -> &'static str {
    match key {
        "n_layers" => "--layers",
        "d_model" => "--width",
        "n_heads" => "--heads",
        "n_kv_heads" => "--kv-heads",
        "mlp_hidden_size" => "--mlp-width",
        "vocab_size" | "embedding_size" | "mask_token_id" | "eos_token_id" => "--vocabulary",
        "max_sequence_length" => "--context",
        other => other,
    }
}

/// A shape mistyped by a few digits should not fill the disk before it fails.
fn check_room(target: &Path, needed_bytes: u64) -> Result<(), Failure> {
    let absolute = std::path::absolute(target).map_err(|cause| SystemError {
        operation: "find the working folder",
        cause,
    })?;
    // What is wrong with the folder is told when it is written to.
    let Some(free) = absolute.parent().and_then(|folder| statvfs(folder).ok()) else {
        return Ok(());
    };
    let free_bytes = free.f_bavail.saturating_mul(free.f_frsize);
    if free_bytes < needed_bytes {
        return Err(Failure::NoRoom {
            path: target.to_owned(),
            needed_bytes,
            free_bytes,
        });
    }
    Ok(())
}
