//! What policies ask for beside confidences, against plain sums over the whole vocabulary.

use super::*;

/// `ln p` of all tokens.
fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let log_sum = log_sum(logits);
    logits.iter().map(|logit| logit - log_sum).collect()
}

/// As they are kept.
fn rounded(logits: &[f64]) -> Vec<f64> {
    let rounded = |logit: &f64| f64::from(bf16::from_f32(*logit as f32));
    logits.iter().map(rounded).collect()
}

fn divergence(now: &[f64], before: &[f64]) -> f64 {
    let (now, before) = (log_softmax(now), log_softmax(before));
    let terms = now.iter().zip(&before);
    terms.map(|(now, before)| now.exp() * (now - before)).sum()
}

impl World {
    /// The logits of a row of `x`, guided by those of another one.
    fn guided_logits(&self, row: usize, guide: Option<(usize, f64)>) -> Vec<f64> {
        let conditional = self.logits(row);
        let Some((guide, w)) = guide else {
            return conditional;
        };
        let unconditional = self.logits(guide);
        let pairs = conditional.iter().zip(&unconditional);
        pairs.map(|(c, u)| u + (w + 1.0) * (c - u)).collect()
    }

    fn compare(
        &self,
        rows: &[LmHeadRow],
        choice: &SamplingParams<'_>,
        distributions: &mut Distributions,
    ) -> Vec<Option<f64>> {
        let group = LmHeadGroup {
            distributions: Some(distributions),
            ..group(rows, choice)
        };
        let x = &self.x[..group.inputs() * HIDDEN_SIZE];
        let found = self.reduce_groups(vec![group], x).unwrap().concat();
        found
            .into_iter()
            .map(|candidate| candidate.evidence.divergence)
            .collect()
    }
}

#[test]
fn watched_tokens_have_their_log_probabilities() {
    let mut world = world(64);
    world.rows.truncate(32);
    for guidance in [None, Some(0.7)] {
        let choice = SamplingParams {
            guidance,
            ..plain()
        };
        let candidates = world.reduce(&world.rows, &choice);
        for (index, (row, candidate)) in world.rows.iter().zip(&candidates).enumerate() {
            let guide = guidance.map(|w| (index + 32, w));
            let expected = log_softmax(&world.guided_logits(index, guide));
            assert_eq!(candidate.evidence.watched.len(), row.watched.len());
            for (&id, found) in row.watched.iter().zip(&candidate.evidence.watched) {
                assert!((found - expected[id as usize]).abs() < 1e-4);
            }
        }
    }
}

#[test]
fn the_most_probable_token_is_told_whatever_chance_has_chosen() {
    let world = world(64);
    let asked = |temperature: f64| {
        let choice = SamplingParams {
            temperature,
            top: true,
            ..plain()
        };
        world.reduce(&world.rows, &choice)
    };
    let (plainly, noisy) = (asked(0.0), asked(2.0));
    let mut differing = 0;
    for (plain, noisy) in plainly.iter().zip(&noisy) {
        let top = noisy.evidence.top.unwrap();
        assert_eq!((top.token, plain.evidence.top), (plain.token, Some(top)));
        assert!((top.log_probability.exp() - plain.confidence).abs() < 1e-12);
        differing += usize::from(noisy.token != plain.token);
    }
    assert!(differing > 32);
    let unasked = world.reduce(&world.rows, &plain());
    assert!(
        unasked
            .iter()
            .all(|candidate| candidate.evidence.top.is_none())
    );
}

#[test]
fn rows_are_compared_with_the_pass_before() {
    for guidance in [None, Some(0.7)] {
        let mut first = world(64);
        first.rows.truncate(32);
        // Somewhat other rows over the same head, larger for more weight on few tokens.
        let mut second = world(64);
        for (place, x) in second.x.iter_mut().enumerate() {
            *x += 0.2 * (place as f32).sin();
        }
        let (ops, rows) = (&first.ops, &first.rows[..]);
        let mut distributions = ops.distributions(32, VOCAB_SIZE).unwrap();
        let choice = |pass: usize| SamplingParams {
            guidance,
            pass,
            ..plain()
        };
        let none = first.compare(rows, &choice(4), &mut distributions);
        assert_eq!(none, vec![None; 32]);
        // Some are read no more.
        let rest = &rows[..20];
        let guide = |row: usize, count: usize| guidance.map(|w| (row + count, w));
        let moved = second.compare(rest, &choice(5), &mut distributions);
        for (row, found) in moved.iter().enumerate() {
            let now = second.guided_logits(row, guide(row, 20));
            let before = rounded(&first.guided_logits(row, guide(row, 32)));
            let (found, expected) = (found.unwrap(), divergence(&now, &before));
            assert!(
                (found - expected).abs() < 1e-3 * expected.max(0.1),
                "{found} for {expected}"
            );
        }
        // What does not move diverges by nothing, though what is kept is rounded.
        let still = second.compare(rest, &choice(6), &mut distributions);
        assert!(still.iter().all(|found| found.unwrap().abs() < 1e-3));
        // Read again after a pass without it, a row is as if new; and so are other rows in the same places.
        let back = second.compare(rows, &choice(7), &mut distributions);
        assert!(back[..20].iter().all(Option::is_some) && back[20..].iter().all(Option::is_none));
        let mut others = rows.to_vec();
        for row in &mut others {
            row.position += 32;
        }
        let found = second.compare(&others, &choice(8), &mut distributions);
        assert_eq!(found, vec![None; 32]);
    }
}

#[test]
fn certain_rows_that_stay_are_still() {
    // A single token with nearly all of the probability, whose logit, about 30, rounds by up to 0.06.
    let mut world = world(4);
    let favourite = &mut world.lm_head[40 * HIDDEN_SIZE..][..HIDDEN_SIZE];
    for (row, x) in world.x.chunks_exact_mut(HIDDEN_SIZE).enumerate() {
        for (x, weight) in x.iter_mut().zip(&*favourite) {
            *x = weight * (1.3 + row as f32 / 100.0);
        }
    }
    for weight in favourite {
        *weight *= 3.0;
    }
    let confident = world.reduce(&world.rows, &plain());
    assert!(confident.iter().all(|row| row.confidence > 0.99));
    let mut distributions = world.ops.distributions(4, VOCAB_SIZE).unwrap();
    let mut compare = |pass: usize| {
        let choice = SamplingParams { pass, ..plain() };
        world.compare(&world.rows, &choice, &mut distributions)
    };
    compare(0);
    assert!(compare(1).iter().all(|found| found.unwrap().abs() < 1e-4));
}

#[test]
fn a_pass_that_fails_leaves_nothing_to_compare_with() {
    let mut world = world(2);
    let mut distributions = world.ops.distributions(2, VOCAB_SIZE).unwrap();
    let choice = |pass: usize| SamplingParams { pass, ..plain() };
    world.compare(&world.rows, &choice(0), &mut distributions);
    let group = LmHeadGroup {
        distributions: Some(&mut distributions),
        ..group(&world.rows, &choice(1))
    };
    drop(world.ops.start_lm_head(vec![group], VOCAB_SIZE).unwrap());
    let found = world.compare(&world.rows, &choice(1), &mut distributions);
    assert_eq!(found, [None, None]);
    // Checks are not compared.
    world.rows[1].is_check = true;
    let found = world.compare(&world.rows, &choice(2), &mut distributions);
    assert!(found[0].is_some() && found[1].is_none());
}
