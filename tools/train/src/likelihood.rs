//! How likely the held-out half of the language is to a model, in nats for each token of the answers.
//!
//! For a diffusion model this is an upper bound of the negative log-likelihood, estimated by drawing masks (arXiv
//! 2502.09992, equation 14); it covers the whole canvas, padding included. For an autoregressive model it is exact. Both
//! are divided by the number of answer tokens, the end of turn included.

use anyhow::Result;
use candle_core::{D, DType, Tensor};

use crate::{
    batch::{OwnedCanvas, Part},
    config::ModelConfig,
    corpus::{self, Split},
    model::Model,
    objective, ops, parallel,
    random::Random,
    text::Source,
};

/// Canvases are padded to a multiple of this length.
const CANVAS_MULTIPLE: usize = 32;

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LikelihoodOptions {
    /// Number of held-out samples.
    pub samples: u64,
    /// Masks drawn for each sample.
    pub draws: usize,
    /// The seed of samples and masks.
    pub seed: u64,
    /// Threads to compute with.
    pub threads: usize,
}

/// Nats for each answer token of the held-out samples.
pub fn negative_log_likelihood<'a>(
    model: &Model,
    source: impl Into<Source<'a>>,
    options: &LikelihoodOptions,
) -> Result<f64> {
    let all = held_out(model, source.into(), options, |sample| {
        Ok((sample.nats(&sample.logits(model)?)?, sample.answer_length))
    })?;
    let nats: f64 = all.iter().map(|(nats, _)| nats).sum();
    let tokens: usize = all.iter().map(|(_, tokens)| tokens).sum();
    Ok(nats / tokens as f64)
}

/// How far a model's predictions for the held-out samples are from those of a reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Nats for each answer token, by the reference and by the model.
    pub nats: [f64; 2],
    /// Mean KL divergence of the model from the reference over all predictions.
    pub kl: f64,
    /// Share of the predictions for which both have the same likeliest token.
    pub same_top: f64,
}

/// Compares two models of the same shape by the same mask draws.
pub fn compare<'a>(
    reference: &Model,
    model: &Model,
    source: impl Into<Source<'a>>,
    options: &LikelihoodOptions,
) -> Result<Comparison> {
    /// Of one sample.
    struct Sums {
        nats: [f64; 2],
        kl: f64,
        same_top: f64,
        tokens: f64,
        rows: f64,
    }
    let all = held_out(model, source.into(), options, |sample| {
        let [theirs, ours] = [sample.logits(reference)?, sample.logits(model)?];
        let rows = sample.part.positions.len();
        let kl = ops::divergence(&ours, &theirs, vec![1.0; rows])?;
        let same_top = ours.argmax(D::Minus1)?.eq(&theirs.argmax(D::Minus1)?)?;
        let same_top = same_top.to_dtype(DType::F32)?.sum_all()?;
        Ok(Sums {
            nats: [sample.nats(&theirs)?, sample.nats(&ours)?],
            kl: f64::from(kl.to_scalar::<f32>()?),
            same_top: f64::from(same_top.to_scalar::<f32>()?),
            tokens: sample.answer_length as f64,
            rows: rows as f64,
        })
    })?;
    let sum = |pick: fn(&Sums) -> f64| all.iter().map(pick).sum::<f64>();
    let (tokens, rows) = (sum(|sums| sums.tokens), sum(|sums| sums.rows));
    Ok(Comparison {
        nats: [
            sum(|sums| sums.nats[0]) / tokens,
            sum(|sums| sums.nats[1]) / tokens,
        ],
        kl: sum(|sums| sums.kl) / rows,
        same_top: sum(|sums| sums.same_top) / rows,
    })
}

/// A held-out sample with all its mask draws.
struct HeldOut {
    part: Part,
    draws: usize,
    answer_length: usize,
}

impl HeldOut {
    fn logits(&self, model: &Model) -> Result<Tensor> {
        let Part {
            ids,
            pack,
            positions,
            ..
        } = &self.part;
        Ok(model.logits(ids, pack, positions)?.detach())
    }

    /// Nats for the whole answer, the mean over its draws.
    fn nats(&self, logits: &Tensor) -> Result<f64> {
        let (targets, weights) = (self.part.targets.clone(), self.part.weights.clone());
        let loss = ops::cross_entropy(logits, targets, weights)?;
        Ok(f64::from(loss.to_scalar::<f32>()?) / self.draws as f64)
    }
}

/// Calls `measure` for every held-out sample.
fn held_out<R: Send>(
    model: &Model,
    source: Source<'_>,
    options: &LikelihoodOptions,
    measure: impl Fn(HeldOut) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let canvases = canvases(&model.config, source, options)?;
    parallel::map(options.threads, &canvases, |(number, canvas)| {
        let mut random = Random::new(options.seed ^ 0x626f_756e, *number);
        let rows: Vec<_> = if model.config.causal() {
            let mut row = objective::shift(canvas.borrow());
            row.weights.fill(1.0);
            vec![row]
        } else {
            // Stratified draws: every degree of masking is met, which lowers the variance of the estimate.
            let offset = random.unit();
            (0..options.draws)
                .map(|draw| {
                    let level = (draw as f64 + offset) / options.draws as f64;
                    let mask_id = source.vocabulary.mask_id;
                    objective::mask_for_bound(canvas.borrow(), mask_id, level, &mut random)
                })
                .collect()
        };
        let sample = HeldOut {
            draws: rows.len(),
            part: Part::pack(rows),
            answer_length: canvas.answer_length,
        };
        measure(sample)
    })
}

/// Held-out samples by number that fit the shape of a model; the others are left out of all sums.
pub fn canvases(
    config: &ModelConfig,
    source: Source<'_>,
    options: &LikelihoodOptions,
) -> Result<Vec<(u64, OwnedCanvas)>> {
    let length_max = config.length_max();
    if let Some(text) = source.text {
        let (length, prompt_length) = match config {
            ModelConfig::LatentThought(_) => (length_max + 1, length_max / 4),
            _ if config.causal() => (length_max + 1, 1),
            _ => (length_max, 0),
        };
        let pieces = text.held_out(options.samples, length)?.into_iter();
        let canvases = pieces.map(|ids| OwnedCanvas {
            ids,
            prompt_length,
            answer_length: length - prompt_length,
        });
        return Ok((0..).zip(canvases).collect());
    }
    let canvases = (0..options.samples).map(|number| {
        let sample = corpus::sample(Split::HeldOut, options.seed, number);
        let padding = |answer_length: usize| {
            if config.causal() {
                0
            } else {
                answer_length.next_multiple_of(CANVAS_MULTIPLE) - answer_length
            }
        };
        let canvas = OwnedCanvas::new(source.vocabulary, &sample, padding, length_max)?;
        Ok(canvas.map(|canvas| (number, canvas)))
    });
    canvases.filter_map(Result::transpose).collect()
}
