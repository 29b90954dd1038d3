//! Inference of a text's latents: a diagonal Gaussian for each latent, fitted by AdamW to the evidence lower bound (ELBO)
//! while the weights stay as they are.
//!
//! Paper: Kong et al. 2025 (arXiv 2502.01567), Algorithm 1. Reference: `PosteriorOptimizer` of
//! mingluzhao/Latent-Thought-LM. Two differences: each step draws noise of its own, as the paper has it, since noise that
//! is fitted on makes the bound no bound; and nothing decays, which the reference's optimizer does to μ by default.

use std::f64::consts::PI;

use sluice_checkpoint::family::LatentInference;
use sluice_formats::noise::Noise;

/// Streams of random numbers that no other purpose uses.
const START_STREAM: u64 = 5;
const NOISE_STREAM: u64 = 6;

/// A posterior: mean and log variance of each element of the latents, layer after layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    /// Means.
    pub mu: Vec<f32>,
    /// Logarithms of variances.
    pub log_var: Vec<f32>,
}

impl Posterior {
    /// Where inference begins: means near 0, log variances near this, as in the reference.
    #[must_use]
    pub fn start(elements: usize, log_variance: f32, seed: u64) -> Self {
        let noise = Noise::new(seed).stream(START_STREAM);
        let normal = |which: u64| (0..elements).map(move |at| noise.normal(which, 0, at as u64));
        Self {
            mu: normal(0).map(|value| 0.01 * value as f32).collect(),
            log_var: normal(1)
                .map(|value| 0.1 * value as f32 + log_variance)
                .collect(),
        }
    }

    /// N(0, I), the prior without a learned one: what is thought of nothing.
    #[must_use]
    pub fn prior(elements: usize) -> Self {
        Self {
            mu: vec![0.0; elements],
            log_var: vec![0.0; elements],
        }
    }

    /// These latents alone: so narrow around them that every draw is them.
    #[must_use]
    pub fn at_point(mu: Vec<f32>) -> Self {
        Self {
            log_var: vec![-LOG_VAR_MAX; mu.len()],
            mu,
        }
    }

    /// The latents at this noise, `μ + σ ε`.
    #[must_use]
    pub fn at(&self, noise: &[f32]) -> Vec<f32> {
        let each = self.mu.iter().zip(&self.log_var).zip(noise);
        each.map(|((mu, log_var), noise)| mu + noise * (0.5 * log_var).exp())
            .collect()
    }

    /// Latents at fresh noise, that of this draw of a seed.
    #[must_use]
    pub fn draw(&self, seed: u64, number: u64) -> LatentDraw {
        let noise = latent_noise(self.mu.len(), seed, number);
        LatentDraw {
            z: self.at(&noise),
            noise,
        }
    }

    /// KL divergence from the prior N(0, 1), in nats.
    #[must_use]
    pub fn kl(&self) -> f64 {
        let each = self.mu.iter().zip(&self.log_var);
        let terms = each.map(|(&mu, &log_var)| {
            let (mu, log_var) = (f64::from(mu), f64::from(log_var));
            mu * mu + log_var.exp() - 1.0 - log_var
        });
        0.5 * terms.sum::<f64>()
    }

    /// Whether all of it is finite, and no variance is beyond `f32`.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let all = self.mu.iter().chain(&self.log_var);
        all.clone().all(|value| value.is_finite())
            && self.log_var.iter().all(|value| value.abs() <= LOG_VAR_MAX)
    }
}

/// Latents of a posterior, and the noise that they are at.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentDraw {
    /// The latents, layer after layer.
    pub z: Vec<f32>,
    /// An element for each of them.
    pub noise: Vec<f32>,
}

/// Largest logarithm of a variance, either way.
pub const LOG_VAR_MAX: f32 = 60.0;

/// Standard normal noise for the latents, of this draw of a seed.
#[must_use]
pub fn latent_noise(elements: usize, seed: u64, draw: u64) -> Vec<f32> {
    let noise = Noise::new(seed).stream(NOISE_STREAM);
    (0..elements)
        .map(|at| noise.normal(draw, 0, at as u64) as f32)
        .collect()
}

/// How a posterior is fitted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FitOptions {
    /// Most steps.
    pub steps: usize,
    /// Learning rate of the first step; it falls to a tenth of it by a cosine.
    pub learning_rate: f64,
    /// Decoupled weight decay of both parameters.
    pub weight_decay: f64,
    /// What the divergence from the prior counts.
    pub kl_weight: f64,
}

impl FitOptions {
    /// As a model was trained, in at most so many steps.
    #[must_use]
    pub fn of(inference: &LatentInference, steps: usize) -> Self {
        Self {
            steps,
            learning_rate: inference.learning_rate.into(),
            weight_decay: 0.0,
            kl_weight: inference.kl_weight.into(),
        }
    }
}

const BETAS: [f64; 2] = [0.9, 0.999];
const EPSILON: f64 = 1e-8;

/// AdamW over a posterior.
#[derive(Debug, Clone)]
pub struct PosteriorFit {
    /// The posterior so far.
    pub posterior: Posterior,
    options: FitOptions,
    /// First and second moments of the gradients of means and log variances.
    moments: [[Vec<f32>; 2]; 2],
    step: usize,
}

impl PosteriorFit {
    /// Begins at a posterior.
    #[must_use]
    pub fn new(posterior: Posterior, options: FitOptions) -> Self {
        let zeros = || vec![0.0; posterior.mu.len()];
        Self {
            moments: [0; 2].map(|_| [0; 2].map(|_| zeros())),
            posterior,
            options,
            step: 0,
        }
    }

    /// How it is fitted.
    #[must_use]
    pub fn options(&self) -> &FitOptions {
        &self.options
    }

    /// Steps that were taken.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.step
    }

    /// The learning rate of the next step.
    fn rate(&self) -> f64 {
        let (most, least) = (
            self.options.learning_rate,
            self.options.learning_rate / 10.0,
        );
        let done = self.step as f64 / self.options.steps.max(1) as f64;
        least + 0.5 * (1.0 + (PI * done).cos()) * (most - least)
    }

    /// Takes a step by the gradient of the cross-entropy for the latents at this noise; the divergence's is added here.
    pub fn step(&mut self, noise: &[f32], d_z: &[f32]) {
        let rate = self.rate();
        self.step += 1;
        let corrections = BETAS.map(|beta| 1.0 - beta.powi(self.step as i32));
        let decay = (1.0 - rate * self.options.weight_decay) as f32;
        let kl_weight = self.options.kl_weight as f32;
        let Posterior { mu, log_var } = &mut self.posterior;
        for at in 0..mu.len() {
            let deviation = (0.5 * log_var[at]).exp();
            let gradients = [
                d_z[at] + kl_weight * mu[at],
                0.5 * (d_z[at] * noise[at] * deviation + kl_weight * (deviation * deviation - 1.0)),
            ];
            let parameters = [&mut mu[at], &mut log_var[at]];
            for (which, (parameter, gradient)) in parameters.into_iter().zip(gradients).enumerate()
            {
                let [first, second] = &mut self.moments[which];
                let gradient = f64::from(gradient);
                let average = |before: f32, beta: f64, value: f64| {
                    (beta * f64::from(before) + (1.0 - beta) * value) as f32
                };
                first[at] = average(first[at], BETAS[0], gradient);
                second[at] = average(second[at], BETAS[1], gradient * gradient);
                let mean = f64::from(first[at]) / corrections[0];
                let spread = (f64::from(second[at]) / corrections[1]).sqrt();
                *parameter = *parameter * decay - (rate * mean / (spread + EPSILON)) as f32;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
