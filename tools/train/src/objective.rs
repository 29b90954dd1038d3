//! The training objectives as data: what of an answer is hidden, and how much each hidden token counts.
//!
//! LLaDA's fine-tuning objective (arXiv 2502.09992, section 2.3): the prompt stays visible, each answer token is masked
//! with probability t, and the loss of a masked token is its cross-entropy divided by t and by the answer's length. Here
//! the number of masked tokens is drawn instead of t (the paper's equation 14), which has the same mean and less
//! variance: it makes the loss of a row the mean over its masked tokens.
//!
//! A part of the rows is masked the way decoding meets them. In a block row everything before a window is visible and
//! everything after it is masked but does not count; in a gap row only a span inside the answer may be masked. Both are
//! the same objective with a larger prompt. The padding with the end token is part of the answer but counts only a
//! little, since it is easy and would otherwise drown the text.

use std::ops::Range;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::random::Random;

/// What the network is trained for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Fill in masked tokens, in any order.
    Diffusion,
    /// Predict each token from those before it: a causal network, which is exported as a Llama.
    #[value(alias = "causal")]
    Autoregressive,
    /// Predict each token from a few before it and from latent vectors that are learned for each text: a latent thought
    /// model.
    Latent,
}

/// Rows masked like a block being decoded, and rows masked like a gap being filled; the others are masked anywhere.
const BLOCK_CHANCE: f64 = 0.6;
const GAP_CHANCE: f64 = 0.15;
/// Positions decoded together, as the exported model recommends: few enough that a small model can foresee how long the
/// text it has not written yet will be.
pub const BLOCK_LENGTH: usize = 4;
/// Lengths of the windows of block rows; the longer ones are for requests with longer blocks.
const BLOCK_LENGTHS: [usize; 4] = [BLOCK_LENGTH, BLOCK_LENGTH, 8, 32];
/// The weight of a padding token after the end of the turn.
const PADDING_WEIGHT: f32 = 0.1;

/// The tokens of a canvas, and which of them the loss asks for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// The tokens, some of them masked.
    pub ids: Vec<u32>,
    /// Positions whose predictions the loss reads.
    pub positions: Vec<u32>,
    /// The token that each prediction should be.
    pub targets: Vec<u32>,
    /// The weight of each prediction; on average they add up to one.
    pub weights: Vec<f32>,
    /// How many of the predictions are the prompt's, where those are asked for, too.
    pub prompt: usize,
}

/// An answer on its canvas: the tokens of the canvas and the range of the answer, then padding to the end.
#[derive(Debug, Clone, Copy)]
pub struct Canvas<'a> {
    /// Prompt, answer and padding.
    pub ids: &'a [u32],
    /// Where the answer begins.
    pub prompt_length: usize,
    /// Tokens of the answer, its end of turn included.
    pub answer_length: usize,
}

impl Canvas<'_> {
    fn importance(&self, position: usize) -> f32 {
        if position < self.prompt_length + self.answer_length {
            1.0
        } else {
            PADDING_WEIGHT
        }
    }
}

/// Which positions of an answer may be masked and count, and from where on everything is masked and does not.
#[derive(Debug, Clone, PartialEq, Eq)]
struct View {
    window: Range<usize>,
    hidden_from: usize,
}

impl View {
    fn draw(canvas: Canvas<'_>, random: &mut Random) -> Self {
        let (start, end) = (canvas.prompt_length, canvas.ids.len());
        let kind = random.unit();
        if kind < BLOCK_CHANCE {
            let length = *random.pick(&BLOCK_LENGTHS);
            // Windows begin where blocks would begin in decoding, at multiples of their length.
            let from = start + length * random.below(canvas.answer_length.div_ceil(length));
            let to = (from + length).min(end);
            Self {
                window: from..to,
                hidden_from: to,
            }
        } else if kind < BLOCK_CHANCE + GAP_CHANCE {
            let length = 1 + random.below(canvas.answer_length);
            let from = start + random.below(canvas.answer_length + 1 - length);
            Self {
                window: from..from + length,
                hidden_from: end,
            }
        } else {
            Self {
                window: start..end,
                hidden_from: end,
            }
        }
    }
}

/// The row of a diffusion step. `level` in 0..1 decides how much is masked: little at 0, everything at 1.
pub fn mask(canvas: Canvas<'_>, mask_id: u32, level: f64, random: &mut Random) -> Row {
    let view = View::draw(canvas, random);
    let mut row = mask_within(canvas, view.window, mask_id, level, random);
    row.ids[view.hidden_from..].fill(mask_id);
    row
}

/// A row with only uniform masking of the whole answer and its padding: the terms of the likelihood bound, where every
/// token counts the same (arXiv 2502.09992, equation 14).
pub fn mask_for_bound(canvas: Canvas<'_>, mask_id: u32, level: f64, random: &mut Random) -> Row {
    let window = canvas.prompt_length..canvas.ids.len();
    let mut row = mask_within(canvas, window.clone(), mask_id, level, random);
    row.weights
        .fill(window.len() as f32 / row.positions.len() as f32);
    row
}

fn mask_within(
    canvas: Canvas<'_>,
    window: Range<usize>,
    mask_id: u32,
    level: f64,
    random: &mut Random,
) -> Row {
    let mut positions: Vec<u32> = window.clone().map(|position| position as u32).collect();
    // At least one mask: a row without any has no loss.
    let count = ((level * window.len() as f64) as usize + 1).min(window.len());
    random.shuffle(&mut positions);
    positions.truncate(count);
    positions.sort_unstable();
    let total: f32 = window
        .clone()
        .map(|position| canvas.importance(position))
        .sum();
    // Divided by the number of masks instead of their probability: the mean over the masked tokens (equation 14).
    let scale = window.len() as f32 / (count as f32 * total);
    let mut row = Row {
        ids: canvas.ids.to_vec(),
        ..Row::default()
    };
    for position in positions {
        let index = position as usize;
        row.targets.push(canvas.ids[index]);
        row.weights.push(scale * canvas.importance(index));
        row.ids[index] = mask_id;
        row.positions.push(position);
    }
    row
}

/// The row of an autoregressive step: each answer token is asked for at the position before it. Padding is left out.
pub fn shift(canvas: Canvas<'_>) -> Row {
    let (start, length) = (canvas.prompt_length, canvas.answer_length);
    Row {
        ids: canvas.ids[..start + length].to_vec(),
        positions: (start..start + length)
            .map(|position| position as u32 - 1)
            .collect(),
        targets: canvas.ids[start..start + length].to_vec(),
        weights: vec![1.0 / length as f32; length],
        prompt: 0,
    }
}

/// The row of a latent thought model: every token but the first is asked for, the prompt's too, since latent vectors are
/// learned from them. Padding is left out.
pub fn whole(canvas: Canvas<'_>) -> Row {
    let ids = &canvas.ids[..canvas.prompt_length + canvas.answer_length];
    let length = ids.len() - 1;
    Row {
        ids: ids[..length].to_vec(),
        positions: (0..length as u32).collect(),
        targets: ids[1..].to_vec(),
        weights: vec![1.0 / length as f32; length],
        prompt: canvas.prompt_length - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: u32 = 99;
    const PROMPT: usize = 5;

    fn ids() -> Vec<u32> {
        (0..40).collect()
    }

    fn canvas(ids: &[u32]) -> Canvas<'_> {
        Canvas {
            ids,
            prompt_length: PROMPT,
            answer_length: 25,
        }
    }

    #[test]
    fn the_prompt_is_never_masked_and_targets_are_what_stood_there() {
        let ids = ids();
        let mut random = Random::new(3, 0);
        for step in 0..500 {
            let level = f64::from(step) / 500.0;
            let row = mask(canvas(&ids), MASK, level, &mut random);
            assert_eq!(row.ids[..PROMPT], ids[..PROMPT]);
            assert!(!row.positions.is_empty());
            for (position, target) in row.positions.iter().zip(&row.targets) {
                assert_eq!(row.ids[*position as usize], MASK);
                assert_eq!(ids[*position as usize], *target);
            }
        }
    }

    #[test]
    fn weights_add_up_to_one_on_average() {
        let ids = ids();
        let mut random = Random::new(4, 0);
        let rows = 20_000;
        let total: f32 = (0..rows)
            .flat_map(|_| {
                let level = random.unit();
                mask(canvas(&ids), MASK, level, &mut random).weights
            })
            .sum();
        let mean = total / rows as f32;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn the_bound_counts_every_token_once_on_average() {
        let ids = ids();
        let mut random = Random::new(5, 0);
        let mut counts = [0.0; 40];
        let rows = 50_000;
        for _ in 0..rows {
            let level = random.unit();
            let row = mask_for_bound(canvas(&ids), MASK, level, &mut random);
            for (position, weight) in row.positions.iter().zip(&row.weights) {
                counts[*position as usize] += weight / rows as f32;
            }
        }
        for (position, count) in counts.into_iter().enumerate() {
            let expected = if position < PROMPT { 0.0 } else { 1.0 };
            assert!((count - expected).abs() < 0.05, "{position}: {count}");
        }
    }

    #[test]
    fn an_autoregressive_row_asks_for_the_next_token() {
        let ids = ids();
        let row = shift(canvas(&ids));
        assert_eq!(row.ids, ids[..30]);
        for (position, target) in row.positions.iter().zip(&row.targets) {
            assert_eq!(ids[*position as usize + 1], *target);
        }
        assert_eq!(row.targets.len(), 25);
    }
}
