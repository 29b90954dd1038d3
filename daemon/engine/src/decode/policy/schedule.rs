//! Policies that commit as many positions in a pass as a schedule says, whatever their confidence.

use sluice_ops::RankingScore;

use super::{BlockView, Policy, PolicyDecision, PolicyNeeds, PolicyStep};

/// The LLaDA reference: n div S tokens in each of S steps, and one more in the first n mod S. A step that would commit
/// nothing is not run, so there are at most n steps. With block diffusion it is SDAR's `low_confidence_static`: n is the
/// block's length, whatever is masked of it.
#[derive(Debug, Clone)]
pub(super) struct Reference;

impl Policy for Reference {
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        view.best(view.step.quota())
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// Dream's `_sample`: of the masks at time t, the share 1 − s/t is committed until the next time s, rounded down; times
/// fall in even steps from 1 to `eps`, and the last step commits the rest. A step that would commit nothing is not run.
#[derive(Debug, Clone)]
pub(super) struct Dream {
    pub(super) eps: f64,
}

impl Policy for Dream {
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        view.best(self.count(view.step))
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

impl Dream {
    fn count(&self, step: PolicyStep) -> usize {
        // In `f32`, as the reference computes it: the rounding decides some counts.
        let eps = self.eps as f32;
        let time = |i: usize| 1.0 - (1.0 - eps) * i as f32 / step.steps as f32;
        // The schedule is replayed from the start: the count of a step depends on how many masks all earlier ones have
        // left.
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
}

/// RND1's sampler: after step s of S, of n masks the n·(S−s) div S of the highest entropy are left. A step that would
/// commit nothing is not run.
#[derive(Debug, Clone)]
pub(super) struct Rnd1;

impl Policy for Rnd1 {
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds {
            ranking: Some(RankingScore::Entropy),
            ..PolicyNeeds::default()
        }
    }

    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let step = view.step;
        let left = (0..step.steps).rev();
        let mut left = left.map(|later| step.masked_at_start * later / step.steps);
        // Steps that leave all that is masked are passed over.
        let left = left.find(|&left| left < view.rows.len()).unwrap_or(0);
        view.best(view.rows.len() - left)
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::tests::Scene, *};

    /// How many each pass of a block commits.
    fn counts(policy: &mut dyn Policy, masks: usize, steps: usize) -> Vec<usize> {
        let mut counts = Vec::new();
        let mut left = masks;
        while left > 0 {
            let mut scene = Scene::of(&vec![0.5; left]);
            scene.step = PolicyStep {
                index: counts.len(),
                steps,
                masked_at_start: masks,
                scheduled: masks,
            };
            let count = scene.decide(policy).commit.len();
            counts.push(count);
            left -= count;
        }
        counts
    }

    proptest! {
        #[test]
        fn the_reference_schedule_commits_every_mask_once(masks in 1usize..300, steps in 1usize..400) {
            let counts = counts(&mut Reference, masks, steps);
            prop_assert!(counts.is_sorted_by(|a, b| a >= b), "a later step commits no more than an earlier one");
            prop_assert_eq!(counts.len(), steps.min(masks));
        }
    }

    #[test]
    fn dream_takes_what_its_time_passes_and_skips_empty_steps() {
        let counts = |masks: usize, steps: usize| counts(&mut Dream { eps: 1e-3 }, masks, steps);
        // By hand: 32 · (1 − 0.875125) = 3.99…, 29 · (1 − 0.75025/0.875125) = 4.1…
        assert_eq!(counts(32, 8)[..2], [3, 4]);
        assert_eq!(counts(32, 8).len(), 8);
        assert_eq!(counts(32, 8).iter().sum::<usize>(), 32);
        // The first of as many steps as masks falls short of one.
        assert!(counts(32, 32).len() < 32);
        assert_eq!(counts(5, 1), [5]);
    }

    #[test]
    fn rnd1_leaves_the_share_of_later_steps() {
        let counts = |masks: usize, steps: usize| counts(&mut Rnd1, masks, steps);
        // By hand: of 19 masks 17, 15, 14, 12, … are left.
        assert_eq!(counts(19, 12), [2, 2, 1, 2, 1, 2, 2, 1, 2, 1, 2, 1]);
        assert_eq!(counts(31, 8), [4, 4, 4, 4, 4, 4, 4, 3]);
        assert_eq!(counts(3, 256), [1, 1, 1]);
        assert_eq!(counts(5, 1), [5]);
    }
}
