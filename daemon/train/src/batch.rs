//! The masked-diffusion objective as data: which tokens a step sees, which are masked, and how much each counts.
//!
//! LLaDA's fine-tuning objective (arXiv 2502.09992, section 2.3): the prompt stays visible, each answer token is masked
//! with probability t, and the loss of a masked token is its cross-entropy divided by t and by the answer's length; the
//! padding with the end token is part of the answer. Two things differ. Half of the rows are masked the way decoding in
//! blocks meets them: everything before a window is visible, the window is masked with probability t, and everything
//! after it is masked but does not count. And the padding counts only a little, since it is easy and would otherwise
//! drown the stories.

use anyhow::Result;

use crate::{corpus, random::Random, vocabulary::Vocabulary};

/// Steps whose samples are drawn together and sorted by length, so that a batch holds little padding.
const STEPS_PER_POOL: u64 = 16;
/// The lowest masking probability; below it the weight 1/t would make single tokens too loud.
const MASK_PROBABILITY_MIN: f64 = 0.02;
/// The window of a row that is masked like a block being decoded.
const WINDOW: usize = 32;
/// What a padding token after the first counts.
const PADDING_WEIGHT: f32 = 0.1;
/// Batches that are padded far beyond their longest answer, like a canvas longer than the story.
const LONG_CANVAS_CHANCE: f64 = 0.25;

/// Prompt and answer.
type Row = (Vec<u32>, Vec<u32>);

/// Draws the batches of a run.
pub struct Batches {
    seed: u64,
    rows: usize,
    /// The samples of the current pool by length, under the number of the pool.
    pool: Option<(u64, Vec<Row>)>,
}

impl Batches {
    /// Batches of so many rows, all following from the seed.
    #[must_use]
    pub fn new(seed: u64, rows: usize) -> Self {
        Self {
            seed,
            rows,
            pool: None,
        }
    }

    /// The batch of a step, decided by seed and step alone.
    pub fn draw(&mut self, vocabulary: &Vocabulary, step: u64) -> Result<Batch> {
        let number = step / STEPS_PER_POOL;
        let pool = match self.pool.take() {
            Some((current, pool)) if current == number => pool,
            _ => self.draw_pool(vocabulary, number)?,
        };
        let mut order: Vec<usize> = (0..STEPS_PER_POOL as usize).collect();
        Random::new(self.seed ^ 0x706f_6f6c, number).shuffle(&mut order);
        let first = order[(step % STEPS_PER_POOL) as usize] * self.rows;
        let mut random = Random::new(self.seed ^ 0x6d61_736b, step);
        let batch = Batch::mask(vocabulary, &pool[first..first + self.rows], &mut random);
        self.pool = Some((number, pool));
        Ok(batch)
    }

    fn draw_pool(&self, vocabulary: &Vocabulary, number: u64) -> Result<Vec<Row>> {
        let rows = STEPS_PER_POOL * self.rows as u64;
        let mut pool = (number * rows..(number + 1) * rows)
            .map(|row| vocabulary.encode_sample(&corpus::sample(self.seed, row)))
            .collect::<Result<Vec<_>>>()?;
        pool.sort_by_key(|(prompt, answer)| prompt.len() + answer.len());
        Ok(pool)
    }
}

/// The input of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Tokens of all rows, end to end, some of them masked.
    pub ids: Vec<u32>,
    /// Tokens in a row.
    pub length: usize,
    /// Where the masked tokens that count are, counted over all rows.
    pub positions: Vec<u32>,
    /// What stood there.
    pub targets: Vec<u32>,
    /// What each of them counts; the loss is the weighted sum.
    pub weights: Vec<f32>,
}

impl Batch {
    fn mask(vocabulary: &Vocabulary, samples: &[Row], random: &mut Random) -> Self {
        let longest = samples
            .iter()
            .map(|(prompt, answer)| prompt.len() + answer.len())
            .max()
            .unwrap_or(0);
        let length = if random.chance(LONG_CANVAS_CHANCE) {
            longest.max(128 + random.below(81))
        } else {
            longest + 2 + random.below(12)
        };
        let rows = samples.len();
        let mut batch = Self {
            ids: Vec::with_capacity(rows * length),
            length,
            positions: Vec::new(),
            targets: Vec::new(),
            weights: Vec::new(),
        };
        let offset = random.unit();
        for (row, (prompt, answer)) in samples.iter().enumerate() {
            // Stratified over the batch: every part of 0..1 is met by some row.
            let t = ((row / 2) as f64 + offset) / rows.div_ceil(2) as f64;
            let t = t.clamp(MASK_PROBABILITY_MIN, 1.0);
            let answer_length = length - prompt.len();
            let window = if row % 2 == 0 {
                0..answer_length
            } else {
                let start = WINDOW * random.below(answer.len().div_ceil(WINDOW));
                start..(start + WINDOW).min(answer_length)
            };
            batch.push_row(vocabulary, (prompt, answer), window, t, random);
        }
        for weight in &mut batch.weights {
            *weight /= rows as f32;
        }
        batch
    }

    /// Adds one row: visible before the window, masked with probability t inside, masked behind. Its weights add up
    /// to one on average.
    fn push_row(
        &mut self,
        vocabulary: &Vocabulary,
        (prompt, answer): (&[u32], &[u32]),
        window: std::ops::Range<usize>,
        t: f64,
        random: &mut Random,
    ) {
        let start = self.positions.len();
        let mut total = 0.0;
        self.ids.extend(prompt);
        for index in 0..self.length - prompt.len() {
            let target = answer.get(index).copied().unwrap_or(vocabulary.end_id);
            let importance = if index > answer.len() {
                PADDING_WEIGHT
            } else {
                1.0
            };
            let in_window = window.contains(&index);
            let masked = index >= window.end || in_window && random.chance(t);
            if in_window {
                total += importance;
            }
            if in_window && masked {
                self.positions.push(self.ids.len() as u32);
                self.targets.push(target);
                self.weights.push(importance / t as f32);
            }
            self.ids
                .push(if masked { vocabulary.mask_id } else { target });
        }
        for weight in &mut self.weights[start..] {
            *weight /= total;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_always_draws_the_same_batch_and_never_masks_the_prompt() {
        let vocabulary = Vocabulary::train(1, 512, 500).expect("train");
        let mut batches = Batches::new(9, 8);
        for step in [0, 5, 16, 33] {
            let batch = batches.draw(&vocabulary, step).expect("draw");
            let again = Batches::new(9, 8).draw(&vocabulary, step);
            assert_eq!(batch, again.expect("draw"));
            assert_eq!(batch.ids.len(), 8 * batch.length);
            for row in batch.ids.chunks_exact(batch.length) {
                let headers = row
                    .iter()
                    .filter(|id| **id == vocabulary.mask_id + 1)
                    .count();
                assert_eq!(headers, 2, "both headers of the prompt are visible");
            }
            for (position, target) in batch.positions.iter().zip(&batch.targets) {
                assert_eq!(batch.ids[*position as usize], vocabulary.mask_id);
                assert_ne!(*target, vocabulary.mask_id);
            }
        }
    }

    #[test]
    fn weights_average_to_one_in_expectation() {
        let vocabulary = Vocabulary::train(1, 512, 500).expect("train");
        let steps = 200;
        let mut batches = Batches::new(2, 8);
        let total: f32 = (0..steps)
            .flat_map(|step| batches.draw(&vocabulary, step).expect("draw").weights)
            .sum();
        assert!(
            (total / steps as f32 - 1.0).abs() < 0.05,
            "{}",
            total / steps as f32
        );
    }
}
