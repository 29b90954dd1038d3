//! Training of a prior: posterior samples with noise of every size on them, to be told from it.

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::{Origin, Prior, PriorConfig};
use crate::{
    latent::posteriors::Posteriors,
    optimizer::{Optimizer, OptimizerOptions},
    parallel,
    random::Random,
};

/// Mean and standard deviation of ln σ in training (EDM, table 1).
const LOG_NOISE: [f64; 2] = [-1.2, 1.2];
/// Steps until the learning rate is highest.
const WARM_UP_STEPS: u64 = 50;

/// How a prior is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PriorOptions {
    /// Steps.
    pub steps: u64,
    /// Texts of a step, a multiple of the threads.
    pub texts: usize,
    /// The highest learning rate; it falls along half a cosine.
    pub learning_rate: f64,
    /// The seed of weights, samples and noise.
    pub seed: u64,
    /// Threads to compute with. The number changes what is learned, since each has texts of its own.
    pub threads: usize,
}

/// Trains a prior of the given width, layers and heads; calls `report` with each step and its loss, which is 1 for a prior
/// that has learned nothing.
pub fn train(
    posteriors: &Posteriors,
    [width, layers, heads]: [usize; 3],
    options: &PriorOptions,
    mut report: impl FnMut(u64, f64),
) -> Result<Prior> {
    let config = PriorConfig {
        vectors: posteriors.vectors,
        latent_width: posteriors.width,
        width,
        layers,
        heads,
    };
    let count = posteriors.lengths.len();
    ensure!(
        count > 1,
        "a prior can't be learned from {count} posteriors"
    );
    let [mean, deviation] = scale(posteriors);
    let prior = Prior::random(config.clone(), mean, deviation, options.seed)?;
    let mut optimizer = Optimizer::new(OptimizerOptions::default(), prior.variables())?;
    let shares: Vec<u64> = (0..options.threads.max(1) as u64).collect();
    for step in 0..options.steps {
        let parts = parallel::map(options.threads, &shares, |share| {
            let stream = step * shares.len() as u64 + share;
            let mut random = Random::new(options.seed ^ 0x7072_696f, stream);
            let texts = options.texts.div_ceil(shares.len());
            loss(&prior, posteriors, texts, &mut random)
        })?;
        let parts_count = parts.len() as f64;
        let sums = parts
            .into_iter()
            .reduce(|(loss, mut sums), (more, gradients)| {
                for (sum, gradient) in sums
                    .iter_mut()
                    .flatten()
                    .zip(gradients.into_iter().flatten())
                {
                    *sum += gradient;
                }
                (loss + more, sums)
            });
        let (loss, gradients) = sums.context("a step has parts")?;
        let warm = (step + 1) as f64 / WARM_UP_STEPS as f64;
        let done = step as f64 / options.steps as f64;
        let falling = 0.02 + 0.49 * (1.0 + (std::f64::consts::PI * done).cos());
        let rate = options.learning_rate * warm.min(1.0) * falling;
        optimizer.step(&config, prior.variables(), &gradients, rate)?;
        report(step + 1, loss / parts_count);
    }
    // The averaged weights, as in a model.
    let [mean, deviation] = prior.scale()?;
    let weights = prior.variables().iter().zip(optimizer.means);
    let mut weights: std::collections::BTreeMap<_, _> = weights
        .map(|((name, _), means)| (name.clone(), means.average))
        .collect();
    weights.insert("mean".to_owned(), mean);
    weights.insert("deviation".to_owned(), deviation);
    Ok(Prior {
        origin: Some(Origin {
            options: options.clone(),
            posteriors: count,
        }),
        ..Prior::from_weights(config, weights)?
    })
}

/// Mean and standard deviation of each element over samples of all posteriors.
fn scale(posteriors: &Posteriors) -> [Vec<f32>; 2] {
    let size = posteriors.vectors * posteriors.width;
    let count = posteriors.lengths.len() as f64;
    let mut sums = vec![[0.0f64; 3]; size];
    let texts = posteriors.all.mean.chunks_exact(size);
    for (means, log_variances) in texts.zip(posteriors.all.log_variance.chunks_exact(size)) {
        for ((sum, mean), log_variance) in sums.iter_mut().zip(means).zip(log_variances) {
            let mean = f64::from(*mean);
            sum[0] += mean / count;
            sum[1] += mean * mean / count;
            sum[2] += f64::from(*log_variance).exp() / count;
        }
    }
    // The variance of samples is that of the means and the mean of the variances.
    let deviation = |[mean, square, variance]: [f64; 3]| {
        (square - mean * mean + variance).max(1e-8).sqrt() as f32
    };
    [
        sums.iter().map(|sum| sum[0] as f32).collect(),
        sums.iter().map(|sum| deviation(*sum)).collect(),
    ]
}

/// The loss of some texts, and its gradients.
fn loss(
    prior: &Prior,
    posteriors: &Posteriors,
    texts: usize,
    random: &mut Random,
) -> Result<(f64, Vec<Vec<f32>>)> {
    let size = posteriors.vectors * posteriors.width;
    let [mean, deviation] = prior.scale()?;
    let (mut clean, mut noisy) = (Vec::new(), Vec::new());
    let mut deviations = Vec::new();
    let mut weights = Vec::new();
    for _ in 0..texts {
        let text = random.below(posteriors.lengths.len()) * size;
        let noise = (LOG_NOISE[0] + LOG_NOISE[1] * random.normal()).exp();
        for element in 0..size {
            let place = text + element;
            let spread = (0.5 * posteriors.all.log_variance[place]).exp();
            let sample = posteriors.all.mean[place] + spread * random.normal() as f32;
            let sample = (sample - mean[element]) / deviation[element];
            clean.push(sample);
            noisy.push(sample + noise as f32 * random.normal() as f32);
        }
        // (σ² + 1)/σ², so that the network is asked for numbers of size one at every noise.
        let weight = (noise * noise + 1.0) / (noise * noise);
        weights.extend(std::iter::repeat_n(weight as f32, posteriors.vectors));
        deviations.push(noise);
    }
    let shape = (texts * posteriors.vectors, posteriors.width);
    let tensor = |values: Vec<f32>| Tensor::from_vec(values, shape, &Device::Cpu);
    let (clean, noisy) = (tensor(clean)?, tensor(noisy)?);
    let errors = (prior.denoise(&noisy, &deviations)? - clean)?
        .sqr()?
        .sum_keepdim(1)?;
    let weights = Tensor::from_vec(weights, (shape.0, 1), &Device::Cpu)?;
    let loss = ((errors * weights)?.sum_all()? / (shape.0 * shape.1) as f64)?;
    let mut store = loss.backward()?;
    let gradients = prior.variables().iter().map(|(name, variable)| {
        let gradient = store.remove(variable.as_tensor());
        let gradient = gradient.with_context(|| format!("{name} has no gradient"))?;
        Ok(gradient.flatten_all()?.to_vec1()?)
    });
    let gradients = gradients.collect::<Result<_>>()?;
    Ok((f64::from(loss.to_scalar::<f32>()?), gradients))
}
