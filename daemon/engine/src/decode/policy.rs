//! Policies: how many of a pass's most confident candidates are committed. Pure functions;
//! their names, parameters and defaults stand in [`sluice_shared::policy`].

use sluice_shared::policy::PolicyChoice;

/// Where a block stands before a pass commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Passes in this block before this one.
    pub index: usize,
    /// Passes that the reference schedule gives the block.
    pub steps: usize,
    /// Masks it had when it was opened.
    pub masked_at_start: usize,
}

/// How many of the candidates to commit. `ranked` holds their scores, the highest first, and
/// is not empty; the answer lies between 1 and its length.
///
/// # Panics
/// When the registry has a policy that isn't implemented here.
#[must_use]
pub fn commit_count(policy: &PolicyChoice, step: Step, ranked: &[f64]) -> usize {
    let count = match policy.name() {
        "reference" => quota(step),
        "threshold" => reaching(ranked, policy.value(0)),
        "factor" => by_factor(ranked, policy.value(0)),
        "dream" => by_time(step, policy.value(0)),
        other => unreachable!("policy '{other}' is in the registry but not implemented"),
    };
    count.clamp(1, ranked.len())
}

/// The LLaDA reference: n div S for each of S steps, and one more for the first n mod S. A
/// step that would commit nothing computes nothing of use, so there are at most n steps.
fn quota(step: Step) -> usize {
    let steps = step.steps.min(step.masked_at_start).max(1);
    step.masked_at_start / steps + usize::from(step.index < step.masked_at_start % steps)
}

/// Fast-dLLM, `threshold`: all that reach it.
fn reaching(ranked: &[f64], threshold: f64) -> usize {
    ranked.partition_point(|&score| score >= threshold)
}

/// Fast-dLLM, `factor`, as its upstream code has it: the i-th of n falls out below
/// 1 − f/(i + 1), the first always stays, and reaching the n-th keeps them all without a test
/// of its own.
fn by_factor(ranked: &[f64], factor: f64) -> usize {
    let n = ranked.len();
    for i in 2..n {
        if ranked[i - 1] < 1.0 - factor / (i as f64 + 1.0) {
            return i - 1;
        }
    }
    n
}

/// Dream's `_sample`: of what is masked at time t the share 1 − s/t, rounded down, until the next time s; times go in even
/// steps from 1 to `eps`, the last step takes the rest. A step that would commit nothing computes nothing of use and is
/// passed over.
fn by_time(step: Step, eps: f64) -> usize {
    // In `f32`, as the reference computes it.
    let eps = eps as f32;
    let time = |i: usize| 1.0 - (1.0 - eps) * i as f32 / step.steps as f32;
    let mut masked = step.masked_at_start;
    let mut passes = 0;
    for i in 0..step.steps {
        let count = match i + 1 == step.steps {
            true => masked,
            false => (masked as f32 * (1.0 - time(i + 1) / time(i))) as usize,
        };
        if count > 0 && passes == step.index {
            return count;
        }
        passes += usize::from(count > 0);
        masked -= count;
    }
    masked.max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_shared::policy::POLICIES;

    use super::*;

    fn count(policy: &str, ranked: &[f64]) -> usize {
        let step = Step {
            index: 0,
            steps: 4,
            masked_at_start: 4,
        };
        commit_count(&policy.parse().unwrap(), step, ranked)
    }

    proptest! {
        #[test]
        fn the_reference_schedule_commits_every_mask_once(masks in 1usize..300, steps in 1usize..400) {
            let all = vec![0.5; masks];
            let policy = PolicyChoice::default();
            let mut left = masks;
            let mut passes = 0;
            let mut last = usize::MAX;
            while left > 0 {
                let step = Step { index: passes, steps, masked_at_start: masks };
                let count = commit_count(&policy, step, &all[..left]);
                prop_assert!(count <= last, "a later step commits no more than an earlier one");
                last = count;
                left -= count;
                passes += 1;
            }
            prop_assert_eq!(passes, steps.min(masks));
        }
    }

    #[test]
    fn threshold_keeps_what_reaches_it_and_always_one() {
        assert_eq!(count("threshold:t=0.9", &[0.95, 0.9, 0.89]), 2);
        assert_eq!(count("threshold:t=0.9", &[0.3, 0.2]), 1);
        assert_eq!(count("threshold:t=0", &[0.3, 0.2]), 2);
    }

    #[test]
    fn factor_stops_at_the_first_that_falls_short() {
        // Thresholds for i = 2, 3: 1 - 1/3, 1 - 1/4.
        assert_eq!(count("factor:f=1", &[0.1, 0.66, 0.9, 0.9]), 1);
        assert_eq!(count("factor:f=1", &[0.9, 0.7, 0.74, 0.7]), 2);
        assert_eq!(count("factor:f=1", &[0.9, 0.7, 0.76, 0.0]), 4);
        assert_eq!(count("factor:f=1", &[0.1]), 1);
        assert_eq!(count("factor:f=1", &[0.1, 0.0]), 2);
    }

    #[test]
    fn dream_takes_what_its_time_passes_and_skips_empty_steps() {
        let counts = |masked: usize, steps: usize| -> Vec<usize> {
            let policy = "dream".parse().unwrap();
            let mut counts = Vec::new();
            let mut left = masked;
            while left > 0 {
                let step = Step {
                    index: counts.len(),
                    steps,
                    masked_at_start: masked,
                };
                let count = commit_count(&policy, step, &vec![0.5; left]);
                counts.push(count);
                left -= count;
            }
            counts
        };
        // By hand: 32 · (1 − 0.875125) = 3.99…, 29 · (1 − 0.75025/0.875125) = 4.1…
        assert_eq!(counts(32, 8)[..2], [3, 4]);
        assert_eq!(counts(32, 8).len(), 8);
        assert_eq!(counts(32, 8).iter().sum::<usize>(), 32);
        // The first of as many steps as masks falls short of one.
        assert!(counts(32, 32).len() < 32);
        assert_eq!(counts(5, 1), [5]);
    }

    #[test]
    fn every_policy_of_the_registry_is_implemented() {
        for policy in POLICIES {
            assert!(count(policy.name, &[0.5, 0.4]) >= 1);
        }
    }
}
