//! `sluice-train`: trains the demonstration model and writes it as a Hugging Face folder.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use sluice_train::{
    checkpoint,
    config::ModelConfig,
    corpus, export,
    sampler::{self, SampleOptions},
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
    /// Let the model of a checkpoint answer.
    Sample {
        /// The folder that training wrote to.
        #[arg(long)]
        checkpoint: PathBuf,
        /// Positions to fill.
        #[arg(long, default_value_t = 128)]
        length: usize,
        /// Positions decoded together.
        #[arg(long, default_value_t = 32)]
        block_length: usize,
        /// Passes over the whole answer.
        #[arg(long, default_value_t = 128)]
        steps: usize,
        /// What to ask.
        #[arg(required = true)]
        questions: Vec<String>,
    },
    /// Print samples of the training text.
    Corpus {
        /// The seed of the text.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many.
        #[arg(default_value_t = 10)]
        count: u64,
    },
}

#[derive(Args)]
struct TrainArguments {
    /// Where tokenizer and checkpoint live.
    #[arg(long)]
    output: PathBuf,
    /// The seed of text, tokenizer, masks and initial weights.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Steps in all; the learning rate falls towards the last. A resumed run may change it.
    #[arg(long, default_value_t = 6000)]
    steps: u64,
    /// Rows in a batch.
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// The highest learning rate.
    #[arg(long, default_value_t = 0.0015)]
    learning_rate: f64,
    /// Entries of the tokenizer, special tokens included.
    #[arg(long, default_value_t = 1024)]
    vocabulary: usize,
    /// Seconds between two checkpoints.
    #[arg(long, default_value_t = 120)]
    checkpoint_seconds: u64,
    /// Steps between two progress lines.
    #[arg(long, default_value_t = 50)]
    report_steps: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(threads) = arguments.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build_global()
            .context("start threads")?;
    }
    match arguments.command {
        Command::Train(arguments) => train(arguments),
        Command::Export { checkpoint, output } => {
            let (model, _, progress) =
                checkpoint::load(&checkpoint)?.context("there is no checkpoint yet")?;
            export::export(
                &output,
                &model,
                &Vocabulary::load(&tokenizer_path(&checkpoint))?,
                &progress,
            )
        }
        Command::Sample {
            checkpoint,
            length,
            block_length,
            steps,
            questions,
        } => {
            let (model, _, progress) =
                checkpoint::load(&checkpoint)?.context("there is no checkpoint yet")?;
            let vocabulary = Vocabulary::load(&tokenizer_path(&checkpoint))?;
            println!("step {}, loss {:.3}", progress.step, progress.loss);
            let options = SampleOptions {
                length,
                block_length,
                steps,
            };
            for question in questions {
                let answer = sampler::answer(&model, &vocabulary, &question, &options)?;
                println!("\n> {question}\n{answer}");
            }
            Ok(())
        }
        Command::Corpus { seed, count } => {
            for number in 0..count {
                let sample = corpus::sample(seed, number);
                println!("> {}\n{}\n", sample.question, sample.answer);
            }
            Ok(())
        }
    }
}

fn train(arguments: TrainArguments) -> Result<()> {
    let output = arguments.output;
    std::fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
    let tokenizer = tokenizer_path(&output);
    let vocabulary = if tokenizer.exists() {
        Vocabulary::load(&tokenizer)?
    } else {
        let vocabulary = Vocabulary::train(arguments.seed, arguments.vocabulary, TRAINING_SAMPLES)?;
        vocabulary.save(&tokenizer)?;
        vocabulary
    };
    let config = ModelConfig::demonstration(vocabulary.len().next_multiple_of(256));
    println!(
        "{} tokens, {:.2} M parameters",
        vocabulary.len(),
        config.parameters() as f64 / 1e6
    );
    let options = TrainOptions {
        output,
        seed: arguments.seed,
        steps: arguments.steps,
        rows: arguments.batch,
        learning_rate: arguments.learning_rate,
        warm_up_steps: 200,
        checkpoint_interval: Duration::from_secs(arguments.checkpoint_seconds),
        report_steps: arguments.report_steps,
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("listen for signals")?;
    }
    Trainer::open(options, vocabulary, config)?.run(&stop)
}

fn tokenizer_path(folder: &std::path::Path) -> PathBuf {
    folder.join("tokenizer.json")
}
