//! The training loop: take a batch, compute its parts side by side, move the weights, say how it goes, and leave a
//! checkpoint that a later run picks up.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use candle_core::Device;

use crate::{
    batch::{Batch, BatchOptions},
    checkpoint::{self, Progress, State},
    config::ModelConfig,
    export,
    gradient::{self, Distillation},
    judge::fingerprint,
    likelihood::{self, LikelihoodOptions},
    loader::Loader,
    log::{Entry, Log},
    model::Model,
    optimizer::{Optimizer, OptimizerOptions},
    parallel,
    quantization::{QuantizationOptions, Rounding},
    schedule::{self, Phase},
    vocabulary::Vocabulary,
};

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// Where tokenizer, checkpoint and log live.
    pub output: PathBuf,
    /// Data: seed, objective, size of a step.
    pub batch: BatchOptions,
    /// The step the learning rate falls towards.
    pub steps: u64,
    /// Time in steps, in seconds, towards which the learning rate falls instead.
    pub seconds: Option<u64>,
    /// The folder of an exported model to begin with, instead of random weights.
    pub from: Option<PathBuf>,
    /// How the last part of the run computes with rounded weights, if it does.
    pub quantization: Option<QuantizationOptions>,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Steps until the learning rate is highest.
    pub warm_up_steps: u64,
    /// Threads that compute parts.
    pub threads: usize,
    /// Threads that draw batches ahead; without any, a step draws its own.
    pub loader_threads: usize,
    /// Blocks in a group of gradient checkpointing; without it, every intermediate result is kept.
    pub recompute_interval: Option<usize>,
    /// Time between two checkpoints.
    pub checkpoint_interval: Duration,
    /// Steps between two progress lines.
    pub report_steps: u64,
    /// Steps between two measurements on the held-out half; 0 for never.
    pub evaluate_steps: u64,
}

/// Measured during training: few samples, since only the trend matters.
const EVALUATION: LikelihoodOptions = LikelihoodOptions {
    samples: 64,
    draws: 4,
    seed: 1,
    threads: 1,
};

/// A run between two steps.
pub struct Trainer {
    /// All that a checkpoint holds.
    pub state: State,
    /// The rounding of the last part of the run, if it has one.
    rounding: Option<Rounding>,
    vocabulary: Arc<Vocabulary>,
    loader: Loader,
    log: Log,
    options: TrainOptions,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// The loss before the step.
    pub loss: f64,
    /// Norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// Tokens of the batch.
    pub tokens: u64,
    /// Time spent waiting for the batch.
    pub data_wait: Duration,
}

/// Sums since the last progress line.
#[derive(Default)]
struct Window {
    steps: f64,
    loss: f64,
    gradient_norm: f64,
    tokens: u64,
    data_wait: Duration,
}

impl Window {
    fn add(&mut self, step: &StepReport) {
        self.steps += 1.0;
        self.loss += step.loss;
        self.gradient_norm += step.gradient_norm;
        self.tokens += step.tokens;
        self.data_wait += step.data_wait;
    }
}

impl Trainer {
    /// Picks up the checkpoint of the output folder, or starts afresh with the given shape.
    pub fn open(
        options: TrainOptions,
        vocabulary: Vocabulary,
        config: impl Into<ModelConfig>,
        device: &Device,
    ) -> Result<Self> {
        let batch = &options.batch;
        let fresh = Progress {
            config: config.into(),
            batch: *batch,
            learning_rate: options.learning_rate,
            warm_up_steps: options.warm_up_steps,
            steps_planned: options.steps,
            step: 0,
            tokens: 0,
            train_seconds: 0.0,
            seconds_planned: options.seconds,
            began_with: options.from.as_deref().map(fingerprint).transpose()?,
            quantization: options.quantization,
        };
        let rounding = match options.quantization {
            Some(QuantizationOptions { level, share, .. }) => {
                ensure!(
                    share > 0.0 && share <= 1.0,
                    "the share of the run with rounded weights must be above 0 and at most 1, not {share}"
                );
                Some(Rounding::new(level, &fresh.config)?)
            }
            None => None,
        };
        let state = if let Some(state) = checkpoint::load(&options.output, device)? {
            // Everything but the progress itself must be equal: resuming with other data or another schedule would
            // give a model that no command reproduces.
            let found = &state.progress;
            let same = Progress {
                step: found.step,
                tokens: found.tokens,
                train_seconds: found.train_seconds,
                ..fresh
            };
            ensure!(
                *found == same,
                "the checkpoint belongs to a run with other settings: {found:?}"
            );
            state
        } else {
            let model = if let Some(folder) = &options.from {
                export::read(folder, &fresh.config, &vocabulary, device)?
            } else {
                Model::random(fresh.config.clone(), batch.seed, vocabulary.mask_id, device)?
            };
            let optimizer = Optimizer::new(OptimizerOptions::default(), model.variables())?;
            State {
                model,
                optimizer,
                teacher: None,
                progress: fresh,
            }
        };
        let vocabulary = Arc::new(vocabulary);
        let loader = Loader::new(
            *batch,
            Arc::clone(&vocabulary),
            state.progress.step,
            options.loader_threads,
        )?;
        Ok(Self {
            log: Log::open(&options.output, state.progress.step)?,
            state,
            rounding,
            vocabulary,
            loader,
            options,
        })
    }

    /// Takes one step.
    pub fn step(&mut self) -> Result<StepReport> {
        let started = Instant::now();
        let batch = self.loader.draw()?;
        let data_wait = started.elapsed();
        let (loss, gradients) = self.gradients(&batch)?;
        let State {
            model,
            optimizer,
            progress,
            ..
        } = &mut self.state;
        // Checked before the step: a NaN would spread to all weights, and to the next checkpoint.
        ensure!(
            loss.is_finite(),
            "the loss is no longer a number at step {}",
            progress.step
        );
        let rate = schedule::learning_rate(progress);
        let gradient_norm = optimizer.step(&model.config, model.variables(), &gradients, rate)?;
        let tokens = batch.tokens() as u64;
        progress.step += 1;
        progress.tokens += tokens;
        progress.train_seconds += started.elapsed().as_secs_f64();
        Ok(StepReport {
            loss,
            gradient_norm,
            tokens,
            data_wait,
        })
    }

    /// The loss of a batch and its gradients for the weights in full precision.
    fn gradients(&mut self, batch: &Batch) -> Result<(f64, Vec<Vec<f32>>)> {
        let State {
            model,
            optimizer,
            teacher,
            progress,
        } = &mut self.state;
        let (Some(quantization), Some(rounding), Phase::Quantized(_)) = (
            &self.options.quantization,
            &self.rounding,
            schedule::phase(progress),
        ) else {
            return self.sums(&self.state.model, None, batch);
        };
        if teacher.is_none() {
            // The averaged weights, which are better than the last step's, and those of the model that a run began with.
            *teacher = Some(optimizer.averaged(model)?);
        }
        let teacher = self.state.teacher.as_ref();
        let distillation = Distillation {
            teacher: teacher.context("there is a teacher as of the first rounded step")?,
            task_weight: quantization.task_weight,
            kl_weight: quantization.kl_weight,
        };
        let rounded = rounding.apply(&self.state.model, self.options.threads)?;
        // The gradients for the rounded weights are taken for those of the weights they were rounded from.
        self.sums(&rounded, Some(&distillation), batch)
    }

    /// The sums over all parts, always added in the same order, so that the number of threads changes nothing.
    fn sums(
        &self,
        model: &Model,
        distillation: Option<&Distillation<'_>>,
        batch: &Batch,
    ) -> Result<(f64, Vec<Vec<f32>>)> {
        let interval = self.options.recompute_interval;
        let parts = parallel::map(self.options.threads, &batch.parts, |part| {
            gradient::gradients(model, part, (&part.pack).into(), distillation, interval)
        })?;
        parts
            .into_iter()
            .reduce(|(loss, mut sums), (more, gradients)| {
                for (sum, gradient) in sums.iter_mut().zip(gradients) {
                    sum.iter_mut()
                        .zip(gradient)
                        .for_each(|(sum, value)| *sum += value);
                }
                (loss + more, sums)
            })
            .context("a step needs at least one part")
    }

    /// Trains to the planned step or until asked to stop; both leave a checkpoint.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        self.run_until(self.options.steps, stop)
    }

    /// Trains to an earlier step than planned.
    pub fn run_until(&mut self, last: u64, stop: &AtomicBool) -> Result<()> {
        let mut saved = Instant::now();
        let mut reported = Instant::now();
        let mut window = Window::default();
        while self.state.progress.step < last
            && schedule::done(&self.state.progress) < 1.0
            && !stop.load(Ordering::Relaxed)
        {
            window.add(&self.step()?);
            let step = self.state.progress.step;
            if step.is_multiple_of(self.options.report_steps) {
                self.report(&std::mem::take(&mut window), reported.elapsed())?;
                reported = Instant::now();
            }
            if saved.elapsed() >= self.options.checkpoint_interval {
                self.save()?;
                saved = Instant::now();
            }
        }
        self.save()
    }

    /// Writes the checkpoint.
    pub fn save(&self) -> Result<()> {
        checkpoint::save(&self.options.output, &self.state).context("save checkpoint")
    }

    fn report(&mut self, window: &Window, elapsed: Duration) -> Result<()> {
        let progress = &self.state.progress;
        let interval = self.options.evaluate_steps;
        let (mut held_out, mut held_out_rounded) = (None, None);
        if interval > 0 && progress.step.is_multiple_of(interval) {
            let options = LikelihoodOptions {
                threads: self.options.threads,
                ..EVALUATION
            };
            let nats = |model: &Model| {
                likelihood::negative_log_likelihood(model, &self.vocabulary, &options)
            };
            // With the averaged weights, which are the ones that get exported.
            let model = self.state.optimizer.averaged(&self.state.model)?;
            held_out = Some(nats(&model)?);
            if let Some(rounding) = &self.rounding {
                held_out_rounded = Some(nats(&rounding.apply(&model, self.options.threads)?)?);
            }
        }
        let entry = Entry {
            step: progress.step,
            tokens: progress.tokens,
            loss: window.loss / window.steps,
            held_out,
            held_out_rounded,
            gradient_norm: window.gradient_norm / window.steps,
            learning_rate: schedule::learning_rate(progress),
            tokens_per_second: window.tokens as f64 / elapsed.as_secs_f64(),
            data_wait: window.data_wait.as_secs_f64() / elapsed.as_secs_f64(),
            train_seconds: progress.train_seconds,
        };
        self.log.write(&entry)?;
        let (planned, seconds_left) = match self.options.seconds {
            Some(seconds) => {
                let left = seconds as f64 - progress.train_seconds;
                (format!("of {seconds} s"), left)
            }
            None => {
                let left = self.options.steps.saturating_sub(progress.step) as f64;
                let seconds = left * elapsed.as_secs_f64() / window.steps;
                (format!("of {}", self.options.steps), seconds)
            }
        };
        let held_out = entry
            .held_out
            .map(|nats| format!("  held-out {nats:.3}"))
            .unwrap_or_default();
        let rounded = entry
            .held_out_rounded
            .map(|nats| format!("  rounded {nats:.3}"))
            .unwrap_or_default();
        println!(
            "step {} {planned}  loss {:.3}{held_out}{rounded}  norm {:.2}  rate {:.5}  {:.0} tokens/s  {:.2} M tokens  {:.0} min left",
            entry.step,
            entry.loss,
            entry.gradient_norm,
            entry.learning_rate,
            entry.tokens_per_second,
            entry.tokens as f64 / 1e6,
            seconds_left / 60.0,
        );
        Ok(())
    }
}
