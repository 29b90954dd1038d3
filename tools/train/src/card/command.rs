//! The command `sluice-train card`.

use std::{fs, path::Path, path::PathBuf};

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use clap::Args;
use serde::de::DeserializeOwned;

use super::{Facts, LOSS_PICTURE, QUALITY_PICTURE, Run, picture, text};
use crate::{
    checkpoint, export,
    judge::{Judgement, curve::Curve, fingerprint},
    likelihood::{self, LikelihoodOptions},
    log,
    model::Model,
    objective::Objective,
    quantization::Rounding,
    vocabulary::Vocabulary,
    weights_file::WEIGHTS_NAME,
};

/// What `sluice-train card` takes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The folder that training wrote to.
    #[arg(long)]
    checkpoint: PathBuf,
    /// The folder of the exported model, where card and pictures go.
    #[arg(long)]
    model: PathBuf,
    /// What `judge --json` printed.
    #[arg(long)]
    judgement: PathBuf,
    /// What `judge --curve --json` printed.
    #[arg(long)]
    curve: PathBuf,
    /// The folder that training an autoregressive network wrote to.
    #[arg(long)]
    yardstick: Option<PathBuf>,
    /// Held-out samples to measure the likelihood by.
    #[arg(long, default_value_t = 1000)]
    samples: u64,
}

/// Writes the card and its pictures.
pub fn run(arguments: &Arguments, threads: usize) -> Result<()> {
    let folder = &arguments.model;
    let open = |folder, objective| open(folder, objective, arguments.samples, threads);
    let (run, model) = open(&arguments.checkpoint, Objective::Diffusion)?;
    let yardstick = match &arguments.yardstick {
        Some(folder) => Some(open(folder, Objective::Autoregressive)?.0),
        None => None,
    };
    let judgement: Judgement = read(&arguments.judgement)?;
    let curve: Curve = read(&arguments.curve)?;
    // A card about another model than the one it lies beside is worse than none.
    let path = folder.join(WEIGHTS_NAME);
    let exported = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    ensure!(
        exported == export::weights(&model)?,
        "{} is not the model of the checkpoint; export it again",
        path.display()
    );
    let weights = fingerprint(folder)?;
    for (file, judged) in [
        (&arguments.judgement, &judgement.weights),
        (&arguments.curve, &curve.weights),
    ] {
        ensure!(
            *judged == weights,
            "{} judges another model; judge this one",
            file.display()
        );
    }

    let log_of = |folder: &Path| log::read(folder).context("read log");
    let beside = arguments.yardstick.as_deref().map(log_of).transpose()?;
    write(
        folder,
        LOSS_PICTURE,
        &picture::loss(&log_of(&arguments.checkpoint)?, beside.as_deref())?,
    )?;
    write(folder, QUALITY_PICTURE, &picture::quality(&curve)?)?;
    let facts = Facts {
        run,
        yardstick,
        judgement,
        curve,
    };
    write(folder, "README.md", &text(&facts))
}

/// The facts of a run for the card, and the model that it made.
fn open(folder: &Path, objective: Objective, samples: u64, threads: usize) -> Result<(Run, Model)> {
    let state = checkpoint::load(folder, &Device::Cpu)?
        .with_context(|| format!("there is no checkpoint in {}", folder.display()))?;
    let progress = state.progress.clone();
    ensure!(
        progress.batch.objective == objective,
        "{} was trained for something else",
        folder.display()
    );
    let vocabulary = Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?;
    let model = state.trained_model(threads)?;
    eprintln!(
        "measuring the likelihood of {samples} samples to the model in {}",
        folder.display()
    );
    // The mask draws and the seed are those of the `likelihood` command.
    let options = LikelihoodOptions {
        samples,
        draws: 8,
        seed: 2,
        threads,
    };
    let nats = |model: &Model| likelihood::negative_log_likelihood(model, &vocabulary, &options);
    let held_out_rounded = match &progress.quantization {
        Some(quantization) => {
            let rounding = Rounding::new(quantization.level, &model.config)?;
            Some(nats(&rounding.apply(&model, threads)?)?)
        }
        None => None,
    };
    let run = Run {
        held_out: nats(&model)?,
        held_out_rounded,
        samples,
        vocabulary: vocabulary.len(),
        progress,
    };
    Ok((run, model))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("understand {}", path.display()))
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}
