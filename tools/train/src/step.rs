//! Loss and gradients of a step, spread over threads by its parts.

use anyhow::{Context as _, Result};

use crate::{
    batch::{Batch, Part},
    config::ModelConfig,
    gradient::{self, Distillation},
    latent::{self, LatentOptions},
    model::{Context, Model},
    parallel,
    progress::Progress,
    random::Random,
    schedule,
};

/// What a step is computed from, besides its data.
pub struct Step<'a> {
    /// The network whose weights have gradients.
    pub model: &'a Model,
    /// What it should stay close to.
    pub distillation: Option<&'a Distillation<'a>>,
    /// How latents are learned before the weights have gradients.
    pub latent: Option<&'a LatentOptions>,
    /// Where the run is.
    pub progress: &'a Progress,
    /// Layers in a group of gradient checkpointing.
    pub recompute_interval: Option<usize>,
}

/// What the parts of a step add up to.
pub struct Sums {
    /// What the loss asks of the network.
    pub loss: f64,
    /// The KL divergence of latents from their prior.
    pub kl: f64,
    /// The gradient of every variable.
    pub gradients: Vec<Vec<f32>>,
}

impl Step<'_> {
    /// The sums over all parts, always added in the same order, so that the number of threads changes nothing.
    pub fn sums(&self, batch: &Batch, threads: usize) -> Result<Sums> {
        let numbered: Vec<_> = (0..).zip(&batch.parts).collect();
        let parts = parallel::map(threads, &numbered, |(number, part)| {
            self.part(part, *number)
        })?;
        parts
            .into_iter()
            .reduce(|mut sums, part| {
                for (sum, gradient) in sums.gradients.iter_mut().zip(part.gradients) {
                    sum.iter_mut()
                        .zip(gradient)
                        .for_each(|(sum, value)| *sum += value);
                }
                sums.loss += part.loss;
                sums.kl += part.kl;
                sums
            })
            .context("a step needs at least one part")
    }

    /// What one part adds.
    fn part(&self, part: &Part, number: u64) -> Result<Sums> {
        let pack = &part.pack;
        let (Some(options), ModelConfig::LatentThought(config)) = (self.latent, &self.model.config)
        else {
            return self.slow(part, pack.into(), 0.0);
        };
        let stream = self.progress.step * self.progress.batch.parts as u64 + number;
        let mut random = Random::new(self.progress.batch.seed ^ 0x6c61_7465, stream);
        let seen = latent::seen(part, || random.chance(options.prefix_share));
        let fast = options.at(schedule::done(self.progress));
        let initial = options.initial_log_variance;
        let interval = self.recompute_interval;
        let frozen = self.model.frozen()?;
        let posterior = latent::infer(
            &frozen,
            config,
            &seen,
            &fast,
            initial,
            interval,
            &mut random,
        )?;
        // Fresh noise here, too: the weights must not learn what only one noise gives.
        let latents = posterior.latents(&posterior.noise(&mut random));
        let latents = Some(&latent::tensor(self.model, latents)?);
        // Every token counts the same.
        let weight = f64::from(part.weights.first().copied().unwrap_or_default());
        self.slow(part, Context { pack, latents }, posterior.kl() * weight)
    }

    fn slow(&self, part: &Part, context: Context<'_>, kl: f64) -> Result<Sums> {
        let (distillation, interval) = (self.distillation, self.recompute_interval);
        let (loss, gradients) =
            gradient::gradients(self.model, part, context, distillation, interval)?;
        Ok(Sums {
            loss,
            kl,
            gradients,
        })
    }
}
