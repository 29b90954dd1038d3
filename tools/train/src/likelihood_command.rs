//! The command `sluice-train likelihood`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_core::Device;
use clap::Args;
use sluice_shared::level::Level;

use crate::{
    checkpoint,
    config::ModelConfig,
    export,
    latent::{LatentOptions, bound},
    likelihood::{LikelihoodOptions, compare, negative_log_likelihood},
    model::Model,
    quantization::Rounding,
    text::{Data, TextOptions, TokenFile},
    vocabulary::Vocabulary,
};

/// What `sluice-train likelihood` takes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The folder that training wrote to, for its averaged weights.
    #[arg(long, required_unless_present = "model", conflicts_with = "model")]
    checkpoint: Option<PathBuf>,
    /// The folder of an exported model instead.
    #[arg(long)]
    model: Option<PathBuf>,
    /// A text whose end is measured, instead of the held-out half of the story language.
    #[arg(long)]
    text: Option<PathBuf>,
    /// The share of that text, at its end, that is held out.
    #[arg(long, default_value_t = 0.05)]
    held_out_share: f64,
    /// Round the weights as this level does, and compare with the reference.
    #[arg(long)]
    level: Option<Level>,
    /// The folder of an exported model to compare with; without it the model itself as it was before rounding.
    #[arg(long)]
    reference: Option<PathBuf>,
    /// Held-out samples.
    #[arg(long, default_value_t = 1000)]
    samples: u64,
    /// Masks drawn for each sample, or latents.
    #[arg(long, default_value_t = 8)]
    draws: usize,
    /// Steps in which latents are learned; those of training if left out.
    #[arg(long)]
    fast_steps: Option<usize>,
    /// The seed of samples, masks and noise.
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
    let Opened {
        model,
        vocabulary,
        latent,
    } = match (&arguments.checkpoint, &arguments.model) {
        (Some(folder), _) => trained(folder)?,
        (None, Some(folder)) => exported(folder)?,
        (None, None) => unreachable!("one of them is required"),
    };
    let folder = tempfile::tempdir().context("make a folder for tokens")?;
    let text = arguments.text.as_ref().map(|path| {
        let options = TextOptions {
            path: path.clone(),
            held_out_share: arguments.held_out_share,
        };
        TokenFile::open(
            folder.path(),
            &options,
            &vocabulary,
            model.config.length_max(),
        )
    });
    let text = text.transpose()?;
    let data = Data { vocabulary, text };
    let rounded = match arguments.level {
        Some(level) => Some(Rounding::new(level, &model.config)?.apply(&model, threads)?),
        None => None,
    };
    if matches!(model.config, ModelConfig::LatentThought(_)) {
        let mut latent = latent.unwrap_or_default();
        latent.steps = arguments.fast_steps.unwrap_or(latent.steps);
        tell_bound("", &model, &data, &options, &latent)?;
        if let Some(rounded) = &rounded {
            tell_bound("rounded: ", rounded, &data, &options, &latent)?;
        }
        return Ok(());
    }
    let reference = match &arguments.reference {
        Some(folder) => Some(exported(folder)?.model),
        None => None,
    };
    let (reference, model) = match (&reference, &rounded) {
        (Some(reference), rounded) => (reference, rounded.as_ref().unwrap_or(&model)),
        (None, Some(rounded)) => (&model, rounded),
        (None, None) => {
            let nats = negative_log_likelihood(&model, &data, &options)?;
            println!("{nats:.4} nats for each held-out answer token");
            return Ok(());
        }
    };
    let found = compare(reference, model, &data, &options)?;
    let [before, after] = found.nats;
    println!(
        "{after:.4} nats for each held-out answer token, {before:.4} by the reference; KL {:.5}, same top token {:.2} %",
        found.kl,
        100.0 * found.same_top
    );
    Ok(())
}

fn tell_bound(
    what: &str,
    model: &Model,
    data: &Data,
    options: &LikelihoodOptions,
    latent: &LatentOptions,
) -> Result<()> {
    let found = bound::measure(model, data, options, latent, &latent.at(1.0))?;
    println!(
        "{what}at most {:.4} nats for each held-out token (tokens {:.4}, latents {:.4}), {:.4} by {} samples\n\
         {what}answers: {:.4} nats for each token with latents of the prior, {:.4} after {} steps on the prompt",
        found.evidence(),
        found.nll,
        found.kl,
        found.multi_sample,
        options.draws,
        found.answer_prior,
        found.answer_prompt,
        latent.steps
    );
    Ok(())
}

/// A model with what belongs to it.
struct Opened {
    model: Model,
    vocabulary: Vocabulary,
    /// How a latent thought model's latents were learned.
    latent: Option<LatentOptions>,
}

/// The averaged weights of a checkpoint, and its tokenizer.
fn trained(folder: &Path) -> Result<Opened> {
    let state = checkpoint::load(folder, &Device::Cpu)?
        .with_context(|| format!("there is no checkpoint in {}", folder.display()))?;
    let progress = &state.progress;
    println!(
        "step {}, {:.1} M tokens",
        progress.step,
        progress.tokens as f64 / 1e6
    );
    Ok(Opened {
        model: state.optimizer.averaged(&state.model)?,
        vocabulary: Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?,
        latent: progress.latent,
    })
}

/// An exported model and its tokenizer.
fn exported(folder: &Path) -> Result<Opened> {
    let vocabulary = Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?;
    let config = export::read_config(folder)?;
    Ok(Opened {
        model: export::read(folder, &config, &vocabulary, &Device::Cpu)?,
        vocabulary,
        latent: export::read_latent(folder)?,
    })
}
