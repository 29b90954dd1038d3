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

use anyhow::{Context as _, Result, ensure};
use candle_core::Device;

use crate::{
    auto_batch,
    batch::{Batch, BatchOptions},
    checkpoint::{self, State},
    config::ModelConfig,
    export,
    gradient::Distillation,
    judge::fingerprint,
    latent::{FastLearning, LatentOptions, bound},
    likelihood::{self, LikelihoodOptions},
    loader::Loader,
    log::Log,
    model::Model,
    optimizer::{Optimizer, OptimizerOptions},
    precision::Precision,
    progress::Progress,
    quantization::{QuantizationOptions, Rounding},
    report::{self, StepReport, Window},
    schedule::{self, Phase},
    step::{Step, Sums},
    text::Data,
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
    /// How latents are learned; for a latent thought model alone.
    pub latent: Option<LatentOptions>,
    /// Decays and limits of the optimizer.
    pub optimizer: OptimizerOptions,
    /// What passes compute from and keep.
    pub precision: Precision,
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
    /// Memory that training should take at most; it decides the tokens of a part.
    pub memory_limit_bytes: Option<u64>,
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
    data: Arc<Data>,
    loader: Loader,
    log: Log,
    options: TrainOptions,
}

impl Trainer {
    /// Picks up the checkpoint of the output folder, or starts afresh with the given shape.
    pub fn open(
        options: TrainOptions,
        data: impl Into<Data>,
        config: impl Into<ModelConfig>,
        device: &Device,
    ) -> Result<Self> {
        let data = Arc::new(data.into());
        let vocabulary = &data.vocabulary;
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
            latent: options.latent,
            optimizer: options.optimizer.clone(),
            precision: options.precision,
        };
        ensure!(
            matches!(fresh.config, ModelConfig::LatentThought(_)) == options.latent.is_some(),
            "latent vectors are what a latent thought model has, and only that"
        );
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
        let mut state = if let Some(state) = checkpoint::load(&options.output, device)? {
            // Everything but the progress itself must be equal: resuming with other data or another schedule would
            // give a model that no command reproduces.
            let found = &state.progress;
            let mut batch = fresh.batch;
            if options.memory_limit_bytes.is_some() {
                // Chosen when the run began.
                batch.part_tokens = found.batch.part_tokens;
            }
            let same = Progress {
                batch,
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
                export::read(folder, &fresh.config, vocabulary, device)?
            } else {
                Model::random(fresh.config.clone(), batch.seed, vocabulary.mask_id, device)?
            };
            let optimizer = Optimizer::new(options.optimizer.clone(), model.variables())?;
            State {
                model,
                optimizer,
                teacher: None,
                progress: fresh,
            }
        };
        if let (Some(limit), 0) = (options.memory_limit_bytes, state.progress.step) {
            let half = match options.precision {
                Precision::F32 => None,
                Precision::Bf16 => Some(state.model.half()?),
            };
            let step = Step {
                model: half.as_ref().unwrap_or(&state.model),
                distillation: None,
                latent: options.latent.as_ref(),
                progress: &state.progress,
                recompute_interval: options.recompute_interval,
            };
            let (source, batch) = ((&*data).into(), &state.progress.batch);
            let tokens = auto_batch::part_tokens(&step, source, batch, options.threads, limit)?;
            println!("{tokens} tokens in each part fit into the memory");
            state.progress.batch.part_tokens = tokens;
        }
        let loader = Loader::new(
            state.progress.batch,
            Arc::clone(&data),
            state.progress.step,
            options.loader_threads,
        )?;
        Ok(Self {
            log: Log::open(&options.output, state.progress.step)?,
            state,
            rounding,
            data,
            loader,
            options,
        })
    }

    /// Takes one step.
    pub fn step(&mut self) -> Result<StepReport> {
        let started = Instant::now();
        let batch = self.loader.draw()?;
        let data_wait = started.elapsed();
        let Sums {
            loss,
            kl,
            gradients,
        } = self.gradients(&batch)?;
        let State {
            model,
            optimizer,
            progress,
            ..
        } = &mut self.state;
        // Checked before the step: a NaN would spread to all weights, and to the next checkpoint.
        ensure!(
            (loss + kl).is_finite(),
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
            loss: loss + kl,
            kl: self.options.latent.map(|_| kl),
            gradient_norm,
            tokens,
            data_wait,
        })
    }

    /// The loss of a batch and its gradients for the weights in full precision.
    fn gradients(&mut self, batch: &Batch) -> Result<Sums> {
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
            return match self.options.precision {
                Precision::F32 => self.sums(&self.state.model, None, batch),
                Precision::Bf16 => self.sums(&self.state.model.half()?, None, batch),
            };
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
        let mut rounded = rounding.apply(&self.state.model, self.options.threads)?;
        if self.options.precision == Precision::Bf16 {
            rounded = rounded.keeping_half();
        }
        // The gradients for the rounded weights are taken for those of the weights they were rounded from.
        self.sums(&rounded, Some(&distillation), batch)
    }

    fn sums(
        &self,
        model: &Model,
        distillation: Option<&Distillation<'_>>,
        batch: &Batch,
    ) -> Result<Sums> {
        let step = Step {
            model,
            distillation,
            latent: self.options.latent.as_ref(),
            progress: &self.state.progress,
            recompute_interval: self.options.recompute_interval,
        };
        step.sums(batch, self.options.threads)
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
        let mut entry = window.entry(progress, elapsed);
        if interval > 0 && progress.step.is_multiple_of(interval) {
            // With the averaged weights, which are the ones that get exported.
            let model = self.state.optimizer.averaged(&self.state.model)?;
            (entry.held_out, entry.held_out_kl) = self.held_out(&model)?;
            if let Some(rounding) = &self.rounding {
                let rounded = rounding.apply(&model, self.options.threads)?;
                (entry.held_out_rounded, _) = self.held_out(&rounded)?;
            }
        }
        self.log.write(&entry)?;
        println!("{}", report::line(&entry, progress, window, elapsed));
        Ok(())
    }

    /// Nats for each held-out token, and what of them is the KL divergence of latents.
    fn held_out(&self, model: &Model) -> Result<(Option<f64>, Option<f64>)> {
        let options = LikelihoodOptions {
            threads: self.options.threads,
            ..EVALUATION
        };
        let Some(latent) = &self.options.latent else {
            let nats = likelihood::negative_log_likelihood(model, &*self.data, &options)?;
            return Ok((Some(nats), None));
        };
        let fast = FastLearning {
            kl_weight: 1.0,
            ..latent.at(schedule::done(&self.state.progress))
        };
        let bound = bound::measure(model, &*self.data, &options, latent, &fast, &[])?;
        Ok((Some(bound.evidence()), Some(bound.kl)))
    }
}
