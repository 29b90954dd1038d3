//! KLASS (arXiv 2511.05664): commits positions that are confident and whose distribution has settled.

use std::collections::BTreeMap;

use super::{BlockView, Policy, PolicyDecision, PolicyNeeds};

/// Commits all positions above `t` whose KL divergence from the pass before was less than `eps` in each of the last
/// `passes` passes; where there are none, the best one.
#[derive(Debug, Clone)]
pub(super) struct Klass {
    t: f64,
    eps: f64,
    passes: usize,
    /// For how many passes in a row each position has been settled.
    still: BTreeMap<usize, usize>,
}

impl Klass {
    pub(super) fn new(t: f64, eps: f64, passes: usize) -> Self {
        Self {
            t,
            eps,
            passes,
            still: BTreeMap::new(),
        }
    }
}

impl Policy for Klass {
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds {
            divergence: true,
            ..PolicyNeeds::default()
        }
    }

    fn open(&mut self) {
        self.still.clear();
    }

    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let mut commit = Vec::new();
        for (index, row) in view.rows.iter().enumerate() {
            let still = self.still.entry(row.position).or_default();
            // The first pass of a position has nothing to compare with, and starts its count at 0.
            let divergence = row.candidate.evidence.divergence;
            // One pass above `eps` starts the count again: the condition is on consecutive passes.
            *still = match divergence.is_some_and(|divergence| divergence < self.eps) {
                true => *still + 1,
                false => 0,
            };
            if row.score > self.t && *still >= self.passes {
                commit.push(index);
            }
        }
        match commit.is_empty() {
            // As published: where nothing has settled the best position is committed, or the block would not end.
            true => view.best(1),
            false => view.commit(commit),
        }
    }

    fn is_stateless(&self) -> bool {
        false
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::Scene, *};

    #[test]
    fn what_is_confident_waits_until_it_is_still() {
        let mut policy = Klass::new(0.9, 0.01, 2);
        let mut committed = |divergences: [Option<f64>; 4]| {
            let mut scene = Scene::of(&[0.95, 0.96, 0.99, 0.8]);
            for ((_, candidate), divergence) in scene.rows.iter_mut().zip(divergences) {
                candidate.evidence.divergence = divergence;
            }
            scene.committed(&mut policy)
        };
        // Nothing is known yet, so only the best; the same for a single pass.
        assert_eq!(committed([None; 4]), [2]);
        let still = Some(0.001);
        assert_eq!(committed([still, still, Some(0.5), still]), [2]);
        // The first two were still twice; the third has moved, the fourth is not confident.
        assert_eq!(committed([still, still, still, still]), [0, 1]);
        // One that moves begins again.
        assert_eq!(committed([Some(0.01), still, still, still]), [1, 2]);
        assert_eq!(committed([still, still, Some(f64::NAN), still]), [1]);
        policy.open();
        assert!(policy.still.is_empty());
    }
}
