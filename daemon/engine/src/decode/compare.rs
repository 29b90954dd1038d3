//! How close a level's outputs are to those of the checkpoint's own weights: the same masked canvases through both.
//!
//! Rows after the final norm are kept, not logits: with a vocabulary of 126,464, those of a few hundred rows would take
//! more than a model's activations.

use crate::{
    error::EngineError,
    model::transformer::{Interrupt, Sequence, Transformer},
    ops::{Activation, Noise, Ops},
    request::Compare,
    residency::Residency,
};

use std::sync::atomic::AtomicBool;

/// Streams of random numbers that must not be each other's.
const SUBSET_STREAM: u64 = 4;

/// Rows that are read of a sample, at most: more of one text say little that others don't.
pub const ROWS_PER_SAMPLE_MAX: usize = 32;

/// A text with some of its tokens masked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masked {
    /// With masks.
    pub canvas: Vec<u32>,
    /// Masked positions that are read, rising.
    pub wanted: Vec<usize>,
    /// What stood there.
    pub targets: Vec<u32>,
}

/// The request's canvases: sample i of n has the share (i + 1/2) / n of its tokens masked, at least one, so that all
/// amounts of masking are met alike, as the likelihood bound wants it (arXiv 2502.09992, equation 14).
#[must_use]
pub fn canvases(request: &Compare, mask: u32) -> Vec<Masked> {
    let count = request.samples.len() as f64;
    let keys = Noise::new(request.seed).stream(SUBSET_STREAM);
    let samples = request.samples.iter().enumerate();
    let masked = samples.map(|(index, sample)| {
        let share = (index as f64 + 0.5) / count;
        let masked = ((sample.len() as f64 * share).ceil() as usize).clamp(1, sample.len());
        // Positions with the smallest random keys are a uniform subset, and the first of them one of it.
        let key = |position: usize| keys.uniform(index as u64, position as u64, 0);
        let mut positions: Vec<usize> = (0..sample.len()).collect();
        positions.sort_by(|&a, &b| key(a).total_cmp(&key(b)));
        positions.truncate(masked);
        let mut canvas = sample.clone();
        for &position in &positions {
            canvas[position] = mask;
        }
        positions.truncate(ROWS_PER_SAMPLE_MAX);
        positions.sort_unstable();
        Masked {
            canvas,
            targets: positions.iter().map(|&position| sample[position]).collect(),
            wanted: positions,
        }
    });
    masked.collect()
}

/// The rows of a canvas that are read, after the final norm.
///
/// # Errors
/// When the pass fails or is cancelled.
pub fn rows(
    masked: &Masked,
    ops: &Ops,
    model: &Transformer,
    weights: &Residency,
    cancel: &AtomicBool,
) -> Result<Activation, Interrupt> {
    let sequence = Sequence {
        tokens: &masked.canvas,
        wanted: &masked.wanted,
    };
    let hidden = model.forward(ops, weights, &[sequence], cancel)?;
    let normed: Result<_, EngineError> = model.final_norm(ops, weights, &hidden);
    Ok(normed?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::ModelId;

    #[test]
    fn masks_are_many_and_few_and_targets_are_what_stood_there() {
        let request = Compare {
            model: ModelId(1),
            level: None,
            samples: (0..20).map(|i| (i..i + 10 + 3 * i).collect()).collect(),
            seed: 5,
        };
        let mut shares = Vec::new();
        for (sample, masked) in request.samples.iter().zip(canvases(&request, 999)) {
            let count = masked.canvas.iter().filter(|&&id| id == 999).count();
            shares.push(count as f64 / sample.len() as f64);
            assert_eq!(masked.wanted.len(), count.min(ROWS_PER_SAMPLE_MAX));
            for (&position, &target) in masked.wanted.iter().zip(&masked.targets) {
                assert_eq!((masked.canvas[position], sample[position]), (999, target));
            }
        }
        let mean = shares.iter().sum::<f64>() / 20.0;
        assert!((mean - 0.5).abs() < 0.05, "{shares:?}");
        assert!(shares[0] < 0.11 && shares[19] > 0.9);
    }
}
