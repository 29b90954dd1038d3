//! Steps of training data: rows drawn from the generator, masked, and packed end to end without padding between them.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{
    corpus::{self, Sample, Split},
    objective::{self, Canvas, Objective, Row},
    ops::Pack,
    random::Random,
    text::{Source, TextFacts, TokenFile},
    vocabulary::Vocabulary,
};

/// Sample numbers set aside for each part of each step; no part draws as many samples.
const SAMPLES_PER_PART: u64 = 4096;
/// The longest canvas of the first steps.
const LENGTH_MIN: usize = 96;
/// Tokens of the canvas that is used where nobody asks for another.
const USUAL_CANVAS: usize = 128;

/// What decides the data of a run, besides the tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchOptions {
    /// The text that is trained on; without one the story language of [`crate::corpus`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TextFacts>,
    /// The seed of text and masks.
    pub seed: u64,
    /// What is asked of the network.
    pub objective: Objective,
    /// Parts of a step, each computed by one thread.
    pub parts: usize,
    /// Tokens from which on a part is full.
    pub part_tokens: usize,
    /// The longest canvas.
    pub length_max: usize,
    /// Steps until canvases of that length are met; the first steps see only short ones, where it is easier to learn
    /// which word answers which.
    pub length_warm_up_steps: u64,
    /// Steps that are mostly exercises; after them come few, and then none.
    pub exercise_steps: u64,
}

impl BatchOptions {
    /// The share of exercises in a step.
    fn exercises_at(&self, step: u64) -> f64 {
        if step < self.exercise_steps {
            0.8
        } else if step < 4 * self.exercise_steps {
            0.1
        } else {
            0.0
        }
    }

    /// The longest canvas of a step, which grows during the warm-up.
    fn length_at(&self, step: u64) -> usize {
        let Some(grown) = (self.length_max as u64 * step).checked_div(self.length_warm_up_steps)
        else {
            return self.length_max;
        };
        (grown as usize).clamp(LENGTH_MIN.min(self.length_max), self.length_max)
    }
}

/// Rows of a step, concatenated without padding.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Token ids of all rows, some of them masked.
    pub ids: Vec<u32>,
    /// How the tokens divide into rows.
    pub pack: Pack,
    /// Positions whose predictions the loss reads, counted over all rows.
    pub positions: Vec<u32>,
    /// The token that each prediction should be.
    pub targets: Vec<u32>,
    /// The weight of each prediction in the loss.
    pub weights: Vec<f32>,
    /// How many predictions of each row are the prompt's.
    pub prompts: Vec<usize>,
}

/// The data of one step; its loss is the sum over all parts.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The rows that each thread computes.
    pub parts: Vec<Part>,
}

impl Batch {
    /// The data of a step, determined by options, tokenizer and step number alone.
    pub fn draw<'a>(
        options: &BatchOptions,
        source: impl Into<Source<'a>>,
        step: u64,
    ) -> Result<Self> {
        let source = source.into();
        // A stream of its own for masks and padding: the samples have theirs, by number.
        let mut random = Random::new(options.seed ^ 0x6d61_736b, step);
        let parts = (0..options.parts as u64)
            .map(|part| {
                // Every part of every step has its own range of sample numbers, so parts may be drawn in any order or
                // again.
                let first = (step * options.parts as u64 + part) * SAMPLES_PER_PART;
                match source.text {
                    Some(text) => draw_text(options, text, &mut random),
                    None => draw_canvases(options, source.vocabulary, first, step, &mut random),
                }
            })
            .collect::<Result<Vec<_>>>()?;
        let rows: usize = parts.iter().map(Vec::len).sum();
        // A long answer says more than a short one, but many short ones teach more than one long one.
        let row_weight = |canvas: &OwnedCanvas| match options.objective {
            Objective::Diffusion | Objective::Autoregressive => {
                (canvas.answer_length as f32).sqrt()
            }
            // The bound of a latent thought model is a sum over tokens.
            Objective::Latent => (canvas.prompt_length + canvas.answer_length - 1) as f32,
        };
        let total: f32 = parts.iter().flatten().map(row_weight).sum();
        // Stratified over the step: every part of 0..1 is met by some row.
        let offset = random.unit();
        // Levels are dealt out in random order, or a row's place in its part would decide how much of it is masked.
        let mut order: Vec<usize> = (0..rows).collect();
        random.shuffle(&mut order);
        let mut levels = order
            .into_iter()
            .map(|place| (place as f64 + offset) / rows as f64);
        let parts = parts
            .iter()
            .map(|canvases| {
                let rows = canvases.iter().map(|owned| {
                    let level = levels.next().unwrap_or(offset);
                    let canvas = owned.borrow();
                    let mut row = match options.objective {
                        Objective::Diffusion => {
                            let mask_id = source.vocabulary.mask_id;
                            objective::mask(canvas, mask_id, level, &mut random)
                        }
                        Objective::Autoregressive => objective::shift(canvas),
                        Objective::Latent => objective::whole(canvas),
                    };
                    let share = row_weight(owned) / total;
                    row.weights.iter_mut().for_each(|weight| *weight *= share);
                    row
                });
                Part::pack(rows)
            })
            .collect();
        Ok(Self { parts })
    }

    /// Tokens of all rows, prompts and padding included.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.parts.iter().map(|part| part.ids.len()).sum()
    }
}

impl Part {
    /// Concatenates rows into a part, and moves their positions accordingly.
    pub fn pack(rows: impl IntoIterator<Item = Row>) -> Self {
        let (mut lengths, mut prompts) = (Vec::new(), Vec::new());
        let mut all = Row::default();
        for row in rows {
            let start = all.ids.len() as u32;
            lengths.push(row.ids.len());
            prompts.push(row.prompt);
            all.ids.extend(row.ids);
            let positions = row.positions.into_iter();
            all.positions
                .extend(positions.map(|position| start + position));
            all.targets.extend(row.targets);
            all.weights.extend(row.weights);
        }
        Self {
            ids: all.ids,
            pack: Pack::new(lengths),
            positions: all.positions,
            targets: all.targets,
            weights: all.weights,
            prompts,
        }
    }
}

/// Pieces of the training part of a text, each from a place of its own.
fn draw_text(
    options: &BatchOptions,
    text: &TokenFile,
    random: &mut Random,
) -> Result<Vec<OwnedCanvas>> {
    // Diffusion hides tokens of the piece; the others are asked for one token beyond what they read.
    let (length, prompt_length) = match options.objective {
        Objective::Diffusion => (options.length_max, 0),
        Objective::Autoregressive | Objective::Latent => (options.length_max + 1, 1),
    };
    let pieces = options.part_tokens.div_ceil(options.length_max);
    let pieces = (0..pieces).map(|_| {
        let last = text.facts().training_tokens() as usize - length;
        let ids = text.read(random.below(last + 1) as u64, length)?;
        // A latent thought model may learn from the beginning of a piece what the rest is.
        let prompt_length = match options.objective {
            Objective::Latent => 1 + random.below(length - 1),
            _ => prompt_length,
        };
        Ok(OwnedCanvas {
            ids,
            prompt_length,
            answer_length: length - prompt_length,
        })
    });
    pieces.collect()
}

/// A [`Canvas`] that owns its tokens.
#[derive(Debug, Clone)]
pub struct OwnedCanvas {
    /// Prompt, answer and padding.
    pub ids: Vec<u32>,
    /// Where the answer begins.
    pub prompt_length: usize,
    /// Tokens of the answer, its end of turn included.
    pub answer_length: usize,
}

impl OwnedCanvas {
    /// A sample on a canvas; `None` if it is longer than `length_max`. `padding` gets the length of the answer.
    pub fn new(
        vocabulary: &Vocabulary,
        sample: &Sample,
        padding: impl FnOnce(usize) -> usize,
        length_max: usize,
    ) -> Result<Option<Self>> {
        let (mut ids, answer) = vocabulary.encode_sample(sample)?;
        let (prompt_length, answer_length) = (ids.len(), answer.len());
        ids.extend(answer);
        if ids.len() > length_max {
            return Ok(None);
        }
        let length = (ids.len() + padding(answer_length)).min(length_max);
        ids.resize(length, vocabulary.end_id);
        Ok(Some(Self {
            ids,
            prompt_length,
            answer_length,
        }))
    }

    /// The canvas, borrowed.
    #[must_use]
    pub fn borrow(&self) -> Canvas<'_> {
        Canvas {
            ids: &self.ids,
            prompt_length: self.prompt_length,
            answer_length: self.answer_length,
        }
    }
}

/// The canvases of one part. The last one goes beyond the limit rather than being left out, which would prefer short
/// samples.
fn draw_canvases(
    options: &BatchOptions,
    vocabulary: &Vocabulary,
    first: u64,
    step: u64,
    random: &mut Random,
) -> Result<Vec<OwnedCanvas>> {
    let length_max = options.length_at(step);
    let exercises = options.exercises_at(step);
    let mut canvases = Vec::new();
    let mut tokens = 0;
    for number in first..first + SAMPLES_PER_PART {
        if tokens >= options.part_tokens {
            break;
        }
        let sample = if random.chance(exercises) {
            corpus::exercise(options.seed, number)
        } else {
            corpus::sample(Split::Train, options.seed, number)
        };
        let padding = |answer_length| match options.objective {
            Objective::Diffusion => draw_padding(answer_length, random),
            Objective::Autoregressive | Objective::Latent => 0,
        };
        if let Some(canvas) = OwnedCanvas::new(vocabulary, &sample, padding, length_max)? {
            tokens += canvas.ids.len();
            canvases.push(canvas);
        }
    }
    Ok(canvases)
}

/// Padding: mostly a little, sometimes up to three blocks, sometimes up to the end of the usual canvas, since a canvas
/// is chosen before the length of the answer is known.
fn draw_padding(answer_length: usize, random: &mut Random) -> usize {
    match random.unit() {
        0.0..0.5 => random.below(16),
        0.5..0.8 => random.below(96),
        _ => answer_length.next_multiple_of(USUAL_CANVAS) - answer_length,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: BatchOptions = BatchOptions {
        text: None,
        seed: 9,
        objective: Objective::Diffusion,
        parts: 2,
        part_tokens: 1500,
        length_max: 512,
        length_warm_up_steps: 0,
        exercise_steps: 0,
    };

    #[test]
    fn a_step_is_decided_by_its_number() {
        let vocabulary = Vocabulary::train(1, 512, 500).expect("train");
        let draw = |step| Batch::draw(&OPTIONS, &vocabulary, step).expect("draw");
        for step in [0, 5, 33] {
            let batch = draw(step);
            assert_eq!(batch, draw(step));
            assert_eq!(batch.parts.len(), 2);
            for part in &batch.parts {
                assert_eq!(part.pack.rows(), part.ids.len());
                assert!((1500..2012).contains(&part.ids.len()));
                for position in &part.positions {
                    assert_eq!(part.ids[*position as usize], vocabulary.mask_id);
                }
            }
        }
        assert_ne!(draw(0), draw(1));
    }

    #[test]
    fn the_weights_of_a_step_add_up_to_one_on_average() {
        let vocabulary = Vocabulary::train(1, 512, 500).expect("train");
        for objective in [
            Objective::Diffusion,
            Objective::Autoregressive,
            Objective::Latent,
        ] {
            let options = BatchOptions {
                objective,
                ..OPTIONS
            };
            let steps = 100;
            let total: f32 = (0..steps)
                .flat_map(|step| {
                    Batch::draw(&options, &vocabulary, step)
                        .expect("draw")
                        .parts
                })
                .flat_map(|part| part.weights)
                .sum();
            let mean = total / steps as f32;
            assert!((mean - 1.0).abs() < 0.05, "{objective:?}: {mean}");
        }
    }

    #[test]
    fn the_first_steps_are_short_exercises() {
        let vocabulary = Vocabulary::train(1, 512, 500).expect("train");
        let options = BatchOptions {
            length_warm_up_steps: 100,
            exercise_steps: 10,
            ..OPTIONS
        };
        let longest_and_exercises = |step| {
            let batch = Batch::draw(&options, &vocabulary, step).expect("draw");
            let (mut longest, mut rows, mut exercises) = (0, 0, 0);
            for part in &batch.parts {
                for row in part.pack.sequences() {
                    longest = longest.max(row.len());
                    let text = vocabulary.decode(&part.ids[row]).expect("decode");
                    rows += 1;
                    exercises += usize::from(text.contains("Say these words"));
                }
            }
            (longest, exercises as f64 / f64::from(rows))
        };
        let (longest, exercises) = longest_and_exercises(0);
        assert!(
            longest <= LENGTH_MIN && exercises > 0.6,
            "{longest}, {exercises}"
        );
        let (longest, exercises) = longest_and_exercises(99);
        assert!(
            longest > LENGTH_MIN && exercises == 0.0,
            "{longest}, {exercises}"
        );
    }
}
