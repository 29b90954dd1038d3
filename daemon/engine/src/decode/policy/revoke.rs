//! WINO (arXiv 2507.18578): commits generously, verifies what was committed, and takes back what looks wrong.

use super::{BlockView, Policy, PolicyDecision, PolicyNeeds, ranked};

/// Commits all positions with at least `draft`, but no more than this `share` of the masks and no more than `most`;
/// takes back earlier commits to which the model now gives a probability below `keep`.
///
/// Fewer are taken back than are committed by the same pass, so that each pass leaves fewer masks and a block of n
/// masks takes n passes at most.
#[derive(Debug, Clone)]
pub(super) struct Revoke {
    pub(super) draft: f64,
    pub(super) keep: f64,
    pub(super) share: f64,
    pub(super) most: usize,
}

impl Policy for Revoke {
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds {
            checks: true,
            ..PolicyNeeds::default()
        }
    }

    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let share = (view.rows.len() as f64 * self.share) as usize;
        let mut decision = view.best(view.reaching(self.draft).min(share).min(self.most));
        let checked = view.checked;
        // The least likely are taken back first.
        let mut doubted = ranked(checked.len(), |index| -checked[index].probability);
        // NaN is no reason to keep a token.
        let keeps = |index: usize| checked[index].probability >= self.keep;
        doubted.retain(|&index| !keeps(index));
        // `best` commits at least one, so this is never negative; keeping one ahead guarantees progress.
        doubted.truncate(decision.commit.len() - 1);
        decision.take_back = doubted;
        decision
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::Scene, *};

    const POLICY: Revoke = Revoke {
        draft: 0.6,
        keep: 0.9,
        share: 0.7,
        most: 3,
    };

    #[test]
    fn drafts_are_wide_but_bounded() {
        let committed = |confidences: &[f64]| Scene::of(confidences).committed(&mut POLICY.clone());
        assert_eq!(committed(&[0.6, 0.59, 0.7, 0.1]), [0, 2]);
        // Of three masks 70 % are two; of eight three at most; one in any case.
        assert_eq!(committed(&[0.7, 0.8, 0.9]), [1, 2]);
        assert_eq!(committed(&[0.7; 8]), [0, 1, 2]);
        assert_eq!(committed(&[0.7]), [0]);
        assert_eq!(committed(&[0.2, 0.3]), [1]);
    }

    #[test]
    fn the_most_doubtful_are_taken_back_but_fewer_than_were_committed() {
        let taken_back = |confidences: &[f64], checked: &[f64]| {
            let mut scene = Scene::of(confidences);
            scene.checked = (checked.iter().enumerate())
                .map(|(index, &probability)| (20 + index, probability))
                .collect();
            scene.decide(&mut POLICY.clone()).take_back
        };
        let three = [0.7; 5];
        assert_eq!(taken_back(&three, &[0.9, 0.89, 0.95]), [1]);
        assert_eq!(taken_back(&three, &[0.8, 0.1, 0.5]), [1, 2]);
        assert_eq!(taken_back(&three, &[0.5, 0.5, 0.5]), [0, 1]);
        assert_eq!(taken_back(&[0.7, 0.1], &[0.0]), Vec::<usize>::new());
        assert_eq!(taken_back(&three, &[f64::NAN]), [0]);
    }
}
