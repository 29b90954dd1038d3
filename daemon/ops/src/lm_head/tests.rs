//! The reduction in pieces against a plain softmax in `f64` over the whole vocabulary.

mod evidence;

use sluice_formats::{DType, Format};
use sluice_weights::WeightData;

use super::*;
use crate::{device::Device, ledger::Ledger};

const HIDDEN_SIZE: usize = 6;
/// Several pieces for 64 rows.
const VOCAB_SIZE: usize = 40_000;

struct World {
    ops: Ops,
    rows: Vec<LmHeadRow>,
    x: Vec<f32>,
    lm_head: Vec<f32>,
}

fn world(count: usize) -> World {
    let noise = Noise::new(11);
    let numbers = |len: usize, stream: u64| -> Vec<f32> {
        (0..len)
            .map(|i| noise.stream(stream).uniform(0, i as u64, 0) as f32 * 4.0 - 2.0)
            .collect()
    };
    World {
        ops: Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap(),
        rows: (0..count)
            .map(|position| LmHeadRow {
                position,
                may_end: position % 2 == 0,
                target: Some((position * 37 % VOCAB_SIZE) as u32),
                watched: match position % 3 {
                    0 => vec![5, (VOCAB_SIZE - position - 1) as u32],
                    _ => Vec::new(),
                },
                is_check: false,
            })
            .collect(),
        x: numbers(count * HIDDEN_SIZE, 1),
        lm_head: numbers(VOCAB_SIZE * HIDDEN_SIZE, 2),
    }
}

fn plain<'a>() -> SamplingParams<'a> {
    SamplingParams {
        temperature: 0.0,
        noise: Noise::new(3),
        pass: 0,
        guidance: None,
        vocab_size: VOCAB_SIZE - 100,
        mask_token_id: Some(17),
        scaling: None,
        end_tokens: &[],
        suppressed: &[],
        ranking: RankingScore::Confidence,
        top: false,
    }
}

fn group<'a>(rows: &'a [LmHeadRow], choice: &SamplingParams<'a>) -> LmHeadGroup<'a> {
    LmHeadGroup {
        rows,
        sampling: choice.clone(),
        distributions: None,
        soft: None,
    }
}

impl World {
    fn reduce(&self, rows: &[LmHeadRow], choice: &SamplingParams<'_>) -> Vec<Candidate> {
        self.try_reduce(rows, choice).unwrap()
    }

    fn try_reduce(
        &self,
        rows: &[LmHeadRow],
        choice: &SamplingParams<'_>,
    ) -> Result<Vec<Candidate>, OpsError> {
        let group = group(rows, choice);
        let x = &self.x[..group.inputs() * HIDDEN_SIZE];
        Ok(self.reduce_groups(vec![group], x)?.concat())
    }

    fn reduce_groups(
        &self,
        groups: Vec<LmHeadGroup<'_>>,
        x: &[f32],
    ) -> Result<Vec<Vec<Candidate>>, OpsError> {
        let (ops, rows) = (&self.ops, x.len() / HIDDEN_SIZE);
        let x = ops.matrix(rows, HIDDEN_SIZE, x, DType::F32)?;
        let head = Weight {
            format: Format::F32,
            rows: VOCAB_SIZE,
            width: HIDDEN_SIZE,
            data: WeightData::Host(bytemuck::cast_slice(&self.lm_head)),
            weights_version: 0,
        };
        // Two parts, as a streamed head comes.
        let half = VOCAB_SIZE / 2 + 3;
        let mut reduction = ops.start_lm_head(groups, half)?;
        for (from, to) in [(0, half), (half, VOCAB_SIZE)] {
            let part = head.rows(from, to);
            ops.reduce_lm_head(&mut reduction, &x, &part, from)?;
        }
        reduction.candidates()
    }

    fn logits(&self, row: usize) -> Vec<f64> {
        let x = &self.x[row * HIDDEN_SIZE..][..HIDDEN_SIZE];
        self.lm_head
            .chunks_exact(HIDDEN_SIZE)
            .map(|weights| {
                let products = x.iter().zip(weights).map(|(a, b)| f64::from(a * b));
                products.sum()
            })
            .collect()
    }
}

fn best(logits: &[f64], allowed: impl Fn(usize) -> bool) -> usize {
    (0..logits.len())
        .filter(|&id| allowed(id))
        .fold(None, |best: Option<usize>, id| match best {
            Some(best) if logits[best] >= logits[id] => Some(best),
            _ => Some(id),
        })
        .unwrap()
}

fn log_sum(logits: &[f64]) -> f64 {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    max + logits
        .iter()
        .map(|logit| (logit - max).exp())
        .sum::<f64>()
        .ln()
}

#[test]
fn pieces_equal_the_whole() {
    let world = world(64);
    let candidates = world.reduce(&world.rows, &plain());
    for (row, candidate) in world.rows.iter().zip(candidates) {
        let logits = world.logits(row.position);
        let expected = best(&logits, |id| id < VOCAB_SIZE - 100 && id != 17);
        assert_eq!(candidate.token as usize, expected);
        let log_sum = log_sum(&logits);
        let confidence = (logits[expected] - log_sum).exp();
        assert!((candidate.confidence - confidence).abs() < 1e-5 * confidence);
        let target = logits[row.target.unwrap() as usize] - log_sum;
        assert!((candidate.target_log_probability.unwrap() - target).abs() < 1e-4);
    }
}

#[test]
fn what_may_not_be_chosen_is_not() {
    let world = world(64);
    let free = world.reduce(&world.rows, &plain());
    for (index, row) in world.rows.iter().enumerate() {
        let favourite = free[index].token;
        let row = [row.clone()];
        let single = World {
            ops: Ops::new(Device::cpu(1).unwrap(), Ledger::default()).unwrap(),
            rows: row.to_vec(),
            x: world.x[index * HIDDEN_SIZE..][..HIDDEN_SIZE].to_vec(),
            lm_head: world.lm_head.clone(),
        };
        let masked = SamplingParams {
            mask_token_id: Some(favourite),
            ..plain()
        };
        assert_ne!(single.reduce(&row, &masked)[0].token, favourite);
        let unused = SamplingParams {
            vocab_size: favourite as usize,
            ..plain()
        };
        assert!(single.reduce(&row, &unused)[0].token < favourite || favourite == 0);
        let ends = [favourite];
        let ending = SamplingParams {
            end_tokens: &ends,
            ..plain()
        };
        let chosen = &single.reduce(&row, &ending)[0];
        assert_eq!(chosen.token == favourite, row[0].may_end);
        // The denominator is the whole LM head's, without what counts as −∞.
        let suppressed = SamplingParams {
            suppressed: &ends,
            ranking: RankingScore::Confidence,
            ..plain()
        };
        let without = &single.reduce(&row, &suppressed)[0];
        assert_ne!(without.token, favourite);
        if !row[0].may_end {
            assert!(without.confidence > chosen.confidence);
        }
        if index == 7 {
            break;
        }
    }
}

#[test]
fn logits_that_are_no_numbers_are_an_error() {
    for broken in [f32::NAN, f32::INFINITY] {
        let mut world = world(2);
        world.x[HIDDEN_SIZE + 1] = broken;
        let result = world.try_reduce(&world.rows, &plain());
        assert!(matches!(result, Err(OpsError::NotANumber { position: 1 })));
    }
}

#[test]
fn guidance_mixes_the_two_branches() {
    let mut world = world(64);
    // The second half of the rows is the unconditional branch of the first.
    world.rows.truncate(32);
    let guided = |w: f64| {
        let choice = SamplingParams {
            guidance: Some(w),
            ..plain()
        };
        world.reduce(&world.rows, &choice)
    };
    let mix = |w: f64, row: usize| -> Vec<f64> {
        let (c, u) = (world.logits(row), world.logits(row + 32));
        c.iter()
            .zip(&u)
            .map(|(c, u)| u + (w + 1.0) * (c - u))
            .collect()
    };
    for w in [0.0, 1.5, -1.0] {
        for (row, candidate) in guided(w).iter().enumerate() {
            let logits = mix(w, row);
            let expected = best(&logits, |id| id < VOCAB_SIZE - 100 && id != 17);
            assert_eq!(candidate.token as usize, expected, "w = {w}, row {row}");
        }
    }
}

#[test]
fn noise_depends_on_place_and_pass_alone() {
    let world = world(64);
    let noisy = |pass: usize| {
        let choice = SamplingParams {
            temperature: 1.0,
            pass,
            ..plain()
        };
        world.reduce(&world.rows, &choice)
    };
    let tokens = |candidates: &[Candidate]| -> Vec<u32> {
        candidates.iter().map(|candidate| candidate.token).collect()
    };
    assert_eq!(tokens(&noisy(1)), tokens(&noisy(1)));
    assert_ne!(tokens(&noisy(1)), tokens(&noisy(2)));
    // Confidence is that of the un-noised logits.
    for (row, candidate) in noisy(1).iter().enumerate() {
        let logits = world.logits(row);
        let confidence = (logits[candidate.token as usize] - log_sum(&logits)).exp();
        assert!((candidate.confidence - confidence).abs() < 1e-5 * confidence);
    }
}

#[test]
fn groups_are_chosen_from_as_each_would_be_alone() {
    let world = world(80);
    let favourite = [world.reduce(&world.rows[..1], &plain())[0].token];
    let choices = [
        plain(),
        SamplingParams {
            guidance: Some(1.5),
            noise: Noise::new(4),
            ..plain()
        },
        SamplingParams {
            temperature: 0.7,
            pass: 3,
            ranking: RankingScore::Margin,
            top: true,
            ..plain()
        },
        SamplingParams {
            suppressed: &favourite,
            ranking: RankingScore::Entropy,
            ..plain()
        },
        SamplingParams {
            temperature: 0.4,
            guidance: Some(0.5),
            vocab_size: VOCAB_SIZE / 3,
            end_tokens: &favourite,
            ..plain()
        },
    ];
    let mut parts = Vec::new();
    let mut rows = &world.rows[..];
    for (choice, count) in choices.into_iter().zip([1, 20, 9, 5, 12]) {
        let (here, rest) = rows.split_at(count);
        parts.push((here, choice));
        rows = rest;
    }
    // A request that reads nothing in this pass is among them.
    parts.insert(2, (&[], plain()));
    let groups = || parts.iter().map(|(rows, choice)| group(rows, choice));
    let inputs: usize = groups().map(|group| group.inputs()).sum();
    let x = &world.x[..inputs * HIDDEN_SIZE];
    let together = world.reduce_groups(groups().collect(), x).unwrap();
    let mut from = 0;
    for (group, found) in groups().zip(&together) {
        let to = from + group.inputs() * HIDDEN_SIZE;
        let rows = group.rows;
        let alone = world.reduce_groups(vec![group], &x[from..to]).unwrap();
        from = to;
        assert_eq!(found.len(), rows.len());
        for (found, alone) in found.iter().zip(&alone[0]) {
            assert_eq!(found.token, alone.token);
            // Pieces of the vocabulary are narrower where more rows share them.
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs();
            assert!(near(found.confidence, alone.confidence));
            assert!(
                near(found.rank, alone.rank),
                "{} for {}",
                found.rank,
                alone.rank
            );
            let targets = [found, alone].map(|it| it.target_log_probability.unwrap());
            assert!(near(targets[0], targets[1]));
            let [watched, expected] = [found, alone].map(|it| &it.evidence.watched);
            assert!(watched.iter().zip(expected).all(|(a, b)| near(*a, *b)));
            let tops = [found, alone].map(|it| it.evidence.top.map(|top| top.token));
            assert_eq!(tops[0], tops[1]);
        }
    }
}

#[test]
fn pieces_of_a_part_are_whole_chunks_of_compressed_rows() {
    // LLaDA-8B's parts of 24,576 rows, by inputs that leave room for so many columns.
    for (columns, expected) in [
        (16_644, 16_640),
        (256, 256),
        (24_575, 24_320),
        (24_576, 24_576),
        (1 << 20, 24_576),
    ] {
        assert_eq!(whole_columns(columns, 24_576), expected);
    }
    // Parts smaller than a chunk are taken whole.
    assert_eq!(whole_columns(256, 100), 100);
}

/// Logits that are bounded and divided, and the mean of the head's rows by the probabilities that they come to.
/// Rounding adds up from step to step, so that sums must not depend on what other requests ask for in the same pass.
#[test]
fn soft_embeddings_do_not_depend_on_rows_beside_them() {
    const ROWS: usize = 20;
    let world = world(2 * ROWS);
    let told = SamplingParams {
        scaling: Some(LogitScaling {
            soft_cap: None,
            temperature: 0.5,
        }),
        mask_token_id: None,
        ..plain()
    };
    let summed = |beside: bool| {
        let mut soft = world.ops.soft_embeddings(ROWS, HIDDEN_SIZE).unwrap();
        let mut groups = vec![LmHeadGroup {
            soft: Some(&mut soft),
            ..group(&world.rows[..ROWS], &told)
        }];
        let mut x = &world.x[..ROWS * HIDDEN_SIZE];
        if beside {
            groups.push(group(&world.rows[ROWS..], &told));
            x = &world.x;
        }
        world.reduce_groups(groups, x).unwrap();
        let soft = world.ops.embed_soft(&soft, 1.0).unwrap();
        world.ops.read(&soft).unwrap()
    };
    assert_eq!(summed(true), summed(false));
}

#[test]
fn soft_embeddings_are_means_by_probabilities() {
    const ROWS: usize = 20;
    let world = world(2 * ROWS);
    let scaling = LogitScaling {
        soft_cap: Some(5.0),
        temperature: 0.5,
    };
    let told = SamplingParams {
        ranking: RankingScore::Entropy,
        scaling: Some(scaling),
        mask_token_id: None,
        vocab_size: VOCAB_SIZE,
        ..plain()
    };
    let ops = &world.ops;
    let mut soft = ops.soft_embeddings(ROWS, HIDDEN_SIZE).unwrap();
    // Behind a group that is told nothing.
    let groups = vec![
        group(&world.rows[..ROWS], &plain()),
        LmHeadGroup {
            soft: Some(&mut soft),
            ..group(&world.rows[ROWS..], &told)
        },
    ];
    let found = world.reduce_groups(groups, &world.x).unwrap();
    // In other pieces, so that sums differ in their last bits.
    let tokens = |found: &[Candidate]| found.iter().map(|one| one.token).collect::<Vec<_>>();
    let alone = world.reduce(&world.rows[..ROWS], &plain());
    assert_eq!(tokens(&found[0]), tokens(&alone));
    let soft = ops.read(&ops.embed_soft(&soft, 2.0).unwrap()).unwrap();
    for (index, candidate) in found[1].iter().enumerate() {
        let cap = |logit: f64| (logit / 5.0).tanh() * 5.0 / 0.5;
        let logits: Vec<f64> = world.logits(ROWS + index).into_iter().map(cap).collect();
        let log_sum = log_sum(&logits);
        let shares: Vec<f64> = logits.iter().map(|logit| (logit - log_sum).exp()).collect();
        let entropy: f64 = (shares.iter().zip(&logits))
            .map(|(share, logit)| share * (log_sum - logit))
            .sum();
        assert!((candidate.rank + entropy).abs() < 1e-4);
        for channel in 0..HIDDEN_SIZE {
            let rows = world.lm_head.chunks_exact(HIDDEN_SIZE);
            let mean: f64 = (rows.zip(&shares))
                .map(|(row, share)| f64::from(row[channel]) * share)
                .sum();
            let found = f64::from(soft[index * HIDDEN_SIZE + channel]);
            assert!((found - 2.0 * mean).abs() < 1e-4, "{found} for {mean}");
        }
    }
}
