//! The command `sluice-train train`: what it takes, from flags and a configuration file, and the run that comes of it.

mod config_file;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, ValueEnum};
use sluice_shared::{level::Level, units::parse_bytes};

use crate::{
    batch::BatchOptions,
    config::{LatentThoughtConfig, ModelConfig, Rwkv7Config, TransformerConfig},
    device::DeviceKind,
    export,
    latent::LatentOptions,
    objective::Objective,
    optimizer::OptimizerOptions,
    precision::Precision,
    quantization::QuantizationOptions,
    text::{Chunks, Data, TextOptions, TokenFile},
    trainer::{TrainOptions, Trainer},
    vocabulary::{TRAINING_SAMPLES, Vocabulary},
};

/// Entries of the tokenizer, unless another size is asked for.
const VOCABULARY: usize = 1280;

/// A kind of network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Masked diffusion, as LLaDA.
    Llada,
    /// Autoregressive attention, as Llama.
    Llama,
    /// RWKV-7: autoregressive, with a state instead of attention.
    Rwkv7,
    /// A latent thought model.
    #[value(name = "ltm")]
    LatentThought,
}

impl Kind {
    fn of(config: &ModelConfig) -> Self {
        match config {
            ModelConfig::Transformer(config) if config.causal => Self::Llama,
            ModelConfig::Transformer(_) => Self::Llada,
            ModelConfig::Rwkv7(_) => Self::Rwkv7,
            ModelConfig::LatentThought(_) => Self::LatentThought,
        }
    }

    fn objective(self) -> Objective {
        match self {
            Self::Llada => Objective::Diffusion,
            Self::Llama | Self::Rwkv7 => Objective::Autoregressive,
            Self::LatentThought => Objective::Latent,
        }
    }
}

/// What `sluice-train train` takes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A TOML file whose keys are the names of these flags; a flag that is given, too, goes first.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Where tokenizer, checkpoint and log live.
    #[arg(long)]
    output: Option<PathBuf>,
    /// The network; that of --from, or llada, or llama where the objective is autoregressive.
    #[arg(long, value_enum)]
    model: Option<Kind>,
    /// The seed of text, tokenizer, masks, noise and initial weights.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What the network is trained for; that of its kind if left out.
    #[arg(long, value_enum)]
    objective: Option<Objective>,
    /// The folder of a model to train on (LLaDA, Llama, RWKV-7 or a latent thought model), with its shape and, unless the size of
    /// another is given, its tokenizer; a fresh optimizer.
    #[arg(long, conflicts_with_all = ["layers", "width", "mlp", "heads"])]
    from: Option<PathBuf>,
    /// A file of UTF-8 text to train on instead of the story language.
    #[arg(long)]
    text: Option<PathBuf>,
    /// The share of that text, at its end, that is held out.
    #[arg(long, default_value_t = 0.05, requires = "text")]
    held_out_share: f64,
    /// A tokenizer.json of one's own; without it one is learned from the text.
    #[arg(long, conflicts_with = "vocabulary")]
    tokenizer: Option<PathBuf>,
    /// Steps in all; the learning rate falls towards the last.
    #[arg(long, default_value_t = 16000, overrides_with = "seconds")]
    steps: u64,
    /// Seconds in steps after which the run ends, and towards which the learning rate falls, instead of a number of
    /// steps. What comes out then depends on how fast the machine is.
    #[arg(long, overrides_with = "steps")]
    seconds: Option<u64>,
    /// Parts of a step, each computed by one thread.
    #[arg(long, default_value_t = 2)]
    parts: usize,
    /// Tokens from which on a part is full.
    #[arg(long, default_value_t = 1536)]
    part_tokens: usize,
    /// Tokens of the longest sequence.
    #[arg(long, default_value_t = 512)]
    sequence_length: usize,
    /// Train the last part of the run with the weights that this level deploys (quantization-aware training): moderate or
    /// aggressive.
    #[arg(long, value_name = "LEVEL")]
    quantize: Option<Level>,
    /// How much of the run that part is, with a tenth of the learning rate; 1 for all of it, as with --from.
    #[arg(long, default_value_t = 0.1, requires = "quantize")]
    quantize_share: f64,
    /// What the tokens count in that part.
    #[arg(long, default_value_t = 0.5, requires = "quantize")]
    task_weight: f64,
    /// What the KL divergence from the model in full precision counts in that part.
    #[arg(long, default_value_t = 0.5, requires = "quantize")]
    kl_weight: f64,
    /// The highest learning rate of the weights.
    #[arg(long, default_value_t = 0.001)]
    learning_rate: f64,
    /// Pull of matrices towards zero, relative to the learning rate.
    #[arg(long, default_value_t = OptimizerOptions::default().weight_decay)]
    weight_decay: f64,
    /// Decay of the mean of squared gradients.
    #[arg(long, default_value_t = OptimizerOptions::default().second_decay)]
    second_decay: f64,
    /// Steps until the learning rate is highest.
    #[arg(long, default_value_t = 300)]
    warm_up_steps: u64,
    /// Steps until the longest canvases are met; the first see only short ones.
    #[arg(long, default_value_t = 2000)]
    length_warm_up_steps: u64,
    /// Steps in which words are to be said again, before the stories.
    #[arg(long, default_value_t = 400)]
    exercise_steps: u64,
    /// Entries of the tokenizer, special tokens included; 1280 if left out.
    #[arg(long)]
    vocabulary: Option<usize>,
    /// Layers of the network.
    #[arg(long, default_value_t = 5)]
    layers: usize,
    /// Width of the network, a multiple of 256, or of 64 for rwkv7.
    #[arg(long, default_value_t = 256)]
    width: usize,
    /// Width inside the gated layers or the channel mix; twice the width if left out, four times for rwkv7.
    #[arg(long)]
    mlp: Option<usize>,
    /// Attention heads; those of rwkv7 have 64 channels each.
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Positions that attention of ltm sees, the own one included.
    #[arg(long, default_value_t = 256)]
    window: usize,
    /// Latent vectors of ltm for each layer.
    #[arg(long, default_value_t = 8)]
    latents_per_layer: usize,
    /// Steps in which ltm learns the latents of a batch.
    #[arg(long, default_value_t = LatentOptions::default().steps)]
    fast_steps: usize,
    /// The learning rate of latents at the first step of the run.
    #[arg(long, default_value_t = LatentOptions::default().first_rate)]
    fast_learning_rate: f64,
    /// The learning rate of latents at its last step.
    #[arg(long, default_value_t = LatentOptions::default().last_rate)]
    fast_learning_rate_last: f64,
    /// Logarithm of the variance at which a posterior begins; the prior's is 0.
    #[arg(long, default_value_t = LatentOptions::default().initial_log_variance, allow_negative_numbers = true)]
    initial_log_variance: f64,
    /// Share of the run in which the KL divergence comes to count in learning latents; 5 ends the run where it counts a fifth.
    #[arg(long, default_value_t = LatentOptions::default().kl_warm_up)]
    kl_warm_up: f64,
    /// Share of the texts whose latents are learned from their prompt or their beginning alone.
    #[arg(long, default_value_t = LatentOptions::default().prefix_share)]
    prefix_share: f64,
    /// What passes compute from and keep: bf16 takes less memory and, on a CPU, more time.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceKind::Cpu)]
    device: DeviceKind,
    /// Threads that prepare data ahead; with 0 each step prepares its own.
    #[arg(long, default_value_t = 1)]
    loader_threads: usize,
    /// Save memory: keep only what enters each group of so many layers, and compute the rest again.
    #[arg(long)]
    recompute: Option<usize>,
    /// Choose the tokens of a part so that training takes about this much memory, such as 2GiB.
    #[arg(long, value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Seconds between two checkpoints.
    #[arg(long, default_value_t = 120)]
    checkpoint_seconds: u64,
    /// Steps between two progress lines.
    #[arg(long, default_value_t = 50)]
    report_steps: u64,
    /// Steps between two measurements on held-out text; 0 for never.
    #[arg(long, default_value_t = 500)]
    evaluate_steps: u64,
}

/// Reads a command line whose command `train` may name a configuration file: its keys come before the flags, which may
/// say otherwise.
pub fn parse<P: Parser>(
    command_line: Vec<OsString>,
    train: impl Fn(&P) -> Option<&Arguments>,
) -> Result<P> {
    let parsed = P::parse_from(&command_line);
    let Some(path) = train(&parsed).and_then(|arguments| arguments.config.as_deref()) else {
        return Ok(parsed);
    };
    let program = P::command();
    let command = program
        .find_subcommand("train")
        .context("there is a command train")?;
    let keys = config_file::arguments(path, command)?;
    let place = command_line.iter().position(|word| word == "train");
    let place = place.context("the command line says train")? + 1;
    let mut all = command_line;
    all.splice(place..place, keys);
    Ok(P::parse_from(all))
}

/// Trains.
pub fn run(arguments: Arguments, threads: usize) -> Result<()> {
    let output = arguments.output.clone().context("--output is missing")?;
    std::fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
    let shape = arguments
        .from
        .as_deref()
        .map(export::read_config)
        .transpose()?;
    let kind = arguments.kind(shape.as_ref())?;
    let vocabulary = arguments.vocabulary(&output)?;
    ensure!(
        kind != Kind::Llada || vocabulary.has_mask(),
        "the tokenizer has no mask token, without which a masked diffusion model can't be trained"
    );
    let config = arguments.shape(kind, shape, &vocabulary);
    config.check()?;
    let length_max = arguments.sequence_length.min(config.length_max());
    let text = arguments.text.as_ref().map(|path| {
        let options = TextOptions {
            path: path.clone(),
            held_out_share: arguments.held_out_share,
        };
        TokenFile::open(&output, &options, &vocabulary, length_max)
    });
    let text = text.transpose()?;
    println!(
        "{} tokens, {:.2} M parameters",
        vocabulary.len(),
        config.parameters() as f64 / 1e6
    );
    if let Some(text) = &text {
        let facts = text.facts();
        println!(
            "{} tokens of text to train on; the last {} are held out",
            facts.training_tokens(),
            facts.held_out_tokens
        );
    }
    let options = TrainOptions {
        batch: BatchOptions {
            text: text.as_ref().map(|text| *text.facts()),
            seed: arguments.seed,
            objective: kind.objective(),
            parts: arguments.parts,
            part_tokens: arguments.part_tokens,
            length_max,
            length_warm_up_steps: arguments.length_warm_up_steps,
            exercise_steps: arguments.exercise_steps,
        },
        steps: match arguments.seconds {
            Some(_) => u64::MAX,
            None => arguments.steps,
        },
        seconds: arguments.seconds,
        quantization: arguments.quantize.map(|level| QuantizationOptions {
            level,
            share: arguments.quantize_share,
            task_weight: arguments.task_weight,
            kl_weight: arguments.kl_weight,
        }),
        latent: (kind == Kind::LatentThought).then_some(LatentOptions {
            steps: arguments.fast_steps,
            first_rate: arguments.fast_learning_rate,
            last_rate: arguments.fast_learning_rate_last,
            initial_log_variance: arguments.initial_log_variance,
            kl_warm_up: arguments.kl_warm_up,
            prefix_share: arguments.prefix_share,
        }),
        optimizer: OptimizerOptions {
            weight_decay: arguments.weight_decay,
            second_decay: arguments.second_decay,
            ..OptimizerOptions::default()
        },
        precision: arguments.precision,
        learning_rate: arguments.learning_rate,
        warm_up_steps: arguments.warm_up_steps,
        threads,
        loader_threads: arguments.loader_threads,
        recompute_interval: arguments.recompute,
        memory_limit_bytes: arguments.memory,
        checkpoint_interval: Duration::from_secs(arguments.checkpoint_seconds),
        report_steps: arguments.report_steps,
        evaluate_steps: arguments.evaluate_steps,
        from: arguments.from,
        output,
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("listen for signals")?;
    }
    let device = arguments.device.open()?;
    Trainer::open(options, Data { vocabulary, text }, config, &device)?.run(&stop)
}

impl Arguments {
    /// The kind of network: that of the model to begin with, the one asked for, or the usual one of the objective.
    fn kind(&self, from: Option<&ModelConfig>) -> Result<Kind> {
        let autoregressive = self.objective == Some(Objective::Autoregressive);
        let kind = match (from.map(Kind::of), self.model) {
            (Some(found), Some(asked)) if found != asked => {
                bail!("the model to begin with is of kind {found:?}, not {asked:?}")
            }
            (Some(kind), _) | (None, Some(kind)) => kind,
            (None, None) if autoregressive => Kind::Llama,
            (None, None) if self.objective == Some(Objective::Latent) => Kind::LatentThought,
            (None, None) => Kind::Llada,
        };
        if let Some(objective) = self.objective {
            ensure!(
                objective == kind.objective(),
                "a network of kind {kind:?} is not trained for the objective {objective:?}"
            );
        }
        Ok(kind)
    }

    /// The tokenizer: that of the output folder, of one's own, of the model to begin with, or a new one.
    fn vocabulary(&self, output: &Path) -> Result<Vocabulary> {
        let path = output.join(export::TOKENIZER_NAME);
        if path.exists() {
            return Vocabulary::load(&path);
        }
        let size = self.vocabulary.unwrap_or(VOCABULARY);
        let vocabulary = match (&self.tokenizer, &self.from, &self.text) {
            (Some(own), ..) => Vocabulary::load(own)?,
            (None, Some(folder), _) if self.vocabulary.is_none() => {
                Vocabulary::load(&folder.join(export::TOKENIZER_NAME))?
            }
            (None, _, Some(text)) => Vocabulary::learn(Chunks::open(text)?, size)?,
            (None, _, None) => Vocabulary::train(self.seed, size, TRAINING_SAMPLES)?,
        };
        vocabulary.save(&path)?;
        Ok(vocabulary)
    }

    fn shape(&self, kind: Kind, from: Option<ModelConfig>, vocabulary: &Vocabulary) -> ModelConfig {
        // Padded to a multiple of 256 rows, which block formats can divide.
        let rows = vocabulary.len().next_multiple_of(256);
        if let Some(shape) = from {
            return shape.with_vocab_size(rows);
        }
        match kind {
            Kind::Llada | Kind::Llama => TransformerConfig {
                d_model: self.width,
                n_heads: self.heads,
                n_layers: self.layers,
                mlp_hidden_size: self.mlp.unwrap_or(2 * self.width),
                max_sequence_length: self.sequence_length,
                causal: kind == Kind::Llama,
                ..TransformerConfig::demonstration(rows)
            }
            .into(),
            Kind::Rwkv7 => Rwkv7Config {
                max_position_embeddings: self.sequence_length,
                ..Rwkv7Config::new(
                    self.width,
                    self.layers,
                    self.mlp.unwrap_or(4 * self.width),
                    rows,
                )
            }
            .into(),
            Kind::LatentThought => LatentThoughtConfig {
                dim: self.width,
                n_layers: self.layers,
                n_heads: self.heads,
                hidden_dim: Some(self.mlp.unwrap_or(2 * self.width)),
                multiple_of: 32,
                vocab_size: rows,
                max_seq_len: self.sequence_length,
                max_z_len: self.layers * self.latents_per_layer,
                window_size: self.window,
                norm_eps: 1e-5,
                rope_theta: 10_000.0,
            }
            .into(),
        }
    }
}
