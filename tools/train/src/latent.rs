//! Learning the latent vectors of texts: the fast half of a latent thought model's training, and the whole of its
//! inference.
//!
//! Paper: "Scalable Language Models with Posterior Inference of Latent Thought Vectors" (arXiv 2502.01567), Algorithm 1.
//! Each text has a diagonal Gaussian posterior (μ, log σ²) of its own, fitted by a few steps of Adam on the evidence
//! bound with fixed weights. As in the paper, and other than in the authors' program, every step and every measurement
//! draws fresh noise: with one noise for all, z = μ + σε can be fitted as if nothing were random, and what is measured is
//! no bound. Only latents have gradients here, and nothing pulls them towards zero but the bound itself.

pub mod bound;
pub mod posteriors;

use std::f64::consts::PI;

use anyhow::{Context as _, Result};
use candle_core::{Tensor, Var};
use serde::{Deserialize, Serialize};

use crate::{
    batch::Part,
    config::LatentThoughtConfig,
    gradient,
    model::{Context, Model},
    objective::Row,
    ops,
    random::Random,
};

/// Decays of Adam's means, as the reference has them.
const DECAYS: [f64; 2] = [0.9, 0.999];
/// Standard deviation of μ and of log σ² at the start, as the reference has them.
const START_SPREADS: [f64; 2] = [0.01, 0.1];

/// How latents are learned in training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatentOptions {
    /// Steps for each batch.
    pub steps: usize,
    /// Learning rate at the first step of the run.
    pub first_rate: f64,
    /// Learning rate at its last.
    pub last_rate: f64,
    /// log σ² at the start of each inference: the prior's is 0, the reference begins at −5.
    pub initial_log_variance: f64,
    /// Share of the run in which the KL divergence comes to count, from nothing to all, in learning latents; what is measured
    /// counts all of it always. Else a network of good local context never begins to use its latents. Beyond 1 it counts
    /// less than all even at the end: 5 ends at a fifth.
    pub kl_warm_up: f64,
    /// Share of the texts whose latents are learned from their beginning alone and then asked for all, as in generation.
    /// The bound holds for any posterior, so for this one, too.
    pub prefix_share: f64,
}

impl Default for LatentOptions {
    fn default() -> Self {
        Self {
            steps: 16,
            first_rate: 0.3,
            last_rate: 0.34,
            initial_log_variance: -5.0,
            kl_warm_up: 0.0,
            prefix_share: 0.0,
        }
    }
}

impl LatentOptions {
    /// Fast learning where `done` of the run is over, from 0 to 1.
    #[must_use]
    pub fn at(&self, done: f64) -> FastLearning {
        FastLearning {
            steps: self.steps,
            rate: self.first_rate + done * (self.last_rate - self.first_rate),
            kl_weight: if done < self.kl_warm_up {
                done / self.kl_warm_up
            } else {
                1.0
            },
            weight_decay: 0.0,
        }
    }
}

/// The settings of one inference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FastLearning {
    /// Steps of Adam.
    pub steps: usize,
    /// The highest learning rate; it falls to a tenth along half a cosine.
    pub rate: f64,
    /// What the KL divergence counts; 1 for the evidence bound.
    pub kl_weight: f64,
    /// Decoupled weight decay: 0, but for comparison with the reference.
    pub weight_decay: f64,
}

/// The posteriors of some texts, one after another, each with all its latent vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    /// Means.
    pub mean: Vec<f32>,
    /// Logarithms of the variances.
    pub log_variance: Vec<f32>,
}

impl Posterior {
    /// Where inference begins, for so many texts.
    #[must_use]
    pub fn start(
        config: &LatentThoughtConfig,
        texts: usize,
        initial_log_variance: f64,
        random: &mut Random,
    ) -> Self {
        let count = texts * config.max_z_len * config.dim;
        let [mean, spread] = START_SPREADS;
        let mut normal = |spread: f64, middle: f64| -> Vec<f32> {
            let draw = |_| (middle + spread * random.normal()) as f32;
            (0..count).map(draw).collect()
        };
        Self {
            mean: normal(mean, 0.0),
            log_variance: normal(spread, initial_log_variance),
        }
    }

    /// The prior of so many texts.
    #[must_use]
    pub fn prior(config: &LatentThoughtConfig, texts: usize) -> Self {
        let zeros = vec![0.0; texts * config.max_z_len * config.dim];
        Self {
            mean: zeros.clone(),
            log_variance: zeros,
        }
    }

    /// The latents that a noise gives.
    #[must_use]
    pub fn latents(&self, noise: &[f32]) -> Vec<f32> {
        let gaussians = self.mean.iter().zip(&self.log_variance).zip(noise);
        gaussians
            .map(|((mean, log_variance), noise)| mean + (0.5 * log_variance).exp() * noise)
            .collect()
    }

    /// Fresh noise for one sample.
    #[must_use]
    pub fn noise(&self, random: &mut Random) -> Vec<f32> {
        self.mean.iter().map(|_| random.normal() as f32).collect()
    }

    /// KL divergence from the prior N(0, 1), in nats, over all texts.
    #[must_use]
    pub fn kl(&self) -> f64 {
        let gaussians = self.mean.iter().zip(&self.log_variance);
        let terms = gaussians.map(|(mean, log_variance)| {
            let (mean, log_variance) = (f64::from(*mean), f64::from(*log_variance));
            mean * mean + log_variance.exp() - 1.0 - log_variance
        });
        0.5 * terms.sum::<f64>()
    }

    /// Steps of Adam on the evidence bound of a part's rows, whose predictions all count one. The model's weights should
    /// be [frozen](Model::frozen): nothing is done for theirs.
    pub fn learn(
        &mut self,
        model: &Model,
        part: &Part,
        fast: &FastLearning,
        interval: Option<usize>,
        noise: &mut dyn FnMut(&Self) -> Vec<f32>,
    ) -> Result<()> {
        let mut means = [(); 4].map(|()| vec![0.0; self.mean.len()]);
        for step in 1..=fast.steps {
            let noise = noise(self);
            let slopes = self.slopes(model, part, &noise, fast.kl_weight, interval)?;
            let falling = 0.5 * (1.0 + (PI * (step - 1) as f64 / fast.steps as f64).cos());
            let rate = fast.rate * (0.1 + 0.9 * falling);
            let [first_mean, second_mean, first_variance, second_variance] = &mut means;
            for (values, slopes, first, second) in [
                (&mut self.mean, &slopes[0], first_mean, second_mean),
                (
                    &mut self.log_variance,
                    &slopes[1],
                    first_variance,
                    second_variance,
                ),
            ] {
                adam(
                    values,
                    slopes,
                    [first, second],
                    step,
                    rate,
                    fast.weight_decay,
                );
            }
        }
        Ok(())
    }

    /// The gradients of the negative evidence bound for means and log variances, with one noise, and with the KL divergence
    /// at this weight.
    pub fn slopes(
        &self,
        model: &Model,
        part: &Part,
        noise: &[f32],
        kl_weight: f64,
        interval: Option<usize>,
    ) -> Result<[Vec<f32>; 2]> {
        let latents = Var::from_tensor(&tensor(model, self.latents(noise))?)?;
        let context = Context {
            pack: &part.pack,
            latents: Some(latents.as_tensor()),
        };
        let weights = vec![1.0; part.targets.len()];
        let loss = |x: &Tensor| {
            let logits = model.head(x, &part.positions)?;
            Ok(ops::cross_entropy(
                &logits,
                part.targets.clone(),
                weights.clone(),
            )?)
        };
        let (_, found) =
            gradient::backward(model, &part.ids, context, &[&latents], interval, &loss)?;
        let slope = found.into_iter().next().flatten();
        let slope = slope.context("the network ignores its latent vectors")?;
        let slope = slope.flatten_all()?.to_vec1::<f32>()?;
        // The KL divergence has its gradients on paper.
        let kl_weight = kl_weight as f32;
        let mean = self.mean.iter().zip(&slope);
        let mean = mean.map(|(mean, slope)| slope + kl_weight * mean);
        let gaussians = self.log_variance.iter().zip(&slope).zip(noise);
        let log_variance = gaussians.map(|((log_variance, slope), noise)| {
            let deviation = (0.5 * log_variance).exp();
            0.5 * (slope * noise * deviation + kl_weight * (deviation * deviation - 1.0))
        });
        Ok([mean.collect(), log_variance.collect()])
    }
}

/// Learns the posteriors of a part's rows with fresh noise in every step.
pub fn infer(
    model: &Model,
    config: &LatentThoughtConfig,
    part: &Part,
    fast: &FastLearning,
    initial_log_variance: f64,
    interval: Option<usize>,
    random: &mut Random,
) -> Result<Posterior> {
    let texts = part.pack.sequences().count();
    let mut posterior = Posterior::start(config, texts, initial_log_variance, random);
    posterior.learn(model, part, fast, interval, &mut |posterior| {
        posterior.noise(random)
    })?;
    Ok(posterior)
}

/// A tensor of latents, one vector a row.
pub fn tensor(model: &Model, latents: Vec<f32>) -> Result<Tensor> {
    let width = model.config.width();
    let shape = (latents.len() / width, width);
    Ok(Tensor::from_vec(latents, shape, model.device())?)
}

/// The rows that latents are learned from: whole ones, and the prompts of those that `from_prompt` picks.
pub fn seen(part: &Part, mut from_prompt: impl FnMut() -> bool) -> Part {
    let rows = part
        .pack
        .sequences()
        .zip(&part.prompts)
        .map(|(rows, prompt)| {
            let length = match *prompt {
                prompt if prompt > 0 && from_prompt() => prompt,
                _ => rows.len(),
            };
            let rows = rows.start..rows.start + length;
            Row {
                ids: part.ids[rows.clone()].to_vec(),
                positions: (0..length as u32).collect(),
                targets: part.targets[rows.clone()].to_vec(),
                weights: part.weights[rows].to_vec(),
                prompt: *prompt,
            }
        });
    Part::pack(rows)
}

/// One step of AdamW for values with their running means of gradients and of squared gradients.
fn adam(
    values: &mut [f32],
    slopes: &[f32],
    means: [&mut Vec<f32>; 2],
    step: usize,
    rate: f64,
    weight_decay: f64,
) {
    let [first_decay, second_decay] = DECAYS;
    let correction = |decay: f64| 1.0 - decay.powi(step as i32);
    let scale = (rate / correction(first_decay)) as f32;
    let second_correction = correction(second_decay).sqrt().recip() as f32;
    let keep = (1.0 - rate * weight_decay) as f32;
    let [first_decay, second_decay] = [first_decay as f32, second_decay as f32];
    let [firsts, seconds] = means;
    let means = firsts.iter_mut().zip(seconds);
    for ((value, slope), (first, second)) in values.iter_mut().zip(slopes).zip(means) {
        *first = first_decay * *first + (1.0 - first_decay) * slope;
        *second = second_decay * *second + (1.0 - second_decay) * slope * slope;
        *value = keep * *value - scale * *first / (second.sqrt() * second_correction + 1e-8);
    }
}
