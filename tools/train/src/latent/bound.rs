//! How likely held-out texts are to a latent thought model.
//!
//! All numbers are of fresh noise: what a posterior was fitted with never measures it. The evidence bound is above
//! −log p(x), and so is the bound of several samples (Burda et al. 2016, arXiv 1509.00519), which is the tighter the more
//! there are. Both are for a posterior that has seen the text. What a reader of the prompt can foresee of the answer is
//! told apart, with latents that were learned from the prompt in so many steps.

use anyhow::Result;

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
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bound {
    /// Negative log-likelihood given latents of the posterior, the mean of the samples.
    pub nll: f64,
    /// KL divergence of the posterior from the prior.
    pub kl: f64,
    /// The bound of several samples.
    pub multi_sample: f64,
    /// Negative log-likelihood of an answer's tokens, for each number of steps that was asked for.
    pub answers: Vec<f64>,
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

/// Measures held-out texts, one at a time; `options.draws` samples of each posterior. Answers are measured with latents that
/// were learned from the prompt in each of the numbers of steps in `thinking`; none are latents of the prior.
pub fn measure<'a>(
    model: &Model,
    source: impl Into<Source<'a>>,
    options: &LikelihoodOptions,
    latent: &LatentOptions,
    fast: &FastLearning,
    thinking: &[usize],
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
        let mut found = text.measure(latent, fast, &mut random)?;
        for &steps in thinking {
            // The same noise for all, so that they differ by their steps alone.
            let mut random = Random::new(options.seed ^ 0x7468_696e, *number);
            let fast = FastLearning { steps, ..*fast };
            found.answers.push(text.answer(latent, &fast, &mut random)?);
        }
        Ok(found)
    })?;
    let sum = |pick: fn(&Bound) -> f64| sums.iter().map(pick).sum::<f64>();
    let (tokens, answer_tokens) = (sum(|text| text.tokens), sum(|text| text.answer_tokens));
    Ok(Bound {
        nll: sum(|text| text.nll) / tokens,
        kl: sum(|text| text.kl) / tokens,
        multi_sample: sum(|text| text.multi_sample) / tokens,
        answers: (0..thinking.len())
            .map(|which| sums.iter().map(|text| text.answers[which]).sum::<f64>() / answer_tokens)
            .collect(),
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
        let posterior = self.infer(self.part, latent, fast, random)?;
        let [nll, multi_sample] = self.bounds(&posterior, random)?;
        Ok(Bound {
            nll,
            kl: posterior.kl(),
            multi_sample,
            answers: Vec::new(),
            tokens: self.part.targets.len() as f64,
            answer_tokens: (self.part.targets.len() - self.part.prompts[0]) as f64,
        })
    }

    fn infer(
        &self,
        part: &Part,
        latent: &LatentOptions,
        fast: &FastLearning,
        random: &mut Random,
    ) -> Result<Posterior> {
        let initial = latent.initial_log_variance;
        infer(self.model, self.config, part, fast, initial, None, random)
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
            let cost = self.cost(latents, 0)?;
            nll += cost / self.samples as f64;
            weights.push(ratio - cost);
        }
        let largest = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = weights.iter().map(|weight| (weight - largest).exp()).sum();
        Ok([nll, -(largest + (sum / self.samples as f64).ln())])
    }

    /// Mean negative log-likelihood of the tokens after the prompt, given samples of the posterior that was learned from it.
    fn answer(
        &self,
        latent: &LatentOptions,
        fast: &FastLearning,
        random: &mut Random,
    ) -> Result<f64> {
        let prompt = self.part.prompts[0];
        let posterior = match fast.steps {
            0 => Posterior::prior(self.config, 1),
            _ => self.infer(&seen(self.part, || true), latent, fast, random)?,
        };
        let mut nll = 0.0;
        for _ in 0..self.samples {
            let latents = posterior.latents(&posterior.noise(random));
            nll += self.cost(latents, prompt)? / self.samples as f64;
        }
        Ok(nll)
    }

    /// −log p of the tokens from this one on, given latents.
    pub fn cost(&self, latents: Vec<f32>, from: usize) -> Result<f64> {
        let latents = tensor(self.model, latents)?;
        let context = Context {
            pack: &self.part.pack,
            latents: Some(&latents),
        };
        let Part {
            ids,
            positions,
            targets,
            ..
        } = self.part;
        let logits = self.model.logits(ids, context, positions)?;
        let weights = (0..targets.len()).map(|row| if row < from { 0.0 } else { 1.0 });
        let cost = ops::cross_entropy(&logits, targets.clone(), weights.collect())?;
        Ok(f64::from(cost.to_scalar::<f32>()?))
    }
}
