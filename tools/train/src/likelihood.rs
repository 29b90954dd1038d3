//! How likely the held-out half of the language is to a model, in nats for each token of the answers.
//!
//! For a diffusion model this is an upper bound of the negative log-likelihood, estimated by drawing masks (arXiv
//! 2502.09992, equation 14); it covers the whole canvas, padding included. For an autoregressive model it is exact. Both
//! are divided by the number of answer tokens, the end of turn included.

use anyhow::Result;

use crate::{
    batch::{OwnedCanvas, Part},
    corpus::{self, Split},
    model::Model,
    objective, ops, parallel,
    random::Random,
    vocabulary::Vocabulary,
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
pub fn negative_log_likelihood(
    model: &Model,
    vocabulary: &Vocabulary,
    options: &LikelihoodOptions,
) -> Result<f64> {
    let numbers: Vec<u64> = (0..options.samples).collect();
    let results = parallel::map(options.threads, &numbers, |number| {
        let sample = corpus::sample(Split::HeldOut, options.seed, *number);
        let padding = |answer_length: usize| {
            if model.config.causal {
                0
            } else {
                answer_length.next_multiple_of(CANVAS_MULTIPLE) - answer_length
            }
        };
        let length_max = model.config.max_sequence_length;
        let Some(canvas) = OwnedCanvas::new(vocabulary, &sample, padding, length_max)? else {
            // Too long for the model: left out of both sums.
            return Ok((0.0, 0));
        };
        let mut random = Random::new(options.seed ^ 0x626f_756e, *number);
        let rows: Vec<_> = if model.config.causal {
            let mut row = objective::shift(canvas.borrow());
            row.weights.fill(1.0);
            vec![row]
        } else {
            // Stratified draws: every degree of masking is met, which lowers the variance of the estimate.
            let offset = random.unit();
            (0..options.draws)
                .map(|draw| {
                    let level = (draw as f64 + offset) / options.draws as f64;
                    let mask_id = vocabulary.mask_id;
                    objective::mask_for_bound(canvas.borrow(), mask_id, level, &mut random)
                })
                .collect()
        };
        let draws = rows.len() as f64;
        let part = Part::pack(rows);
        let logits = model.logits(&part.ids, &part.pack, &part.positions)?;
        let loss = ops::cross_entropy(&logits, part.targets, part.weights)?;
        Ok((
            f64::from(loss.to_scalar::<f32>()?) / draws,
            canvas.answer_length,
        ))
    })?;
    let total: f64 = results.iter().map(|(nats, _)| nats).sum();
    let tokens: usize = results.iter().map(|(_, tokens)| tokens).sum();
    Ok(total / tokens as f64)
}
