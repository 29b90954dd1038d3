//! The latents of a prompt, as they are inferred before a latent thought model writes.

use std::{sync::Arc, time::Instant};

use sluice_checkpoint::family::LatentInference;

use crate::{
    event::{PassCost, ThoughtReport},
    model::network::LatentGradient,
    posterior::{FitOptions, Posterior, PosteriorFit, latent_noise},
    request::Thinking,
};

/// The draw of noise that latents to write with come from: no step has it.
const WRITING_DRAW: u64 = u32::MAX as u64;

/// Bounds that are compared with as many before them.
const PLATEAU_STEPS: usize = 6;
/// Inference ends where the later ones are better by less than this share. Noise of a step moves a bound by about so
/// much.
const PLATEAU_GAIN: f64 = 0.005;

/// The inference of a prompt's latents.
pub(super) struct PosteriorInference {
    fit: PosteriorFit,
    returns_posterior: bool,
    seed: u64,
    /// The latents of the pass that comes, and their noise.
    z: Vec<f32>,
    noise: Vec<f32>,
    /// What is minimized, before each step.
    objectives: Vec<f64>,
    started: Instant,
}

impl PosteriorInference {
    /// Inference for a prompt of so many tokens, or the latents where there is nothing to infer.
    pub(super) fn begin(
        thinking: &Thinking,
        inference: &LatentInference,
        (elements, prompt): (usize, usize),
        seed: u64,
    ) -> Result<Self, Vec<f32>> {
        // The first token is given, so one alone tells nothing.
        let steps = if prompt < 2 { 0 } else { thinking.steps };
        let start = match &thinking.start {
            Some(start) => Posterior::clone(start),
            None if steps == 0 => Posterior::prior(elements),
            None => Posterior::start(elements, inference.initial_log_variance, seed),
        };
        if steps == 0 {
            return Err(start.at(&latent_noise(elements, seed, WRITING_DRAW)));
        }
        let options = FitOptions {
            steps,
            learning_rate: inference.learning_rate.into(),
            weight_decay: 0.0,
            kl_weight: inference.kl_weight.into(),
        };
        let mut all = Self {
            fit: PosteriorFit::new(start, options),
            returns_posterior: thinking.returns_posterior,
            seed,
            z: Vec::new(),
            noise: Vec::new(),
            objectives: Vec::new(),
            started: Instant::now(),
        };
        all.draw();
        Ok(all)
    }

    /// The latents of the pass that comes.
    pub(super) fn z(&self) -> &[f32] {
        &self.z
    }

    /// Draws fresh noise for the pass that comes: what was fitted on noise has no bound with the same.
    fn draw(&mut self) {
        let elements = self.fit.posterior.mu.len();
        self.noise = latent_noise(elements, self.seed, self.fit.steps() as u64);
        self.z = self.fit.posterior.at(&self.noise);
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
            nll: found.nll,
            kl,
            tokens,
            elapsed: self.started.elapsed(),
            cost: *cost,
            is_last,
            posterior: returned.then(|| Arc::new(self.fit.posterior.clone())),
        };
        if is_last {
            let elements = self.fit.posterior.mu.len();
            let noise = latent_noise(elements, self.seed, WRITING_DRAW);
            return (report, Some(self.fit.posterior.at(&noise)));
        }
        self.fit.step(&self.noise, &found.d_z);
        self.draw();
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
