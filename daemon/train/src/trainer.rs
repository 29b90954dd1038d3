//! The training loop: draw a batch, take a step, say how it goes, and leave a checkpoint that a later run picks up.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    batch::Batches,
    checkpoint::{self, Progress},
    config::ModelConfig,
    model::Model,
    ops,
    optimizer::{Optimizer, OptimizerOptions},
    vocabulary::Vocabulary,
};

/// What a run is told.
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// Where tokenizer and checkpoint live.
    pub output: PathBuf,
    /// The seed of everything.
    pub seed: u64,
    /// The step the learning rate falls towards; a resumed run may change it.
    pub steps: u64,
    /// Rows in a batch.
    pub rows: usize,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Steps until the learning rate is highest.
    pub warm_up_steps: u64,
    /// Time between two checkpoints.
    pub checkpoint_interval: Duration,
    /// Steps between two progress lines.
    pub report_steps: u64,
}

/// A run between two steps.
pub struct Trainer {
    /// The network being trained.
    pub model: Model,
    /// Its optimizer.
    pub optimizer: Optimizer,
    /// How far the run got.
    pub progress: Progress,
    vocabulary: Vocabulary,
    batches: Batches,
    options: TrainOptions,
}

impl Trainer {
    /// Picks up the checkpoint of the output folder, or starts afresh with the given shape.
    pub fn open(
        options: TrainOptions,
        vocabulary: Vocabulary,
        config: ModelConfig,
    ) -> Result<Self> {
        let (model, optimizer, mut progress) =
            if let Some(found) = checkpoint::load(&options.output)? {
                found
            } else {
                let model = Model::random(config.clone(), options.seed)?;
                let optimizer = Optimizer::new(OptimizerOptions::default(), model.variables());
                let progress = Progress {
                    config,
                    seed: options.seed,
                    rows: options.rows,
                    step: 0,
                    steps_planned: options.steps,
                    tokens: 0,
                    loss: f64::NAN,
                    train_seconds: 0.0,
                };
                (model, optimizer, progress)
            };
        ensure!(
            progress.seed == options.seed && progress.rows == options.rows,
            "the checkpoint was made with seed {} and {} rows",
            progress.seed,
            progress.rows
        );
        progress.steps_planned = options.steps;
        Ok(Self {
            model,
            optimizer,
            progress,
            vocabulary,
            batches: Batches::new(options.seed, options.rows),
            options,
        })
    }

    /// Takes one step and returns its loss.
    pub fn step(&mut self) -> Result<f64> {
        let started = Instant::now();
        let rate = learning_rate(&self.options, self.progress.step);
        let batch = self.batches.draw(&self.vocabulary, self.progress.step)?;
        let logits = self
            .model
            .logits(&batch.ids, batch.length, &batch.positions)?;
        let loss = ops::cross_entropy(&logits, batch.targets, batch.weights)?;
        let gradients = loss.backward()?;
        self.optimizer
            .step(self.model.variables(), &gradients, rate)?;

        let loss = f64::from(loss.to_scalar::<f32>()?);
        ensure!(
            loss.is_finite(),
            "the loss is no longer a number at step {}",
            self.progress.step
        );
        let progress = &mut self.progress;
        progress.loss = if progress.step == 0 {
            loss
        } else {
            0.99 * progress.loss + 0.01 * loss
        };
        progress.step += 1;
        progress.tokens += batch.ids.len() as u64;
        progress.train_seconds += started.elapsed().as_secs_f64();
        Ok(loss)
    }

    /// Trains to the planned step or until asked to stop; both leave a checkpoint.
    pub fn run(&mut self, stop: &Arc<AtomicBool>) -> Result<()> {
        let mut saved = Instant::now();
        let mut reported = (Instant::now(), self.progress.clone());
        while self.progress.step < self.options.steps && !stop.load(Ordering::Relaxed) {
            let loss = self.step()?;
            if self.progress.step.is_multiple_of(self.options.report_steps) {
                self.report(loss, &reported.1, reported.0.elapsed());
                reported = (Instant::now(), self.progress.clone());
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
        checkpoint::save(
            &self.options.output,
            &self.model,
            &self.optimizer,
            &self.progress,
        )
        .context("save checkpoint")
    }

    fn report(&self, loss: f64, before: &Progress, elapsed: Duration) {
        let progress = &self.progress;
        let seconds = elapsed.as_secs_f64();
        let steps_left = self.options.steps.saturating_sub(progress.step);
        let steps = (progress.step - before.step) as f64;
        println!(
            "step {} of {}  loss {:.3} (now {loss:.3})  rate {:.5}  {:.0} tokens/s  {:.1} M tokens  {:.0} min left",
            progress.step,
            self.options.steps,
            progress.loss,
            learning_rate(&self.options, progress.step),
            (progress.tokens - before.tokens) as f64 / seconds,
            progress.tokens as f64 / 1e6,
            steps_left as f64 * seconds / steps / 60.0,
        );
    }
}

/// Linear warm-up, then half a cosine down to a fiftieth.
fn learning_rate(options: &TrainOptions, step: u64) -> f64 {
    let warm = (step + 1) as f64 / options.warm_up_steps.max(1) as f64;
    let done = (step as f64 / options.steps.max(1) as f64).min(1.0);
    let fallen = 0.02 + 0.98 * 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
    options.learning_rate * warm.min(1.0) * fallen
}
