//! How likely an answer is to a latent thought model: a posterior is fitted to the answer, and then the evidence bound is
//! taken at fresh noise.
//!
//! Paper: Kong et al. 2025 (arXiv 2502.01567) for the bound, Burda et al. 2016 (arXiv 1509.00519) for that of several
//! samples. Both are bounds of log ∫ p(answer | prompt, z) N(z; 0, 1) dz, whatever the posterior is: how likely the model
//! gives this very answer with latents of the prior.

use std::time::Instant;

use sluice_checkpoint::family::LatentInference;

use crate::{
    event::{Event, Outcome, ScoreResult},
    model::network::{LatentGradient, LatentText},
    posterior::{FitOptions, LatentDraw, Posterior, PosteriorFit},
    request::Score,
};

/// An estimate in progress: steps of inference, then draws.
pub(super) struct LatentScore {
    /// Prompt and answer.
    tokens: Vec<u32>,
    /// The first target that belongs to the answer.
    first_target: usize,
    fit: PosteriorFit,
    draws: usize,
    seed: u64,
    /// The latents of the pass that comes, at noise that no other pass has: at noise that something was fitted on there is
    /// no bound.
    draw: LatentDraw,
    /// The logarithm of `p(answer | z)` at each draw so far, and of the density of the prior over that of the posterior.
    found: Vec<[f64; 2]>,
    started: Instant,
}

impl LatentScore {
    /// An estimate for a model with so many elements of latents, which was trained like this.
    pub(super) fn new(request: &Score, inference: &LatentInference, elements: usize) -> Self {
        let options = FitOptions {
            // What the bound counts, whatever the model was trained with.
            kl_weight: 1.0,
            ..FitOptions::of(inference, request.think_steps.unwrap_or(inference.steps))
        };
        // From the prior on, where the divergence is 0.
        let fit = PosteriorFit::new(Posterior::prior(elements), options);
        Self {
            tokens: [request.prompt.as_slice(), &request.answer].concat(),
            // The first token of all is given, and the target of none.
            first_target: request.prompt.len().saturating_sub(1),
            draw: fit.posterior.draw(request.seed, 0),
            fit,
            draws: request.draws,
            seed: request.seed,
            found: Vec::with_capacity(request.draws),
            started: Instant::now(),
        }
    }

    fn is_fitted(&self) -> bool {
        self.fit.steps() == self.fit.options().steps
    }

    pub(super) fn is_done(&self) -> bool {
        self.found.len() == self.draws
    }

    /// The text of the pass that comes.
    pub(super) fn text(&self) -> LatentText<'_> {
        LatentText {
            tokens: &self.tokens[..self.tokens.len() - 1],
            targets: &self.tokens[1..],
            first_target: self.first_target,
            z: &self.draw.z,
            wants_gradient: !self.is_fitted(),
        }
    }

    /// Takes the result of a pass.
    pub(super) fn take(&mut self, pass: &LatentGradient, emit: &mut dyn FnMut(Event)) {
        match self.is_fitted() {
            false => self.fit.step(&self.draw.noise, &pass.d_z),
            true => {
                let ratio = log_density_ratio(&self.fit.posterior, &self.draw);
                self.found.push([-pass.nll, ratio]);
            }
        }
        let done = self.fit.steps() + self.found.len();
        emit(Event::ScoreProgress {
            done,
            total: self.fit.options().steps + self.draws,
        });
        if !self.is_done() {
            self.draw = self.fit.posterior.draw(self.seed, done as u64);
        }
    }

    pub(super) fn outcome(self) -> Outcome {
        if !self.is_done() {
            return Outcome::Cancelled;
        }
        let kl = self.fit.posterior.kl();
        let bounds = self.found.iter().map(|[answer, _]| answer - kl);
        let weights: Vec<f64> = self.found.iter().map(|pair| pair.iter().sum()).collect();
        Outcome::Scored(ScoreResult {
            multi_sample_bound: Some(log_mean_exp(&weights)),
            kl: Some(kl),
            ..ScoreResult::of_draws(&bounds.collect::<Vec<_>>(), self.started.elapsed())
        })
    }
}

/// `log N(z; 0, 1) − log N(z; μ, σ²)` for `z = μ + σ ε`.
fn log_density_ratio(posterior: &Posterior, draw: &LatentDraw) -> f64 {
    let each = draw.z.iter().zip(&draw.noise).zip(&posterior.log_var);
    let terms = each.map(|((&z, &noise), &log_var)| {
        let (z, noise) = (f64::from(z), f64::from(noise));
        noise * noise - z * z + f64::from(log_var)
    });
    0.5 * terms.sum::<f64>()
}

fn log_mean_exp(values: &[f64]) -> f64 {
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = values.iter().map(|value| (value - most).exp()).sum();
    most + (sum / values.len() as f64).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelId, posterior::tests::Linear};

    /// An estimate for a model of one latent, whose evidence is known, and the draws' latents.
    fn estimate(think_steps: usize, draws: usize) -> (ScoreResult, Vec<f32>) {
        let request = Score {
            model: ModelId(1),
            prompt: vec![1],
            answer: vec![2],
            draws,
            guidance: 0.0,
            seed: 4,
            check_greedy: false,
            think_steps: Some(think_steps),
        };
        let linear = Linear::new();
        let mut estimate = LatentScore::new(&request, &LatentInference::default(), 1);
        let (mut latents, mut told) = (Vec::new(), Vec::new());
        while !estimate.is_done() {
            let text = estimate.text();
            assert_eq!(
                (text.tokens, text.targets, text.first_target),
                (&[1][..], &[2][..], 0)
            );
            assert_eq!(text.wants_gradient, told.len() < think_steps);
            let z = text.z[0];
            latents.push(z);
            let (nll, slope) = linear.nll(f64::from(z));
            let d_z = vec![slope as f32];
            estimate.take(&LatentGradient { nll, d_z }, &mut |event| told.push(event));
        }
        let total = think_steps + draws;
        assert_eq!(told.len(), total);
        assert!(
            matches!(told.last(), Some(Event::ScoreProgress { done, total: all }) if (*done, *all) == (total, total))
        );
        let Outcome::Scored(result) = estimate.outcome() else {
            panic!("it is done");
        };
        (result, latents)
    }

    /// By brute force: means of bounds are below the evidence, near it once something was fitted, and the bound of all
    /// draws is between both.
    #[test]
    fn estimates_are_lower_bounds() {
        let evidence = -Linear::new().exact();
        for (think_steps, gap) in [(0, f64::INFINITY), (100, 0.3)] {
            let (result, latents) = estimate(think_steps, 4000);
            let error = result.standard_error.unwrap();
            let mean = result.log_likelihood;
            assert!(mean < evidence + 4.0 * error, "{mean} of {evidence}");
            assert!(mean > evidence - gap, "{mean} of {evidence}");
            let together = result.multi_sample_bound.unwrap();
            assert!(together >= mean, "{together} and {mean}");
            assert!(
                (together - evidence).abs() < 0.1,
                "{together} of {evidence}"
            );
            let mut distinct = latents;
            distinct.sort_by(f32::total_cmp);
            distinct.dedup();
            assert!(distinct.len() > think_steps + 3900, "noise was used again");
        }
        let (without, _) = estimate(0, 400);
        assert_eq!(without.kl, Some(0.0));
    }

    #[test]
    fn a_single_draw_has_no_error() {
        let (result, _) = estimate(3, 1);
        assert_eq!(result.standard_error, None);
        let (bound, together) = (result.log_likelihood, result.multi_sample_bound);
        assert!(bound.is_finite() && together.is_some_and(f64::is_finite));
    }
}
