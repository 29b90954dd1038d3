//! The likelihood of an answer, estimated as the LLaDA reference does.
//!
//! Reference: `get_log_likelihood.py` of ML-GSAI/LLaDA: log p(answer | prompt) is about the
//! mean over draws of (L/ℓ) Σ log p over the masked positions, with exactly ℓ of the answer's
//! L tokens masked and ℓ spread evenly over 1…L. Difference: a draw is a pass of its own, and
//! ℓ is stratified over all draws instead of over batches of 16.

use std::time::Instant;

use super::{Denoiser, Pass, diffusion};
use crate::{
    error::EngineError,
    event::{Event, Finish, Outcome, Scored},
    model::transformer::Interrupt,
    ops::{HeadRow, Noise, Ranking},
    request::{Generate, Score},
};

/// Streams of random numbers that must not be each other's.
const COUNT_STREAM: u64 = 2;
const SUBSET_STREAM: u64 = 3;

/// Estimates the likelihood, telling `emit` of every draw.
///
/// # Errors
/// When a pass fails.
pub fn score(
    request: &Score,
    denoiser: &mut dyn Denoiser,
    emit: &mut dyn FnMut(Event),
) -> Result<Outcome, EngineError> {
    let started = Instant::now();
    emit(Event::Started {
        blocks: 1,
        keeps_precision: true,
    });
    let mut estimates = Vec::with_capacity(request.draws);
    for draw in 0..request.draws {
        match estimate(request, draw, denoiser) {
            Ok(value) => estimates.push(value),
            Err(Interrupt::Cancelled) => return Ok(Outcome::Cancelled),
            Err(Interrupt::Failed(error)) => return Err(error),
        }
        emit(Event::ScoreProgress {
            done: draw + 1,
            total: request.draws,
        });
    }
    let is_greedy = if request.check_greedy {
        match is_greedy(request, denoiser)? {
            Some(is_greedy) => Some(is_greedy),
            None => return Ok(Outcome::Cancelled),
        }
    } else {
        None
    };
    let count = estimates.len() as f64;
    let mean = estimates.iter().sum::<f64>() / count;
    let squares: f64 = estimates.iter().map(|value| (value - mean).powi(2)).sum();
    Ok(Outcome::Scored(Scored {
        log_likelihood: mean,
        standard_error: (request.draws > 1).then(|| (squares / (count - 1.0) / count).sqrt()),
        is_greedy,
        elapsed: started.elapsed(),
    }))
}

/// One draw: (L/ℓ) Σ log p over ℓ masked positions.
fn estimate(request: &Score, draw: usize, denoiser: &mut dyn Denoiser) -> Result<f64, Interrupt> {
    let length = request.answer.len();
    let masked = masked_positions(request, draw);
    let mask = denoiser.vocabulary().mask_id();
    let prompt = request.prompt.len();
    let mut canvas = [request.prompt.as_slice(), &request.answer].concat();
    let rows: Vec<HeadRow> = masked
        .iter()
        .map(|&position| HeadRow {
            position: prompt + position,
            may_end: true,
            target: Some(request.answer[position]),
        })
        .collect();
    for row in &rows {
        canvas[row.position] = mask;
    }
    let unconditional = (request.guidance > 0.0).then(|| {
        let mut canvas = canvas.clone();
        canvas[..prompt].fill(mask);
        canvas
    });
    let candidates = denoiser.candidates(&Pass {
        number: draw,
        canvas: &canvas,
        guidance: unconditional
            .as_deref()
            .map(|canvas| (canvas, request.guidance)),
        rows: &rows,
        temperature: 0.0,
        noise: Noise::new(request.seed),
        suppressed: &[],
        ranking: Ranking::Confidence,
    })?;
    let sum: f64 = candidates
        .iter()
        .map(|candidate| {
            candidate
                .target_log_probability
                .expect("every row of an estimate has a target")
        })
        .sum();
    Ok(sum * length as f64 / masked.len() as f64)
}

/// The draw's masked positions, rising: a random subset of stratified size.
fn masked_positions(request: &Score, draw: usize) -> Vec<usize> {
    let length = request.answer.len();
    let noise = Noise::new(request.seed);
    // The sizes of all draws start at a random point and go around 1…L in even strides.
    let start = noise.stream(COUNT_STREAM).uniform(0, 0, 0) * length as f64;
    let stride = draw as f64 * length as f64 / request.draws as f64;
    let count = (start + stride) as usize % length + 1;
    // Positions with the smallest random keys are a uniform subset.
    let keys = noise.stream(SUBSET_STREAM);
    let mut positions: Vec<usize> = (0..length).collect();
    positions.sort_by(|&a, &b| {
        let key = |position: usize| keys.uniform(draw as u64, position as u64, 0);
        key(a).total_cmp(&key(b))
    });
    positions.truncate(count);
    positions.sort_unstable();
    positions
}

/// Whether unmasking the most confident token again and again, from a wholly masked answer,
/// gives this answer. `None` when cancelled.
fn is_greedy(request: &Score, denoiser: &mut dyn Denoiser) -> Result<Option<bool>, EngineError> {
    let greedy = Generate {
        guidance: request.guidance,
        seed: request.seed,
        ..Generate::greedy(request.model, request.prompt.clone(), request.answer.len())
    };
    let generated = diffusion::generate(&greedy, denoiser, &mut |_| {})?;
    Ok((generated.finish != Finish::Cancelled).then(|| generated.tokens == request.answer))
}

#[cfg(test)]
mod tests;
