//! The command `sluice-train posteriors`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::{
    config::ModelConfig,
    latent::posteriors,
    model_arguments::{ModelArguments, Opened},
};

/// What `sluice-train posteriors` takes.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// How many texts.
    #[arg(long, default_value_t = 4096)]
    count: usize,
    /// The seed of texts and noise.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The file to write: `mean` and `log_variance` of shape [texts, vectors, width] in F32, and `ids` of all texts end to end
    /// with their `lengths`, in U32.
    #[arg(long)]
    output: PathBuf,
}

/// Infers and writes.
pub fn run(arguments: &Arguments, threads: usize) -> Result<()> {
    let Opened {
        model,
        vocabulary,
        latent,
    } = arguments.model.open(|state| state.trained_model(threads))?;
    let ModelConfig::LatentThought(config) = &model.config else {
        bail!("only a latent thought model has posteriors");
    };
    let data = arguments.model.data(vocabulary, &model.config)?;
    let latent = latent.unwrap_or_default();
    let found = posteriors::collect(
        &model,
        config,
        &data,
        &latent,
        arguments.count,
        arguments.seed,
        threads,
    )?;
    found.write(&arguments.output)?;
    println!(
        "posteriors of {} texts, {:.3} nats from the prior for each token",
        found.lengths.len(),
        found.all.kl() / found.ids.len() as f64
    );
    Ok(())
}
