//! Plain decoding for a look at a checkpoint: blocks from left to right, in each step the most confident tokens first.
//! The engine has the real thing; this follows the reference sampler at temperature 0 with the training network.

use anyhow::{Result, ensure};

use crate::{model::Model, vocabulary::Vocabulary};

/// How an answer is decoded.
#[derive(Debug, Clone)]
pub struct SampleOptions {
    /// Positions to fill.
    pub length: usize,
    /// Positions decoded together.
    pub block_length: usize,
    /// Passes over the whole answer.
    pub steps: usize,
}

/// Answers one question.
pub fn answer(
    model: &Model,
    vocabulary: &Vocabulary,
    question: &str,
    options: &SampleOptions,
) -> Result<String> {
    let block_length = options.block_length;
    ensure!(
        block_length > 0 && options.length.is_multiple_of(block_length),
        "the length must be a multiple of the block length"
    );
    let blocks = options.length / block_length;
    let steps = options.steps / blocks;
    ensure!(steps > 0, "there must be a step for each block");

    let prompt = vocabulary.encode_question(question)?;
    let mut canvas = prompt.clone();
    canvas.resize(prompt.len() + options.length, vocabulary.mask_id);
    for block in 0..blocks {
        let start = prompt.len() + block * block_length;
        for step in 0..steps {
            let count = block_length / steps + usize::from(step < block_length % steps);
            let masked: Vec<u32> = (start..start + block_length)
                .filter(|position| canvas[*position] == vocabulary.mask_id)
                .map(|position| position as u32)
                .collect();
            if count == 0 || masked.is_empty() {
                continue;
            }
            let logits = model
                .logits(&canvas, canvas.len(), &masked)?
                .to_vec2::<f32>()?;
            let mut choices: Vec<(f32, u32, u32)> = logits
                .iter()
                .zip(&masked)
                .map(|(row, position)| {
                    let (token, confidence) = most_likely(row);
                    (confidence, *position, token)
                })
                .collect();
            choices.sort_by(|a, b| b.0.total_cmp(&a.0));
            for (_, position, token) in choices.into_iter().take(count) {
                canvas[position as usize] = token;
            }
        }
    }
    vocabulary.decode_answer(&canvas[prompt.len()..])
}

/// The token with the largest logit, and its probability.
fn most_likely(row: &[f32]) -> (u32, f32) {
    let (mut token, mut largest) = (0, f32::NEG_INFINITY);
    for (index, logit) in row.iter().enumerate() {
        if *logit > largest {
            (token, largest) = (index as u32, *logit);
        }
    }
    let sum: f32 = row.iter().map(|logit| (logit - largest).exp()).sum();
    (token, sum.recip())
}
