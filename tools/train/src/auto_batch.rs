//! The tokens of a part that fit into a given amount of memory.
//!
//! Memory of a step grows with its tokens in a straight line, nearly: two small steps are computed, and the line through
//! them tells how many tokens fit. What comes out depends on the machine, so a run keeps it in its checkpoint.

use anyhow::{Context as _, Result, ensure};

use crate::{
    batch::{Batch, BatchOptions},
    memory::Memory,
    step::Step,
    text::Source,
};

/// Tokens are rounded down to a multiple of this.
const MULTIPLE: usize = 64;
/// Share of the limit that is planned for: the largest part of a run is longer than the usual one.
const PLANNED: f64 = 0.9;

/// Chooses the tokens of a part for a limit in bytes.
pub fn part_tokens(
    step: &Step<'_>,
    source: Source<'_>,
    options: &BatchOptions,
    threads: usize,
    limit_bytes: u64,
) -> Result<usize> {
    let measure = |sequences: usize| -> Result<(f64, f64)> {
        let options = BatchOptions {
            part_tokens: sequences * options.length_max,
            // As long as sequences get.
            length_warm_up_steps: 0,
            exercise_steps: 0,
            ..*options
        };
        let batch = Batch::draw(&options, source, 0)?;
        step.sums(&batch, threads)?;
        let peak =
            Memory::measure().context("this system does not tell how much memory is used")?;
        let tokens = batch.tokens() as f64 / options.parts as f64;
        Ok((tokens, peak.peak_bytes as f64))
    };
    // Peaks only grow, so the smaller step goes first.
    let (few, small) = measure(2)?;
    let (many, large) = measure(6)?;
    let per_token = (large - small) / (many - few);
    ensure!(
        per_token > 0.0,
        "the memory of a step can't be measured here: something took more before; give --part-tokens"
    );
    let fixed = small - few * per_token;
    let room = PLANNED * limit_bytes as f64 - fixed;
    let tokens = (room / per_token).max(0.0) as usize / MULTIPLE * MULTIPLE;
    let needed = fixed + options.length_max as f64 * per_token;
    ensure!(
        tokens >= options.length_max,
        "--memory is too little: one sequence of {} tokens in each part takes {:.0} MiB",
        options.length_max,
        needed / PLANNED / f64::from(1 << 20)
    );
    Ok(tokens)
}
