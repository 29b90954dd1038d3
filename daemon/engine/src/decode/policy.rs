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
    fn every_policy_of_the_registry_is_implemented() {
        for policy in POLICIES {
            assert!(count(policy.name, &[0.5, 0.4]) >= 1);
        }
    }
}
