//! Passes over texts: masked in part, or read from left to right.

use std::collections::{BTreeMap, BTreeSet};

use sluice_checkpoint::{
    calibration::{InputRows, PositionKind},
    family::MaskToken,
};
use sluice_formats::noise::Noise;
use sluice_weights::MatrixInput;

use crate::request::InputPass;

/// Streams of random numbers that no other purpose uses.
const SHARE_STREAM: u64 = 16;
const MASK_STREAM: u64 = 17;
/// Least share of a text that is masked; the shares are uniform up to 1, as a masked diffusion model is trained
/// (arXiv 2502.09992). Below it hardly a mask is left to learn of.
const SHARE_MIN: f64 = 0.05;
/// How often a text may be masked anew when there is little of it.
const ROUNDS_MAX: usize = 16;

/// Passes, and what they were made of.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct TextPasses {
    pub(super) passes: Vec<InputPass>,
    /// The texts that they were made of, by their places among the samples.
    pub(super) texts: BTreeSet<usize>,
}

impl TextPasses {
    /// Adds a pass that was made of a text.
    pub(super) fn push(&mut self, text: usize, pass: InputPass) {
        self.passes.push(pass);
        self.texts.insert(text);
    }

    pub(super) fn extend(&mut self, others: Self) {
        self.passes.extend(others.passes);
        self.texts.extend(others.texts);
    }

    pub(super) fn positions(&self) -> usize {
        positions(&self.passes)
    }
}

/// Positions of all passes.
pub(super) fn positions(passes: &[InputPass]) -> usize {
    passes.iter().map(|pass| pass.tokens.len()).sum()
}

/// The texts as an autoregressive model reads them, each once.
pub(super) fn read_texts(samples: &[Vec<u32>], positions_max: usize) -> TextPasses {
    let mut left = positions_max;
    let mut passes = TextPasses::default();
    for (text, sample) in samples.iter().enumerate() {
        let count = sample.len().min(left);
        if count > 0 {
            let pass = InputPass {
                tokens: sample[..count].to_vec(),
                rows: (0..count).collect(),
            };
            passes.push(text, pass);
        }
        left -= count;
    }
    passes
}

/// The texts with a random share of each masked, again with other masks until there are enough positions.
pub(super) fn masked_texts(
    samples: &[Vec<u32>],
    mask: MaskToken,
    seed: u64,
    positions_max: usize,
) -> TextPasses {
    let (mut passes, mut left) = (TextPasses::default(), positions_max);
    for index in 0..samples.len() * ROUNDS_MAX {
        let text = index % samples.len();
        let sample = &samples[text];
        if sample.is_empty() {
            continue;
        }
        if left < sample.len() {
            break;
        }
        left -= sample.len();
        passes.push(text, masked_text(sample, mask, seed, index as u64));
    }
    passes
}

/// A text with a share of its tokens masked, at least one; which share and which tokens depends on seed and index.
fn masked_text(sample: &[u32], mask: MaskToken, seed: u64, index: u64) -> InputPass {
    let noise = Noise::new(seed);
    let share = noise.stream(SHARE_STREAM).uniform(index, 0, 0);
    let share = SHARE_MIN + (1.0 - SHARE_MIN) * share;
    let count = ((sample.len() as f64 * share).round() as usize).clamp(1, sample.len());
    let keys = noise.stream(MASK_STREAM);
    let key = |position: usize| keys.uniform(index, position as u64, 0);
    // The positions with the smallest random keys are a uniform subset.
    let mut masked: Vec<usize> = (0..sample.len()).collect();
    masked.sort_by(|&a, &b| key(a).total_cmp(&key(b)));
    masked.truncate(count);
    masked.sort_unstable();
    let mut tokens = sample.to_vec();
    for &position in &masked {
        tokens[position] = mask.id();
    }
    InputPass {
        tokens,
        rows: rows_of(&masked, mask),
    }
}

/// The rows that predict these positions, which rise.
pub(super) fn rows_of(positions: &[usize], mask: MaskToken) -> Vec<usize> {
    let mut rows: Vec<usize> = positions.iter().map(|&at| mask.row_of(at)).collect();
    // The first two positions of a model whose rows are shifted have the same.
    rows.dedup();
    rows
}

/// How many rows each input has at positions of each kind, in the order of a pass; none that has no row.
pub(super) fn counts(
    passes: &[InputPass],
    layers: usize,
    mask: Option<MaskToken>,
) -> Vec<InputRows> {
    let kind = |token: u32| match mask {
        Some(mask) if mask.token_id == Some(token) => PositionKind::Masked,
        _ => PositionKind::Clean,
    };
    let (mut all, mut read) = (BTreeMap::new(), BTreeMap::new());
    for pass in passes {
        for &token in &pass.tokens {
            *all.entry(kind(token)).or_default() += 1;
        }
        for &row in &pass.rows {
            *read.entry(kind(pass.tokens[row])).or_default() += 1;
        }
    }
    let of_input = |input: MatrixInput| {
        let counts = match input.has_all_rows(layers) {
            true => &all,
            false => &read,
        };
        let each = counts
            .iter()
            .map(move |(&kind, &rows)| InputRows { input, kind, rows });
        each.collect::<Vec<_>>()
    };
    MatrixInput::all(layers).flat_map(of_input).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: MaskToken = MaskToken {
        token_id: Some(99),
        shifted: false,
        blocks: None,
        reserved: None,
    };

    fn samples() -> Vec<Vec<u32>> {
        (0..10).map(|i| (i..i + 40 + i).collect()).collect()
    }

    #[test]
    fn masks_are_uniform_from_few_to_all_and_follow_from_the_seed() {
        let made = masked_texts(&samples(), MASK, 3, 4000);
        assert_eq!(made, masked_texts(&samples(), MASK, 3, 4000));
        assert_ne!(made, masked_texts(&samples(), MASK, 4, 4000));
        assert_eq!(made.texts, (0..10).collect());
        let passes = made.passes;
        assert!((3900..=4000).contains(&positions(&passes)));
        let share = |pass: &InputPass| pass.rows.len() as f64 / pass.tokens.len() as f64;
        let shares: Vec<f64> = passes.iter().map(share).collect();
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        assert!((mean - 0.525).abs() < 0.08, "{mean}");
        assert!(
            shares.iter().any(|share| *share < 0.15) && shares.iter().any(|share| *share > 0.9)
        );
        for pass in &passes {
            let masked = (0..pass.tokens.len()).filter(|&at| pass.tokens[at] == 99);
            assert_eq!(masked.collect::<Vec<_>>(), pass.rows);
        }
    }

    #[test]
    fn little_text_is_not_masked_without_end() {
        let made = masked_texts(&[vec![1, 2, 3]], MASK, 3, 1_000_000);
        assert_eq!(made.passes.len(), ROUNDS_MAX);
    }

    #[test]
    fn a_shifted_row_is_read_once() {
        let shifted = MaskToken {
            shifted: true,
            blocks: None,
            ..MASK
        };
        assert_eq!(rows_of(&[0, 1, 2, 5], shifted), [0, 1, 4]);
        assert_eq!(rows_of(&[0, 1, 2, 5], MASK), [0, 1, 2, 5]);
    }

    #[test]
    fn texts_beyond_the_last_position_are_not_said_to_have_been_read() {
        // Of 40, 41 and 42 tokens; the fourth has 43.
        let made = masked_texts(&samples(), MASK, 3, 125);
        assert_eq!(made.texts, [0, 1, 2].into());
        assert_eq!(read_texts(&samples(), 40).texts, [0].into());
    }

    #[test]
    fn an_autoregressive_model_reads_each_text_once() {
        let made = read_texts(&samples(), 100);
        assert_eq!(made.positions(), 100);
        assert_eq!(made.passes[2].rows.len(), 19);
        assert_eq!(made.texts, [0, 1, 2].into());
        let all = read_texts(&samples(), 1_000_000).passes;
        assert_eq!(all.len(), 10);
        let counts = counts(&all, 2, None);
        assert!(
            counts
                .iter()
                .all(|of| of.kind == PositionKind::Clean && of.rows == 445)
        );
        assert_eq!(counts.len(), 9);
    }

    #[test]
    fn inputs_of_the_last_layer_have_rows_that_are_read() {
        let pass = InputPass {
            tokens: vec![1, 99, 99, 2],
            rows: vec![1, 2],
        };
        let counts = counts(&[pass], 2, Some(MASK));
        let rows = |input| {
            let of = counts.iter().filter(|of| of.input == input);
            of.map(|of| (of.kind, of.rows)).collect::<Vec<_>>()
        };
        let both = [(PositionKind::Masked, 2), (PositionKind::Clean, 2)];
        assert_eq!(rows(MatrixInput::Down(0)), both);
        assert_eq!(rows(MatrixInput::Attention(1)), both);
        assert_eq!(rows(MatrixInput::Down(1)), both[..1]);
        assert_eq!(rows(MatrixInput::LmHead), both[..1]);
    }
}
