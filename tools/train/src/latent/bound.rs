//! How likely held-out texts are to a latent thought model.
//!
//! All numbers are of fresh noise: what a posterior was fitted with never measures it. The evidence bound is above
//! −log p(x), and so is the bound of several samples (Burda et al. 2016, arXiv 1509.00519), which is the tighter the more
//! there are. Both are for a posterior that has seen the text. What a reader of the prompt can foresee of the answer is
//! told apart, with the latents of the prior and with those learned from the prompt.

use anyhow::{Context as _, Result};
use candle_core::Tensor;

use super::{FastLearning, LatentOptions, Posterior, infer, seen, tensor};
use crate::{
    batch::Part,
    config::{LatentThoughtConfig, ModelConfig},
    likelihood::{LikelihoodOptions, canvases},
    model::{Context, Model},
    objective::{self},
    ops, parallel,
    random::Random,
    text::Source,
};

/// The measurement, in nats for each token, the prompt's included unless it says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bound {
    /// Negative log-likelihood given latents of the posterior, the mean of the samples.
    pub nll: f64,
    /// KL divergence of the posterior from the prior.
    pub kl: f64,
    /// The bound of several samples.
    pub multi_sample: f64,
    /// Negative log-likelihood of an answer's tokens with latents of the prior.
    pub answer_prior: f64,
    /// The same with latents that were learned from the prompt.
    pub answer_prompt: f64,
    /// Tokens that were measured.
    pub tokens: f64,
    /// Of these, tokens of answers.
    pub answer_tokens: f64,
}

impl Bound {
    /// The evidence bound.
    #[must_use]
    pub fn evidence(&self) -> f64 {
        self.nll + self.kl
    }
}

/// Measures held-out texts, one at a time; `options.draws` samples of each posterior.
pub fn measure<'a>(
    model: &Model,
    source: impl Into<Source<'a>>,
    options: &LikelihoodOptions,
    latent: &LatentOptions,
    fast: &FastLearning,
) -> Result<Bound> {
    let ModelConfig::LatentThought(config) = &model.config else {
        anyhow::bail!("only a latent thought model has latent vectors");
    };
    let frozen = model.frozen()?;
    let canvases = canvases(&model.config, source.into(), options)?;
    let sums = parallel::map(options.threads, &canvases, |(number, canvas)| {
        let part = Part::pack([objective::whole(canvas.borrow())]);
        let mut random = Random::new(options.seed ^ 0x626f_756e, *number);
        let text = Text {
            model: &frozen,
            config,
            part: &part,
            samples: options.draws.max(1),
        };
        text.measure(latent, fast, &mut random)
    })?;
    let sum = |pick: fn(&Bound) -> f64| sums.iter().map(pick).sum::<f64>();
    let (tokens, answer_tokens) = (sum(|text| text.tokens), sum(|text| text.answer_tokens));
    Ok(Bound {
        nll: sum(|text| text.nll) / tokens,
        kl: sum(|text| text.kl) / tokens,
        multi_sample: sum(|text| text.multi_sample) / tokens,
        answer_prior: sum(|text| text.answer_prior) / answer_tokens,
        answer_prompt: sum(|text| text.answer_prompt) / answer_tokens,
        tokens,
        answer_tokens,
    })
}

/// One text.
pub struct Text<'a> {
    /// The network, without gradients for its weights.
    pub model: &'a Model,
    /// Its shape.
    pub config: &'a LatentThoughtConfig,
    /// The text as a part of one row.
    pub part: &'a Part,
    /// Samples of each posterior.
    pub samples: usize,
}

impl Text<'_> {
    /// Sums over the tokens of the text, in nats.
    fn measure(
        &self,
        latent: &LatentOptions,
        fast: &FastLearning,
        random: &mut Random,
    ) -> Result<Bound> {
        let initial = latent.initial_log_variance;
        let infer = |part: &Part, random: &mut Random| {
            infer(self.model, self.config, part, fast, initial, None, random)
        };
        let posterior = infer(self.part, random)?;
        let [nll, multi_sample] = self.bounds(&posterior, random)?;
        let prompt = self.part.prompts[0];
        let from_prompt = infer(&seen(self.part, || true), random)?;
        let prior = Posterior {
            mean: vec![0.0; posterior.mean.len()],
            log_variance: vec![0.0; posterior.mean.len()],
        };
        Ok(Bound {
            nll,
            kl: posterior.kl(),
            multi_sample,
            answer_prior: self.answer(&prior, prompt, random)?,
            answer_prompt: self.answer(&from_prompt, prompt, random)?,
            tokens: self.part.targets.len() as f64,
            answer_tokens: (self.part.targets.len() - prompt) as f64,
        })
    }

    /// Mean negative log-likelihood given samples of a posterior, and the bound of all of them together.
    pub fn bounds(&self, posterior: &Posterior, random: &mut Random) -> Result<[f64; 2]> {
        let (mut nll, mut weights) = (0.0, Vec::new());
        for _ in 0..self.samples {
            let noise = posterior.noise(random);
            let latents = posterior.latents(&noise);
            // log p(z) − log q(z): the constants of both Gaussians cancel.
            let ratios = latents.iter().zip(&posterior.log_variance).zip(&noise);
            let ratio = ratios.map(|((latent, log_variance), noise)| {
                let (latent, noise) = (f64::from(*latent), f64::from(*noise));
                0.5 * (noise * noise + f64::from(*log_variance) - latent * latent)
            });
            let ratio: f64 = ratio.sum();
            let cost: f64 = self.costs(latents)?.iter().sum();
            nll += cost / self.samples as f64;
            weights.push(ratio - cost);
        }
        let largest = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = weights.iter().map(|weight| (weight - largest).exp()).sum();
        Ok([nll, -(largest + (sum / self.samples as f64).ln())])
    }

    /// Mean negative log-likelihood of the tokens after a prompt, given samples of a posterior.
    fn answer(&self, posterior: &Posterior, prompt: usize, random: &mut Random) -> Result<f64> {
        let mut nll = 0.0;
        for _ in 0..self.samples {
            let costs = self.costs(posterior.latents(&posterior.noise(random)))?;
            nll += costs[prompt..].iter().sum::<f64>() / self.samples as f64;
        }
        Ok(nll)
    }

    /// −log p of each token given latents.
    pub fn costs(&self, latents: Vec<f32>) -> Result<Vec<f64>> {
        let latents = tensor(self.model, latents)?;
        let context = Context {
            pack: &self.part.pack,
            latents: Some(&latents),
        };
        let logits = self
            .model
            .logits(&self.part.ids, context, &self.part.positions)?;
        let targets = self.part.targets.iter().enumerate();
        let costs = targets.map(|(row, target)| -> Result<f64> {
            let logits: Tensor = logits.narrow(0, row, 1)?;
            let cost = ops::cross_entropy(&logits, vec![*target], vec![1.0])?;
            Ok(f64::from(cost.to_scalar::<f32>()?))
        });
        costs.collect::<Result<_>>().context("score tokens")
    }
}
