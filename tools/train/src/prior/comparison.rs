//! Sets of latents side by side: samples of a learned prior, by the engine's own solvers, beside posterior samples of
//! held-out texts, a Gaussian, and N(0, 1).
//!
//! Two numbers tell what a set is worth. One is how likely held-out texts are with the set in the place of the prior:
//! −log of the mean of p(x | z) over the set's latents z, an upper bound of −log p(x) in the mean (the bound of Burda et al.
//! 2016, arXiv 1509.00519, with the prior for the posterior). The other is the energy distance (Székely and Rizzo 2013) from
//! posterior samples.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use sluice_checkpoint::{Checkpoint, Source};
use sluice_engine::prior::{Prior, Sampler};
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_shared::prior::{PriorSampling, PriorSolver};

use crate::{
    batch::Part,
    config::LatentThoughtConfig,
    latent::{LatentOptions, bound::Text, infer},
    likelihood::{LikelihoodOptions, canvases},
    model::Model,
    objective, parallel,
    random::Random,
    text,
};

/// Solvers and steps that are compared.
const SOLVERS: [PriorSolver; 2] = [PriorSolver::DpmSolverPp2m, PriorSolver::Heun];
const STEPS: [u32; 3] = [10, 20, 50];

/// How much is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComparisonOptions {
    /// Latents of each set.
    pub samples: usize,
    /// Of these, latents by which texts are measured, and as many texts.
    pub measured: usize,
    /// The seed of texts and noise.
    pub seed: u64,
    /// Threads to compute with.
    pub threads: usize,
}

impl Default for ComparisonOptions {
    fn default() -> Self {
        Self {
            samples: 256,
            measured: 32,
            seed: 2,
            threads: 1,
        }
    }
}

/// The comparison of a prior.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// What was asked for.
    pub options: ComparisonOptions,
    /// Latents of each set: texts that are too long for the model are left out.
    pub latents: usize,
    /// Of these, those by which texts were measured, and as many texts.
    pub measured: usize,
    /// The sets.
    pub sets: Vec<SetRow>,
}

/// What was found about a set.
#[derive(Debug, Clone, PartialEq)]
pub struct SetRow {
    /// Where its latents come from.
    pub name: String,
    /// Evaluations of the network for a sample.
    pub evaluations: Option<usize>,
    /// Nats for each token of held-out texts, the mean over texts and latents of the set.
    pub nll: f64,
    /// Nats for each token with the set in the place of the prior.
    pub mixture: f64,
    /// Energy distance from posterior samples of other held-out texts, with the root mean square of the elements' differences
    /// for the distance of two latents.
    pub distance: f64,
}

/// Latents of texts, one text after another.
struct Set {
    name: String,
    evaluations: Option<usize>,
    latents: Vec<f32>,
}

impl Set {
    fn of(name: &str, latents: Vec<f32>) -> Self {
        Self {
            name: name.to_owned(),
            evaluations: None,
            latents,
        }
    }
}

/// Compares the prior in the folder of a model with posteriors of held-out texts.
///
/// # Errors
/// When the folder has no prior of this model, or a measurement fails.
pub fn compare<'a>(
    folder: &Path,
    model: &Model,
    config: &LatentThoughtConfig,
    source: impl Into<text::Source<'a>>,
    latent: &LatentOptions,
    options: &ComparisonOptions,
) -> Result<Comparison> {
    // A sample has a handful of rows, which more threads only wait for.
    let ops = Ops::new(Device::cpu(1)?, Ledger::default())?;
    let prior = Checkpoint::open(&Source::Folder(folder.to_owned()))?
        .prior([config.max_z_len, config.dim])?
        .with_context(|| format!("{} has no prior", folder.display()))?;
    let prior = Prior::read(&prior, &ops)?;
    let size = prior.elements();
    let model = model.frozen()?;

    // Half of the texts are what sets are held against, half give the set of posterior samples.
    let texts = canvases(
        &model.config,
        source.into(),
        &LikelihoodOptions {
            samples: 2 * options.samples as u64,
            draws: 1,
            seed: options.seed,
            threads: options.threads,
        },
    )?;
    let half = texts.len() / 2;
    ensure!(half >= 2, "there are too few held-out texts");
    let parts: Vec<(u64, Part)> = (texts.iter())
        .map(|(number, text)| (*number, Part::pack([objective::whole(text.borrow())])))
        .collect();
    let found = parallel::map(options.threads, &parts, |(number, part)| {
        let mut random = Random::new(options.seed ^ 0x7365_7473, *number);
        let fast = latent.at(1.0);
        let initial = latent.initial_log_variance;
        let posterior = infer(&model, config, part, &fast, initial, None, &mut random)?;
        Ok(posterior.latents(&posterior.noise(&mut random)))
    })?;
    let [held_against, posteriors] = [&found[..half], &found[half..2 * half]].map(<[_]>::concat);

    // All sets begin with the same noise.
    let noises: Vec<Vec<f32>> = (0..half as u64)
        .map(|number| prior.noise(options.seed ^ (number << 8)))
        .collect();
    let gaussian = noises.iter().map(|noise| prior.latents(noise));
    let gaussian: Vec<Vec<f32>> = gaussian.collect();
    let mut sets = vec![Set::of("posterior samples of other texts", posteriors)];
    for solver in SOLVERS {
        for steps in STEPS {
            sets.push(sampled(
                &prior,
                &ops,
                &noises,
                PriorSampling { solver, steps },
            )?);
        }
    }
    sets.push(Set::of(
        "Gaussian of the posteriors' means and deviations",
        gaussian.concat(),
    ));
    sets.push(Set::of("N(0, 1)", noises.concat()));

    let measured = options.measured.min(half);
    let tokens: usize = (parts[..measured].iter())
        .map(|(_, part)| part.targets.len())
        .sum();
    let rows = sets.into_iter().map(|set| {
        let latents: Vec<&[f32]> = set.latents.chunks_exact(size).take(measured).collect();
        let nats = parallel::map(options.threads, &parts[..measured], |(_, part)| {
            let text = Text {
                model: &model,
                config,
                part,
                samples: 1,
            };
            let costs = latents.iter().map(|latents| text.cost(latents.to_vec(), 0));
            let costs: Vec<f64> = costs.collect::<Result<_>>()?;
            let mean = costs.iter().sum::<f64>() / costs.len() as f64;
            Ok([mean, mixture(&costs)])
        })?;
        let each = |which: usize| nats.iter().map(|nats| nats[which]).sum::<f64>();
        Ok(SetRow {
            name: set.name,
            evaluations: set.evaluations,
            nll: each(0) / tokens as f64,
            mixture: each(1) / tokens as f64,
            distance: energy_distance(&held_against, &set.latents, size),
        })
    });
    Ok(Comparison {
        options: *options,
        latents: half,
        measured,
        sets: rows.collect::<Result<_>>()?,
    })
}

/// Samples of a prior by the engine.
fn sampled(prior: &Prior, ops: &Ops, noises: &[Vec<f32>], sampling: PriorSampling) -> Result<Set> {
    let mut latents = Vec::new();
    let mut evaluations = 0;
    for noise in noises {
        let mut sampler = Sampler::new(noise, sampling);
        while !sampler.is_done() {
            sampler.step(&mut |x, sigma| prior.denoise(ops, x, sigma))?;
        }
        evaluations = sampler.evaluations();
        latents.extend(prior.latents(sampler.sample()));
    }
    Ok(Set {
        name: format!("`{}`, {} steps", sampling.solver.name(), sampling.steps),
        evaluations: Some(evaluations),
        latents,
    })
}

/// −log of the mean of exp(−cost).
fn mixture(costs: &[f64]) -> f64 {
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let sum: f64 = costs.iter().map(|cost| (least - cost).exp()).sum();
    least - (sum / costs.len() as f64).ln()
}

/// The energy distance 2·E|x − y| − E|x − x′| − E|y − y′| of two sets of vectors of so many elements, without bias (it can
/// come out below zero where both are samples of the same distribution). |·| is the root mean square over the elements.
///
/// # Panics
/// When a set has fewer than two vectors.
#[must_use]
pub fn energy_distance(left: &[f32], right: &[f32], size: usize) -> f64 {
    let count = |set: &[f32]| set.len() / size;
    let (lefts, rights) = (count(left), count(right));
    assert!(lefts > 1 && rights > 1, "a spread takes two");
    let sum = |left: &[f32], right: &[f32]| -> f64 {
        let pairs = left
            .chunks_exact(size)
            .flat_map(|x| right.chunks_exact(size).map(move |y| (x, y)));
        pairs
            .map(|(x, y)| {
                let squares = x.iter().zip(y);
                let squares = squares.map(|(x, y)| f64::from(x - y).powi(2));
                (squares.sum::<f64>() / size as f64).sqrt()
            })
            .sum()
    };
    // Of a set with itself, the pairs of one vector twice count nothing.
    let within = |set: &[f32], count: usize| sum(set, set) / (count * (count - 1)) as f64;
    2.0 * sum(left, right) / (lefts * rights) as f64 - within(left, lefts) - within(right, rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(count: usize, mean: f64, random: &mut Random) -> Vec<f32> {
        (0..count)
            .map(|_| (mean + random.normal()) as f32)
            .collect()
    }

    #[test]
    fn the_distance_of_two_points_is_twice_that_between_them() {
        let (left, right) = ([0.0; 6], [3.0f32, 4.0].repeat(2));
        // The root mean square of 3 and 4.
        let between = 12.5f64.sqrt();
        assert!((energy_distance(&left, &right, 2) - 2.0 * between).abs() < 1e-9);
        assert!(energy_distance(&right, &right, 2).abs() < 1e-9);
    }

    #[test]
    fn the_distance_of_gaussians_is_that_of_the_closed_form() {
        let mut random = Random::new(5, 0);
        let [same, also] = [(); 2].map(|()| normal(2000, 0.0, &mut random));
        let moved = normal(2000, 1.0, &mut random);
        assert!(energy_distance(&same, &also, 1).abs() < 0.01);
        // 2·E|N(1, 2)| − 2·E|N(0, 2)|, with the means of folded normals: 2·(2e^(−1/4)/√π + erf(1/2)) − 4/√π.
        let expected = 0.541_81;
        let found = energy_distance(&same, &moved, 1);
        assert!((found - expected).abs() < 0.08, "{found}");
    }

    #[test]
    fn a_mixture_is_as_likely_as_its_latents_are_in_the_mean() {
        let costs = [2.0f64.ln(), 4.0f64.ln()];
        // −log((1/2 + 1/4)/2)
        assert!((mixture(&costs) - (8.0f64 / 3.0).ln()).abs() < 1e-12);
        // Beyond what exp can tell from nothing.
        assert!((mixture(&[2000.0, 2000.0]) - 2000.0).abs() < 1e-9);
    }
}
