//! The command `sluice-train card`.

use std::{fs, path::Path, path::PathBuf};

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use clap::Args;
use serde::de::DeserializeOwned;

use super::{
    AutoregressiveFindings, DiffusionFindings, Facts, Findings, LOSS_PICTURE,
    LatentThoughtFindings, QUALITY_PICTURE, Run, latent_thought::PriorFindings, picture, text,
};
use crate::{
    checkpoint,
    config::{LatentThoughtConfig, ModelConfig},
    export,
    judge::{Judgement, curve::Curve, fingerprint, ways::Ways},
    latent::bound,
    likelihood::{self, LikelihoodOptions},
    log,
    model::Model,
    objective::Objective,
    prior::{
        self, Prior,
        comparison::{self, ComparisonOptions},
    },
    progress::Progress,
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
    /// What `judge --json` printed; for a latent thought model that of `--way "think 0" --way "think 16"`, and so on.
    #[arg(long)]
    judgement: PathBuf,
    /// What `judge --curve --json` printed; for a masked diffusion model alone, which needs it.
    #[arg(long)]
    curve: Option<PathBuf>,
    /// The folder that training an autoregressive network wrote to, to compare a masked diffusion model with.
    #[arg(long)]
    yardstick: Option<PathBuf>,
    /// Held-out samples to measure the likelihood by.
    #[arg(long, default_value_t = 1000)]
    samples: u64,
    /// Latents of each set that a learned prior is compared by.
    #[arg(long, default_value_t = ComparisonOptions::default().samples)]
    prior_samples: usize,
}

/// Writes the card and its pictures.
pub fn run(arguments: &Arguments, threads: usize) -> Result<()> {
    let folder = &arguments.model;
    let trained = Trained::open(&arguments.checkpoint, arguments.samples, threads)?;
    // A card about another model than the one it lies beside is worse than none.
    let path = folder.join(WEIGHTS_NAME);
    let exported = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    ensure!(
        exported == export::weights(&trained.model)?,
        "{} is not the model of the checkpoint; export it again",
        path.display()
    );
    let objective = trained.progress.batch.objective;
    ensure!(
        objective == Objective::Diffusion
            || (arguments.curve.is_none() && arguments.yardstick.is_none()),
        "a curve and a yardstick belong to the card of a masked diffusion model"
    );
    let facts = match objective {
        Objective::Diffusion => diffusion(arguments, &trained)?,
        Objective::Autoregressive => Facts {
            findings: Findings::Autoregressive(Box::new(AutoregressiveFindings {
                judgement: judged(&arguments.judgement, folder, |found: &Judgement| {
                    &found.weights
                })?,
            })),
            run: trained.run()?,
        },
        Objective::Latent => latent_thought(arguments, &trained)?,
    };

    let log_of = |folder: &Path| log::read(folder).context("read log");
    let beside = arguments.yardstick.as_deref().map(log_of).transpose()?;
    let log = log_of(&arguments.checkpoint)?;
    let loss = picture::loss(objective, &log, beside.as_deref())?;
    write(folder, LOSS_PICTURE, &loss)?;
    if let Findings::Diffusion(found) = &facts.findings {
        write(folder, QUALITY_PICTURE, &picture::quality(&found.curve)?)?;
    }
    write(folder, "README.md", &text(&facts))
}

fn diffusion(arguments: &Arguments, trained: &Trained) -> Result<Facts> {
    let folder = &arguments.model;
    let curve = arguments.curve.as_ref();
    let curve = curve.context("the card of a masked diffusion model needs --curve")?;
    let yardstick = match &arguments.yardstick {
        Some(folder) => {
            let yardstick =
                Trained::open(folder, trained.options.samples, trained.options.threads)?;
            ensure!(
                yardstick.progress.batch.objective == Objective::Autoregressive,
                "{} was trained for something else",
                folder.display()
            );
            Some(yardstick.run()?)
        }
        None => None,
    };
    let findings = DiffusionFindings {
        yardstick,
        judgement: judged(&arguments.judgement, folder, |found: &Judgement| {
            &found.weights
        })?,
        curve: judged(curve, folder, |found: &Curve| &found.weights)?,
    };
    Ok(Facts {
        run: trained.run()?,
        findings: Findings::Diffusion(Box::new(findings)),
    })
}

fn latent_thought(arguments: &Arguments, trained: &Trained) -> Result<Facts> {
    let folder = &arguments.model;
    let ways: Ways = judged(&arguments.judgement, folder, |found: &Ways| &found.weights)?;
    let steps = ways.rows.iter().map(|row| {
        let steps = row.way.strip_prefix("think ").map(str::parse);
        let steps = steps.with_context(|| format!("'{}' is no way to think", row.way))?;
        steps.with_context(|| format!("understand '{}'", row.way))
    });
    let thinking: Vec<usize> = steps.collect::<Result<_>>()?;
    let Trained {
        progress,
        vocabulary,
        model,
        options,
    } = trained;
    let (ModelConfig::LatentThought(config), Some(latent)) = (&model.config, &progress.latent)
    else {
        unreachable!("training asked for both");
    };
    trained.tell("the bound");
    let fast = latent.at(1.0);
    let bound = bound::measure(model, vocabulary, options, latent, &fast, &thinking)?;
    let has_prior = folder.join(prior::CONFIG_NAME).exists();
    let findings = LatentThoughtFindings {
        draws: options.draws,
        thinking,
        ways,
        prior: has_prior
            .then(|| prior_findings(arguments, trained, config))
            .transpose()?,
        bound,
    };
    Ok(Facts {
        run: Run {
            progress: progress.clone(),
            vocabulary: vocabulary.len(),
            held_out: findings.bound.evidence(),
            held_out_rounded: None,
            samples: options.samples,
        },
        findings: Findings::LatentThought(Box::new(findings)),
    })
}

fn prior_findings(
    arguments: &Arguments,
    trained: &Trained,
    config: &LatentThoughtConfig,
) -> Result<PriorFindings> {
    trained.tell("samples of the prior");
    let Prior {
        config: shape,
        origin,
        ..
    } = Prior::read(&arguments.model)?;
    let latent = trained.progress.latent.unwrap_or_default();
    let options = ComparisonOptions {
        samples: arguments.prior_samples,
        threads: trained.options.threads,
        ..ComparisonOptions::default()
    };
    let Trained {
        model, vocabulary, ..
    } = trained;
    let folder = &arguments.model;
    Ok(PriorFindings {
        config: shape,
        origin,
        comparison: comparison::compare(folder, model, config, vocabulary, &latent, &options)?,
    })
}

/// A model as a run left it, and how to measure it.
struct Trained {
    progress: Progress,
    vocabulary: Vocabulary,
    model: Model,
    options: LikelihoodOptions,
}

impl Trained {
    fn open(folder: &Path, samples: u64, threads: usize) -> Result<Self> {
        let state = checkpoint::load(folder, &Device::Cpu)?
            .with_context(|| format!("there is no checkpoint in {}", folder.display()))?;
        ensure!(
            state.progress.batch.text.is_none(),
            "cards are for models of the story language, and {} was trained on a text",
            folder.display()
        );
        Ok(Self {
            vocabulary: Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?,
            model: state.trained_model(threads)?,
            // The draws and the seed are those of the `likelihood` command.
            options: LikelihoodOptions {
                samples,
                draws: 8,
                seed: 2,
                threads,
            },
            progress: state.progress,
        })
    }

    fn tell(&self, what: &str) {
        eprintln!("measuring {what} by {} samples", self.options.samples);
    }

    /// The facts for the card, but for a latent thought model.
    fn run(&self) -> Result<Run> {
        self.tell("the likelihood");
        let Self {
            progress,
            vocabulary,
            model,
            options,
        } = self;
        let nats = |model: &Model| likelihood::negative_log_likelihood(model, vocabulary, options);
        let held_out_rounded = match &progress.quantization {
            Some(quantization) => {
                let rounding = Rounding::new(quantization.level, &model.config)?;
                Some(nats(&rounding.apply(model, options.threads)?)?)
            }
            None => None,
        };
        Ok(Run {
            held_out: nats(model)?,
            held_out_rounded,
            samples: options.samples,
            vocabulary: vocabulary.len(),
            progress: progress.clone(),
        })
    }
}

/// A judgement of the model in a folder.
fn judged<T: DeserializeOwned>(
    path: &Path,
    folder: &Path,
    weights: impl Fn(&T) -> &String,
) -> Result<T> {
    let text = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let found = serde_json::from_slice(&text);
    let found = found.with_context(|| format!("understand {}", path.display()))?;
    ensure!(
        *weights(&found) == fingerprint(folder)?,
        "{} judges another model; judge this one",
        path.display()
    );
    Ok(found)
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}
