//! The command `sluice-train likelihood`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use sluice_shared::level::Level;

use crate::{
    config::ModelConfig,
    latent::{LatentOptions, bound},
    likelihood::{LikelihoodOptions, compare, negative_log_likelihood},
    model::Model,
    model_arguments::{ModelArguments, Opened, exported},
    quantization::Rounding,
    text::Data,
};

/// What `sluice-train likelihood` takes.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
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
    } = arguments.model.open(|state| {
        let progress = &state.progress;
        println!(
            "step {}, {:.1} M tokens",
            progress.step,
            progress.tokens as f64 / 1e6
        );
        state.optimizer.averaged(&state.model)
    })?;
    let data = arguments.model.data(vocabulary, &model.config)?;
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
    let thinking = [0, latent.steps];
    let found = bound::measure(model, data, options, latent, &latent.at(1.0), &thinking)?;
    println!(
        "{what}at most {:.4} nats for each held-out token (tokens {:.4}, latents {:.4}), {:.4} by {} samples\n\
         {what}answers: {:.4} nats for each token with latents of the prior, {:.4} after {} steps on the prompt",
        found.evidence(),
        found.nll,
        found.kl,
        found.multi_sample,
        options.draws,
        found.answers[0],
        found.answers[1],
        latent.steps
    );
    Ok(())
}
