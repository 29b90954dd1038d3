//! How close a level's outputs are to those of the checkpoint's own weights: the same texts through both, with some
//! tokens masked, or read from left to right by an autoregressive model.
//!
//! Rows after the final norm are kept, not logits: with a vocabulary of 126,464, those of a few hundred rows would take
//! more than a model's activations.

use std::sync::atomic::AtomicBool;

use sluice_checkpoint::family::MaskToken;
use sluice_formats::{Format, noise::Noise};
use sluice_ops::{Activation, Ops};
use sluice_weights::Shape;

use crate::{
    error::EngineError,
    model::{
        network::{Interrupt, Network, Sequence, VisibleKeys},
        sequence_memory::{SequenceMemory, SequenceShape},
    },
    request::MeasureFidelity,
    residency::Residency,
};

/// A stream of random numbers that no other purpose uses.
const SUBSET_STREAM: u64 = 4;

/// Most rows that are read of a sample: more of one text say little that others do not.
pub const ROWS_PER_SAMPLE_MAX: usize = 32;

/// A text, and the positions that the model is asked to predict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FidelitySample {
    /// Its tokens, masked where a masked diffusion model is asked.
    pub tokens: Vec<u32>,
    /// Rows that are read, rising.
    pub rows: Vec<usize>,
    /// The true token of each row.
    pub targets: Vec<u32>,
}

/// The request's samples, as a model with this mask reads them; an autoregressive model has none.
#[must_use]
pub fn samples(request: &MeasureFidelity, mask: Option<MaskToken>) -> Vec<FidelitySample> {
    match mask {
        Some(mask) => masked(request, mask),
        None => request.samples.iter().map(|text| continued(text)).collect(),
    }
}

/// Sample i of n has the share (i + 1/2) / n of its tokens masked, at least one, so that all degrees of masking occur
/// equally, as the likelihood bound requires (arXiv 2502.09992, equation 14).
fn masked(request: &MeasureFidelity, mask: MaskToken) -> Vec<FidelitySample> {
    let count = request.samples.len() as f64;
    let keys = Noise::new(request.seed).stream(SUBSET_STREAM);
    let samples = request.samples.iter().enumerate();
    let masked = samples.map(|(index, sample)| {
        let share = (index as f64 + 0.5) / count;
        let masked = ((sample.len() as f64 * share).ceil() as usize).clamp(1, sample.len());
        // The positions with the smallest random keys are a uniform subset, and a prefix of them is a uniform subset of
        // it.
        let key = |position: usize| keys.uniform(index as u64, position as u64, 0);
        let mut positions: Vec<usize> = (0..sample.len()).collect();
        positions.sort_by(|&a, &b| key(a).total_cmp(&key(b)));
        positions.truncate(masked);
        let mut tokens = sample.clone();
        for &position in &positions {
            tokens[position] = mask.id();
        }
        positions.truncate(ROWS_PER_SAMPLE_MAX);
        positions.sort_unstable();
        FidelitySample {
            tokens,
            targets: positions.iter().map(|&position| sample[position]).collect(),
            rows: positions.iter().map(|&at| mask.row_of(at)).collect(),
        }
    });
    masked.collect()
}

/// The tokens after positions at equal distances; none for a text of one token.
fn continued(text: &[u32]) -> FidelitySample {
    let all = text.len() - 1;
    let count = all.min(ROWS_PER_SAMPLE_MAX);
    let rows: Vec<usize> = (0..count).map(|index| index * all / count).collect();
    FidelitySample {
        tokens: text.to_vec(),
        targets: rows.iter().map(|row| text[row + 1]).collect(),
        rows,
    }
}

/// How an autoregressive model reads a sample.
#[derive(Debug, Clone, Copy)]
pub struct SampleReading {
    /// What is kept of the tokens before.
    pub memory: SequenceShape,
    /// Most tokens that go through the layers together.
    pub rows: usize,
}

impl SampleReading {
    /// How a model of this shape reads, its KV cache in this format, where `mlp_rows` go through an MLP together.
    #[must_use]
    pub fn new(shape: &Shape, format: Format, mlp_rows: usize) -> Self {
        let memory = SequenceShape::of(shape, format);
        Self {
            memory,
            rows: memory.pass_rows(mlp_rows),
        }
    }
}

/// Gives the rows of a sample that are read, after the final norm, to `take`, in one part or more.
///
/// # Errors
/// When the pass fails or is cancelled.
pub fn rows(
    sample: &FidelitySample,
    ops: &Ops,
    (model, weights): (&Network, &Residency),
    reading: Option<SampleReading>,
    cancel: &AtomicBool,
    take: &mut dyn FnMut(&Activation) -> Result<(), EngineError>,
) -> Result<(), Interrupt> {
    let mut take = |hidden: &Activation| match hidden.len() {
        0 => Ok(()),
        _ => take(&model.final_norm(ops, weights, hidden)?),
    };
    let positions: Vec<usize> = (0..sample.tokens.len()).collect();
    let Some(reading) = reading else {
        let sequence = Sequence {
            tokens: &sample.tokens,
            positions: &positions,
            wanted: &sample.rows,
            sees: VisibleKeys::Each { checks: 0 },
        };
        let hidden = model.forward(ops, weights, &mut [sequence], cancel)?;
        return Ok(take(&hidden)?);
    };
    let mut memory = SequenceMemory::new(ops, reading.memory, sample.tokens.len())?;
    // In chunks, as requests read their prompts: the plan has activations for no more rows at once.
    for (index, tokens) in sample.tokens.chunks(reading.rows).enumerate() {
        let start = index * reading.rows;
        let here = |row: &usize| row.checked_sub(start).filter(|&row| row < tokens.len());
        let wanted: Vec<usize> = sample.rows.iter().filter_map(here).collect();
        let next = Sequence {
            tokens,
            positions: &positions[start..][..tokens.len()],
            wanted: &wanted,
            sees: memory.sees(),
        };
        let hidden = model.forward(ops, weights, &mut [next], cancel)?;
        take(&hidden)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::ModelId;

    #[test]
    fn masks_are_many_and_few_and_targets_are_what_stood_there() {
        let request = MeasureFidelity {
            model: ModelId(1),
            level: None,
            samples: (0..20).map(|i| (i..i + 10 + 3 * i).collect()).collect(),
            seed: 5,
        };
        let mask = |shifted| {
            Some(MaskToken {
                token_id: Some(999),
                shifted,
                blocks: None,
                reserved: None,
            })
        };
        let mut shares = Vec::new();
        let shifted = samples(&request, mask(true));
        let all = samples(&request, mask(false));
        for (text, (masked, shifted)) in request.samples.iter().zip(all.iter().zip(&shifted)) {
            let count = masked.tokens.iter().filter(|&&id| id == 999).count();
            shares.push(count as f64 / text.len() as f64);
            assert_eq!(masked.rows.len(), count.min(ROWS_PER_SAMPLE_MAX));
            for (&position, &target) in masked.rows.iter().zip(&masked.targets) {
                assert_eq!((masked.tokens[position], text[position]), (999, target));
            }
            let before = masked.rows.iter().map(|row| row.saturating_sub(1));
            assert_eq!(shifted.rows, before.collect::<Vec<_>>());
            assert_eq!(shifted.targets, masked.targets);
        }
        let mean = shares.iter().sum::<f64>() / 20.0;
        assert!((mean - 0.5).abs() < 0.05, "{shares:?}");
        assert!(shares[0] < 0.11 && shares[19] > 0.9);
    }

    #[test]
    fn a_causal_model_is_asked_for_what_follows() {
        let sample = |len: u32| continued(&(100..100 + len).collect::<Vec<_>>());
        assert_eq!(sample(1).rows, [0; 0]);
        assert_eq!(
            (sample(3).rows, sample(3).targets),
            (vec![0, 1], vec![101, 102])
        );
        let long = sample(1000);
        assert_eq!(long.rows.len(), ROWS_PER_SAMPLE_MAX);
        assert!(long.rows.is_sorted_by(|a, b| b - a >= 31));
        for (&row, &target) in long.rows.iter().zip(&long.targets) {
            assert_eq!(long.tokens[row] + 1, target);
        }
    }
}
