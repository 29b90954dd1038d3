//! The command `sluice-train posteriors`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use candle_core::Device;
use clap::Args;

use crate::{
    checkpoint,
    config::ModelConfig,
    export,
    latent::posteriors,
    text::{Data, TextOptions, TokenFile},
    vocabulary::Vocabulary,
};

/// What `sluice-train posteriors` takes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The folder that training wrote to, for its averaged weights.
    #[arg(long, required_unless_present = "model", conflicts_with = "model")]
    checkpoint: Option<PathBuf>,
    /// The folder of an exported latent thought model instead.
    #[arg(long)]
    model: Option<PathBuf>,
    /// The text that it was trained on, instead of the story language.
    #[arg(long)]
    text: Option<PathBuf>,
    /// The share of that text, at its end, that is held out and not used.
    #[arg(long, default_value_t = 0.05)]
    held_out_share: f64,
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
    let (model, vocabulary, latent) = match (&arguments.checkpoint, &arguments.model) {
        (Some(folder), _) => {
            let state = checkpoint::load(folder, &Device::Cpu)?
                .with_context(|| format!("there is no checkpoint in {}", folder.display()))?;
            let vocabulary = Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?;
            (
                state.trained_model(threads)?,
                vocabulary,
                state.progress.latent,
            )
        }
        (None, Some(folder)) => {
            let vocabulary = Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?;
            let config = export::read_config(folder)?;
            let model = export::read(folder, &config, &vocabulary, &Device::Cpu)?;
            (model, vocabulary, export::read_latent(folder)?)
        }
        (None, None) => unreachable!("one of them is required"),
    };
    let ModelConfig::LatentThought(config) = &model.config else {
        bail!("only a latent thought model has posteriors");
    };
    let folder = tempfile::tempdir().context("make a folder for tokens")?;
    let text = arguments.text.as_ref().map(|path| {
        let options = TextOptions {
            path: path.clone(),
            held_out_share: arguments.held_out_share,
        };
        TokenFile::open(folder.path(), &options, &vocabulary, config.max_seq_len)
    });
    let text = text.transpose()?;
    let data = Data { vocabulary, text };
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
