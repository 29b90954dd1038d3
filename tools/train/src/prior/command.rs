//! The command `sluice-train prior`.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;

use super::training::{PriorOptions, train};
use crate::{config::ModelConfig, export, latent::posteriors::Posteriors};

/// What `sluice-train prior` takes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The folder of the exported latent thought model, which gets the prior.
    #[arg(long)]
    model: PathBuf,
    /// The file that `sluice-train posteriors` wrote for that model.
    #[arg(long)]
    posteriors: PathBuf,
    /// Steps.
    #[arg(long, default_value_t = 2000)]
    steps: u64,
    /// Texts of a step.
    #[arg(long, default_value_t = 64)]
    texts: usize,
    /// The highest learning rate.
    #[arg(long, default_value_t = 0.001)]
    learning_rate: f64,
    /// Width of the network.
    #[arg(long, default_value_t = 256)]
    width: usize,
    /// Layers of the network.
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// Attention heads.
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// The seed of weights, samples and noise.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Steps between two progress lines.
    #[arg(long, default_value_t = 100)]
    report_steps: u64,
}

/// Trains and writes.
pub fn run(arguments: &Arguments, threads: usize) -> Result<()> {
    let ModelConfig::LatentThought(config) = export::read_config(&arguments.model)? else {
        bail!("only a latent thought model has a prior");
    };
    let posteriors = Posteriors::read(&arguments.posteriors)?;
    ensure!(
        [posteriors.vectors, posteriors.width] == [config.max_z_len, config.dim],
        "the posteriors are those of another model"
    );
    let options = PriorOptions {
        steps: arguments.steps,
        texts: arguments.texts,
        learning_rate: arguments.learning_rate,
        seed: arguments.seed,
        threads,
    };
    let shape = [arguments.width, arguments.layers, arguments.heads];
    let mut sum = 0.0;
    let prior = train(&posteriors, shape, &options, |step, loss| {
        sum += loss;
        if step.is_multiple_of(arguments.report_steps) {
            let mean = sum / arguments.report_steps as f64;
            println!("step {step} of {}  loss {mean:.4}", arguments.steps);
            sum = 0.0;
        }
    })?;
    prior.write(&arguments.model)
}
