//! `sluiced synth`: writes a checkpoint of random weights. No daemon is started.

use std::path::{Path, PathBuf};

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use rustix::fs::statvfs;
use sluice_checkpoint::{
    CheckpointError,
    family::{PUBLISHED_SHAPES, PublishedShape},
    synth::{SynthDType, SynthError, SynthOptions, SynthRouter, check},
};
use sluice_shared::{exit, units};
use sluice_weights::{LayerKind, Shape, TensorNaming};

use crate::{
    config::Threads,
    offline::{ProgressLine, SystemError, until_signalled},
};

/// Beyond this nothing changes any more: a pass goes through one set of experts.
const FACTOR_MAX: f32 = 16.0;

/// What `sluiced synth` was asked for.
#[derive(Debug, Args)]
pub struct Synth {
    /// Folder to write; it must not exist, or be empty
    #[arg(value_name = "DIR")]
    target: PathBuf,

    /// Shape of a published model
    #[arg(long, value_name = "NAME", value_parser = published_shapes())]
    shape: Option<&'static PublishedShape>,

    #[command(flatten)]
    custom: CustomShape,

    /// Dtype of the weights
    #[arg(long, value_name = "DTYPE", value_parser = dtypes(), default_value = "bf16")]
    dtype: SynthDType,

    /// The same seed gives the same weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// How uneven the experts of a mixture are used; 0: none is preferred, 1: about as in LLaDA2.0-mini
    #[arg(long, value_name = "FACTOR", value_parser = factor, default_value_t = 1.0)]
    router_skew: f32,

    /// How much a mixture's rows change experts from pass to pass; 1: about as in LLaDA2.0-mini
    #[arg(long, value_name = "FACTOR", value_parser = factor, default_value_t = 1.0)]
    router_drift: f32,

    /// Threads that generate weights [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,
}

/// A shape by its numbers.
#[derive(Debug, Args)]
struct CustomShape {
    /// Layers [default: as many as the published model]
    #[arg(long, value_name = "N", required_unless_present = "shape")]
    layers: Option<usize>,

    /// Hidden size
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "shape",
        required_unless_present = "shape"
    )]
    hidden_size: Option<usize>,

    /// Attention heads; the hidden size is split between them
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "shape",
        required_unless_present = "shape"
    )]
    attention_heads: Option<usize>,

    /// KV heads [default: as many as attention heads]
    #[arg(long, value_name = "N", conflicts_with = "shape")]
    kv_heads: Option<usize>,

    /// Intermediate size (of the MLP)
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "shape",
        required_unless_present = "shape"
    )]
    intermediate_size: Option<usize>,

    /// Vocabulary size, including the mask token
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "shape",
        required_unless_present = "shape"
    )]
    vocab_size: Option<usize>,

    /// Context length: prompt and answer together [default: 4096]
    #[arg(long, value_name = "N", conflicts_with = "shape")]
    context_length: Option<usize>,
}

/// Reads a preset's name.
pub(crate) fn published_shapes() -> impl TypedValueParser<Value = &'static PublishedShape> {
    PossibleValuesParser::new(PUBLISHED_SHAPES.iter().map(|preset| preset.name))
        .map(|name| PublishedShape::find(&name).expect("its name was possible"))
}

/// Reads a factor of what is usual.
fn factor(text: &str) -> Result<f32, String> {
    let factor = text.parse::<f32>().ok();
    let factor = factor.filter(|factor| (0.0..=FACTOR_MAX).contains(factor));
    factor.ok_or_else(|| format!("not a number from 0 to {FACTOR_MAX}"))
}

fn dtypes() -> impl TypedValueParser<Value = SynthDType> {
    let find = |name: String| SynthDType::ALL.into_iter().find(|one| one.name() == name);
    PossibleValuesParser::new(SynthDType::ALL.map(SynthDType::name))
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
    let synthesis = SynthOptions {
        family: options.shape.map(PublishedShape::family),
        shape: options.resolved_shape()?,
        dtype: options.dtype,
        seed: options.seed,
        router: SynthRouter {
            skew: options.router_skew,
            drift: options.router_drift,
        },
        threads: options.threads.map_or(0, Threads::get),
    };
    check_room(&options.target, synthesis.weight_bytes())?;
    let mut line = ProgressLine::new("writing");
    let result = until_signalled(|cancel| {
        let (target, mut show) = (&options.target, |done, total| line.show(done, total));
        synthesis.write(target, cancel, &mut show)
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
    fn resolved_shape(&self) -> Result<Shape, Failure> {
        let shape = match self.shape {
            Some(preset) => Shape {
                layers: self.custom.layers.unwrap_or(preset.shape().layers),
                ..preset.shape().clone()
            },
            None => self.custom.shape(),
        };
        match check(self.shape.map(PublishedShape::family), &shape) {
            Ok(()) => Ok(shape),
            Err(CheckpointError::Config { key, problem }) => Err(Failure::Flag {
                flag: flag_of(key),
                problem,
            }),
            Err(error) => Err(SynthError::from(error).into()),
        }
    }
}

impl CustomShape {
    /// A LLaDA model of this shape.
    ///
    /// # Panics
    /// When a number is missing that a published shape would give.
    fn shape(&self) -> Shape {
        let given = |value: Option<usize>| value.expect("required without a shape");
        let (width, heads) = (given(self.hidden_size), given(self.attention_heads));
        Shape {
            naming: TensorNaming::Llada,
            layers: given(self.layers),
            hidden_size: width,
            attention_heads: heads,
            kv_heads: self.kv_heads.unwrap_or(heads),
            head_dim: width.checked_div(heads).unwrap_or(0),
            intermediate_size: given(self.intermediate_size),
            padded_vocab_size: given(self.vocab_size),
            context_length: self.context_length.unwrap_or(4096),
            causal: false,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        }
    }
}

/// The flag that sets a key of `config.json`.
fn flag_of(key: &'static str) -> &'static str {
    match key {
        "n_layers" | "num_hidden_layers" | "layer_types" => "--layers",
        "d_model" => "--hidden-size",
        "n_heads" => "--attention-heads",
        "n_kv_heads" => "--kv-heads",
        "mlp_hidden_size" => "--intermediate-size",
        "vocab_size" | "embedding_size" | "mask_token_id" | "eos_token_id" => "--vocab-size",
        "max_sequence_length" => "--context-length",
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
