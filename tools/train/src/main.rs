//! `sluice-train`: trains small language models and writes them as Hugging Face folders.

use std::{
    env,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result};
use candle_core::Device;
use clap::{Parser, Subcommand};
use sluice_train::{
    card, checkpoint,
    corpus::{self, Split},
    export, judge, likelihood_command, posteriors_command, prior, training_command,
    vocabulary::Vocabulary,
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
    #[command(args_override_self = true)]
    Train(Box<training_command::Arguments>),
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
    Likelihood(likelihood_command::Arguments),
    /// Store the posteriors of training texts of a latent thought model.
    Posteriors(posteriors_command::Arguments),
    /// Train a prior of latents on stored posteriors, and put it into the folder of their model.
    Prior(prior::command::Arguments),
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

fn main() -> Result<()> {
    leave_threads_to_parts();
    keep_freed_memory();
    let arguments =
        training_command::parse(
            env::args_os().collect(),
            |arguments: &Arguments| match &arguments.command {
                Command::Train(arguments) => Some(arguments),
                _ => None,
            },
        )?;
    let threads = match arguments.threads {
        Some(threads) => threads.max(1),
        None => thread::available_parallelism()
            .context("count cores")?
            .get(),
    };
    match arguments.command {
        Command::Train(arguments) => training_command::run(*arguments, threads),
        Command::Export { checkpoint, output } => {
            let state = checkpoint::load(&checkpoint, &Device::Cpu)?;
            let state = state.context("there is no checkpoint yet")?;
            export::export(
                &output,
                &state.trained_model(threads)?,
                &Vocabulary::load(&tokenizer_path(&checkpoint))?,
                state.progress.latent.as_ref(),
            )
        }
        Command::Likelihood(arguments) => likelihood_command::run(&arguments, threads),
        Command::Posteriors(arguments) => posteriors_command::run(&arguments, threads),
        Command::Prior(arguments) => prior::command::run(&arguments, threads),
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

fn tokenizer_path(folder: &Path) -> PathBuf {
    folder.join(export::TOKENIZER_NAME)
}
