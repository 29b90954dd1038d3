//! The latents of a request to a latent thought model: a sample of the learned prior, and what is inferred from the
//! prompt, before it writes.

use std::{sync::Arc, time::Instant};

use sluice_checkpoint::family::LatentInference;
use sluice_ops::{Ops, OpsError};
use sluice_shared::prior::PriorSolver;

use crate::{
    error::EngineError,
    event::{PassCost, ThoughtReport, ThoughtStep},
    model::network::LatentGradient,
    posterior::{FitOptions, LatentDraw, Posterior, PosteriorFit},
    prior::{Prior, Sampler},
    request::Thinking,
};

/// The draw of noise that latents to write with come from: no step has it.
const WRITING_DRAW: u64 = u32::MAX as u64;

/// Bounds that are compared with as many before them.
const PLATEAU_STEPS: usize = 6;
/// Inference ends where the later ones are better by less than this share. Noise of a step moves a bound by about so
/// much.
const PLATEAU_GAIN: f64 = 0.005;

/// A request's way to its latents.
pub(super) enum LatentSearch {
    /// A sample of the learned prior comes first.
    Sampling(PriorSample),
    /// Inference from the prompt.
    Inferring(PosteriorInference),
    /// The latents to write with.
    Found(Vec<f32>),
}

/// What latents of a request are searched with.
#[derive(Clone)]
pub(super) struct SearchOptions {
    pub(super) thinking: Thinking,
    /// How the model was trained.
    pub(super) inference: LatentInference,
    /// Elements of the latents.
    pub(super) elements: usize,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    pub(super) seed: u64,
}

impl LatentSearch {
    /// Begins with a sample of the prior, if the request asks for one of a model that has it.
    pub(super) fn begin(options: SearchOptions, prior: Option<&Prior>) -> Self {
        let sampling = options.thinking.prior;
        match sampling
            .filter(|sampling| sampling.solver != PriorSolver::None)
            .zip(prior)
        {
            Some((sampling, prior)) => Self::Sampling(PriorSample {
                sampler: Sampler::new(&prior.noise(options.seed), sampling),
                steps_max: sampling.steps as usize,
                options,
                started: Instant::now(),
            }),
            None => Self::infer(&options, None),
        }
    }

    /// Infers latents from the prompt, from this sample of the prior on, or takes them from where inference would begin.
    fn infer(options: &SearchOptions, sample: Option<Vec<f32>>) -> Self {
        let SearchOptions {
            thinking,
            inference,
            elements,
            seed,
            ..
        } = options;
        let (elements, seed) = (*elements, *seed);
        let steps = options.steps();
        let near_zero = || Posterior::start(elements, inference.initial_log_variance, seed);
        let start = match (&thinking.start, sample) {
            (_, Some(sample)) if steps == 0 => return Self::Found(sample),
            (_, Some(mu)) => Posterior { mu, ..near_zero() },
            (Some(start), None) => Posterior::clone(start),
            (None, None) if steps == 0 => Posterior::prior(elements),
            (None, None) => near_zero(),
        };
        if steps == 0 {
            return Self::Found(start.draw(seed, WRITING_DRAW).z);
        }
        Self::Inferring(PosteriorInference {
            draw: start.draw(seed, 0),
            fit: PosteriorFit::new(start, FitOptions::of(inference, steps)),
            returns_posterior: thinking.returns_posterior,
            seed,
            objectives: Vec::new(),
            started: Instant::now(),
        })
    }
}

impl SearchOptions {
    /// Steps of inference. The first token is given, so one alone tells nothing.
    fn steps(&self) -> usize {
        if self.prompt < 2 {
            0
        } else {
            self.thinking.steps
        }
    }
}

/// A sample of the learned prior on its way.
pub(super) struct PriorSample {
    sampler: Sampler,
    steps_max: usize,
    options: SearchOptions,
    started: Instant,
}

impl PriorSample {
    /// Takes a step of the sampler. One that fails may be tried again.
    pub(super) fn step(&mut self, ops: &Ops, prior: &Prior) -> Result<(), OpsError> {
        #[cfg(test)]
        super::tests::panics::in_step(self.options.seed);
        if self.sampler.is_done() {
            return Ok(());
        }
        (self.sampler).step(&mut |x: &[f32], sigma| prior.denoise(ops, x, sigma))
    }

    /// The report of a step, and after the last what the request does with the sample; an error where its elements are
    /// not finite.
    pub(super) fn take(
        &self,
        prior: &Prior,
        cost: &PassCost,
    ) -> Result<(ThoughtReport, Option<LatentSearch>), EngineError> {
        let is_last = self.sampler.is_done();
        let next = is_last.then(|| {
            let sample = prior.latents(self.sampler.sample());
            match sample.iter().all(|value| value.is_finite()) {
                true => Ok(LatentSearch::infer(&self.options, Some(sample))),
                false => Err(EngineError::PriorNotFinite),
            }
        });
        let next = next.transpose()?;
        let posterior = match &next {
            Some(LatentSearch::Found(sample)) if self.options.thinking.returns_posterior => {
                Some(Arc::new(Posterior::at_point(sample.clone())))
            }
            _ => None,
        };
        let report = ThoughtReport {
            step: self.sampler.steps(),
            steps_max: self.steps_max,
            found: ThoughtStep::Sampled {
                noise_level: self.sampler.noise_level(),
            },
            elapsed: self.started.elapsed(),
            cost: *cost,
            is_last,
            posterior,
        };
        Ok((report, next))
    }
}

/// The inference of a prompt's latents.
pub(super) struct PosteriorInference {
    fit: PosteriorFit,
    returns_posterior: bool,
    seed: u64,
    /// The latents of the pass that comes, at fresh noise: what was fitted on noise has no bound with the same.
    draw: LatentDraw,
    /// What is minimized, before each step.
    objectives: Vec<f64>,
    started: Instant,
}

impl PosteriorInference {
    /// The latents of the pass that comes.
    pub(super) fn z(&self) -> &[f32] {
        &self.draw.z
    }

    /// Takes the result of a pass: the report, and the latents to write with if no step follows.
    pub(super) fn take(
        &mut self,
        found: &LatentGradient,
        tokens: usize,
        cost: &PassCost,
    ) -> (ThoughtReport, Option<Vec<f32>>) {
        let kl = self.fit.posterior.kl();
        let FitOptions {
            steps: steps_max,
            kl_weight,
            ..
        } = *self.fit.options();
        self.objectives.push(found.nll + kl_weight * kl);
        let step = self.fit.steps();
        let is_last = step == steps_max || is_plateau(&self.objectives);
        let returned = is_last && self.returns_posterior;
        let report = ThoughtReport {
            step,
            steps_max,
            found: ThoughtStep::Inferred {
                nll: found.nll,
                kl,
                tokens,
            },
            elapsed: self.started.elapsed(),
            cost: *cost,
            is_last,
            posterior: returned.then(|| Arc::new(self.fit.posterior.clone())),
        };
        if is_last {
            let draw = self.fit.posterior.draw(self.seed, WRITING_DRAW);
            return (report, Some(draw.z));
        }
        self.fit.step(&self.draw.noise, &found.d_z);
        self.draw = (self.fit.posterior).draw(self.seed, self.fit.steps() as u64);
        (report, None)
    }
}

/// Whether the latest bounds are hardly better than those before them.
fn is_plateau(bounds: &[f64]) -> bool {
    let Some(recent) = bounds.len().checked_sub(2 * PLATEAU_STEPS) else {
        return false;
    };
    let mean = |bounds: &[f64]| bounds.iter().sum::<f64>() / bounds.len() as f64;
    let (before, after) = bounds[recent..].split_at(PLATEAU_STEPS);
    mean(before) - mean(after) < PLATEAU_GAIN * mean(before).abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inference_ends_where_bounds_no_longer_fall() {
        let falling: Vec<f64> = (0..40).map(|step| 900.0 * 0.97f64.powi(step)).collect();
        assert!((0..=40).all(|steps| !is_plateau(&falling[..steps])));
        let noise = |step: usize| [0.5, -0.4, 0.1][step % 3];
        let level: Vec<f64> = (0..12).map(|step| 300.0 + noise(step)).collect();
        assert!(is_plateau(&level) && !is_plateau(&level[..11]));
        let all = [&falling[..30], &level].concat();
        assert_eq!((30..=42).find(|&steps| is_plateau(&all[..steps])), Some(42));
    }
}
