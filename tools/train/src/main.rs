//! `sluice-train`: trains the demonstration model and writes it as a Hugging Face folder.

use std::{
    env,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use clap::{Args, Parser, Subcommand};
use sluice_shared::level::Level;
use sluice_train::{
    batch::BatchOptions,
    card, checkpoint,
    config::TransformerConfig,
    corpus::{self, Split},
    device::DeviceKind,
    export, judge, likelihood,
    objective::Objective,
    quantization::QuantizationOptions,
    trainer::{TrainOptions, Trainer},
    vocabulary::{TRAINING_SAMPLES, Vocabulary},
};

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// Threads to compute with; all cores if left out.
    #[arg(long, global = true)]
    threads: Option<usize>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train, or go on training where the checkpoint in the output folder ends.
    Train(TrainArguments),
    /// Write the model of a checkpoint as a Hugging Face folder.
    Export {
        /// The folder that training wrote to.
        #[arg(long)]
        checkpoint: PathBuf,
        /// The folder to write.
        #[arg(long)]
        output: PathBuf,
    },
    /// Measure how likely the held-out half of the language is to a model, and what a level loses of it.
    Likelihood(likelihood::command::Arguments),
    /// Answer held-out requests with the engine and judge the answers.
    Judge(judge::command::Arguments),
    /// Write the model card of an exported and judged model, with its pictures.
    Card(card::command::Arguments),
    /// Print samples of the training text.
    Corpus {
        /// The seed of the text.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// From the half that training never sees.
        #[arg(long)]
        held_out: bool,
        /// How many.
        #[arg(default_value_t = 10)]
        count: u64,
    },
}

/// Entries of the demonstration model's tokenizer.
const VOCABULARY: usize = 1280;

#[derive(Args)]
struct TrainArguments {
    /// Where tokenizer, checkpoint and log live.
    #[arg(long)]
    output: PathBuf,
    /// The seed of text, tokenizer, masks and initial weights.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What the network is trained for.
    #[arg(long, value_enum, default_value_t = Objective::Diffusion)]
    objective: Objective,
    /// The folder of an exported model to train on, with its shape and, unless the size of another is given, its tokenizer; a fresh
    /// optimizer.
    #[arg(long, conflicts_with_all = ["layers", "width", "mlp", "heads"])]
    from: Option<PathBuf>,
    /// Steps in all; the learning rate falls towards the last.
    #[arg(long, default_value_t = 16000)]
    steps: u64,
    /// Seconds in steps after which the run ends, and towards which the learning rate falls, instead of a number of
    /// steps. What comes out then depends on how fast the machine is.
    #[arg(long, conflicts_with = "steps")]
    seconds: Option<u64>,
    /// Parts of a step, each computed by one thread.
    #[arg(long, default_value_t = 2)]
    parts: usize,
    /// Tokens from which on a part is full.
    #[arg(long, default_value_t = 1536)]
    part_tokens: usize,
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
    /// The highest learning rate.
    #[arg(long, default_value_t = 0.001)]
    learning_rate: f64,
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
    /// Blocks of the network.
    #[arg(long, default_value_t = 5)]
    layers: usize,
    /// Width of the network, a multiple of 256.
    #[arg(long, default_value_t = 256)]
    width: usize,
    /// Width inside the gated layers, a multiple of 256.
    #[arg(long, default_value_t = 512)]
    mlp: usize,
    /// Attention heads.
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceKind::Cpu)]
    device: DeviceKind,
    /// Threads that prepare data ahead; with 0 each step prepares its own.
    #[arg(long, default_value_t = 1)]
    loader_threads: usize,
    /// Save memory: keep only what enters each group of so many blocks, and compute the rest again.
    #[arg(long)]
    recompute: Option<usize>,
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

fn main() -> Result<()> {
    leave_threads_to_parts();
    keep_freed_memory();
    let arguments = Arguments::parse();
    let threads = match arguments.threads {
        Some(threads) => threads.max(1),
        None => thread::available_parallelism()
            .context("count cores")?
            .get(),
    };
    match arguments.command {
        Command::Train(arguments) => train(arguments, threads),
        Command::Export { checkpoint, output } => {
            let state = checkpoint::load(&checkpoint, &Device::Cpu)?;
            let state = state.context("there is no checkpoint yet")?;
            export::export(
                &output,
                &state.trained_model(threads)?,
                &Vocabulary::load(&tokenizer_path(&checkpoint))?,
            )
        }
        Command::Likelihood(arguments) => likelihood::command::run(&arguments, threads),
        Command::Judge(arguments) => judge::command::run(&arguments, threads),
        Command::Card(arguments) => card::command::run(&arguments, threads),
        Command::Corpus {
            seed,
            held_out,
            count,
        } => {
            let split = if held_out {
                Split::HeldOut
            } else {
                Split::Train
            };
            for number in 0..count {
                let sample = corpus::sample(split, seed, number);
                for message in sample.messages {
                    println!("{}> {}", message.role.name(), message.content);
                }
                println!("{}\n", sample.answer);
            }
            Ok(())
        }
    }
}

/// Each part of a step is computed by one thread; candle's own pool would only spin beside it. An environment variable
/// is the only way to configure candle.
#[expect(
    clippy::disallowed_methods,
    reason = "nothing else reads the environment yet"
)]
fn leave_threads_to_parts() {
    // SAFETY: no other thread runs yet.
    unsafe { env::set_var("CANDLE_NUM_THREADS", "1") };
}

/// Every step asks for the same large buffers again. Left alone, glibc gives each back to the system at once and fetches
/// it anew, which costs a tenth of the time in page faults.
fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: these calls only set parameters of the allocator.
    // Buffers come from the heap instead of mappings, and the heap is not trimmed between steps; two arenas, since few
    // threads allocate.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_TOP_PAD, 64 << 20);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

fn train(arguments: TrainArguments, threads: usize) -> Result<()> {
    let output = arguments.output;
    std::fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
    let tokenizer = tokenizer_path(&output);
    let vocabulary = if tokenizer.exists() {
        Vocabulary::load(&tokenizer)?
    } else if let (Some(folder), None) = (&arguments.from, arguments.vocabulary) {
        let vocabulary = Vocabulary::load(&tokenizer_path(folder))?;
        vocabulary.save(&tokenizer)?;
        vocabulary
    } else {
        let vocabulary = Vocabulary::train(
            arguments.seed,
            arguments.vocabulary.unwrap_or(VOCABULARY),
            TRAINING_SAMPLES,
        )?;
        vocabulary.save(&tokenizer)?;
        vocabulary
    };
    // Padded to a multiple of 256 rows, which block formats can divide.
    let rows = vocabulary.len().next_multiple_of(256);
    let config = if let Some(folder) = &arguments.from {
        export::read_config(folder)?.with_vocab_size(rows)
    } else {
        TransformerConfig {
            d_model: arguments.width,
            n_heads: arguments.heads,
            n_layers: arguments.layers,
            mlp_hidden_size: arguments.mlp,
            causal: arguments.objective == Objective::Autoregressive,
            ..TransformerConfig::demonstration(rows)
        }
        .into()
    };
    ensure!(
        config.causal() == (arguments.objective == Objective::Autoregressive),
        "a network for another objective"
    );
    println!(
        "{} tokens, {:.2} M parameters",
        vocabulary.len(),
        config.parameters() as f64 / 1e6
    );
    let options = TrainOptions {
        output,
        batch: BatchOptions {
            seed: arguments.seed,
            objective: arguments.objective,
            parts: arguments.parts,
            part_tokens: arguments.part_tokens,
            length_max: config.length_max(),
            length_warm_up_steps: arguments.length_warm_up_steps,
            exercise_steps: arguments.exercise_steps,
        },
        steps: match arguments.seconds {
            Some(_) => u64::MAX,
            None => arguments.steps,
        },
        seconds: arguments.seconds,
        from: arguments.from,
        quantization: arguments.quantize.map(|level| QuantizationOptions {
            level,
            share: arguments.quantize_share,
            task_weight: arguments.task_weight,
            kl_weight: arguments.kl_weight,
        }),
        learning_rate: arguments.learning_rate,
        warm_up_steps: arguments.warm_up_steps,
        threads,
        loader_threads: arguments.loader_threads,
        recompute_interval: arguments.recompute,
        checkpoint_interval: Duration::from_secs(arguments.checkpoint_seconds),
        report_steps: arguments.report_steps,
        evaluate_steps: arguments.evaluate_steps,
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("listen for signals")?;
    }
    let device = arguments.device.open()?;
    Trainer::open(options, vocabulary, config, &device)?.run(&stop)
}

fn tokenizer_path(folder: &Path) -> PathBuf {
    folder.join(export::TOKENIZER_NAME)
}
