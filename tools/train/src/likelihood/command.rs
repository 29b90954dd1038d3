//! The command `sluice-train likelihood`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_core::Device;
use clap::Args;
use sluice_shared::level::Level;

use super::{LikelihoodOptions, compare, negative_log_likelihood};
use crate::{checkpoint, export, model::Model, quantization::Rounding, vocabulary::Vocabulary};

/// What `sluice-train likelihood` takes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The folder that training wrote to, for its averaged weights.
    #[arg(long, required_unless_present = "model", conflicts_with = "model")]
    checkpoint: Option<PathBuf>,
    /// The folder of an exported model instead.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Round the weights as this level does, and compare with the reference.
    #[arg(long)]
    level: Option<Level>,
    /// The folder of an exported model to compare with; without it the model itself as it was before rounding.
    #[arg(long)]
    reference: Option<PathBuf>,
    /// Held-out samples.
    #[arg(long, default_value_t = 1000)]
    samples: u64,
    /// Masks drawn for each sample.
    #[arg(long, default_value_t = 8)]
    draws: usize,
    /// The seed of samples and masks.
    #[arg(long, default_value_t = 2)]
    seed: u64,
}

/// Prints what was measured.
pub fn run(arguments: &Arguments, threads: usize) -> Result<()> {
    let options = LikelihoodOptions {
        samples: arguments.samples,
        draws: arguments.draws,
        seed: arguments.seed,
        threads,
    };
    let (model, vocabulary) = match (&arguments.checkpoint, &arguments.model) {
        (Some(folder), _) => trained(folder)?,
        (None, Some(folder)) => exported(folder)?,
        (None, None) => unreachable!("one of them is required"),
    };
    let rounded = match arguments.level {
        Some(level) => Some(Rounding::new(level, &model.config)?.apply(&model, threads)?),
        None => None,
    };
    let reference = match &arguments.reference {
        Some(folder) => Some(exported(folder)?.0),
        None => None,
    };
    let (reference, model) = match (&reference, &rounded) {
        (Some(reference), rounded) => (reference, rounded.as_ref().unwrap_or(&model)),
        (None, Some(rounded)) => (&model, rounded),
        (None, None) => {
            let nats = negative_log_likelihood(&model, &vocabulary, &options)?;
            println!("{nats:.4} nats for each held-out answer token");
            return Ok(());
        }
    };
    let found = compare(reference, model, &vocabulary, &options)?;
    let [before, after] = found.nats;
    println!(
        "{after:.4} nats for each held-out answer token, {before:.4} by the reference; KL {:.5}, same top token {:.2} %",
        found.kl,
        100.0 * found.same_top
    );
    Ok(())
}

/// The averaged weights of a checkpoint, and its tokenizer.
fn trained(folder: &Path) -> Result<(Model, Vocabulary)> {
    let state = checkpoint::load(folder, &Device::Cpu)?
        .with_context(|| format!("there is no checkpoint in {}", folder.display()))?;
    let progress = &state.progress;
    println!(
        "step {}, {:.1} M tokens",
        progress.step,
        progress.tokens as f64 / 1e6
    );
    let vocabulary = Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?;
    Ok((state.optimizer.averaged(&state.model)?, vocabulary))
}

/// An exported model and its tokenizer.
fn exported(folder: &Path) -> Result<(Model, Vocabulary)> {
    let vocabulary = Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?;
    let config = export::read_config(folder)?;
    let model = export::read(folder, &config, &vocabulary, &Device::Cpu)?;
    Ok((model, vocabulary))
}
