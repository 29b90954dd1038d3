//! Policies that commit every position that is confident enough.

use sluice_ops::RankingScore;

use super::{BlockView, Policy, PolicyDecision, PolicyNeeds};

/// Fast-dLLM, `threshold`: commits all positions that reach it.
#[derive(Debug, Clone)]
pub(super) struct Threshold {
    pub(super) t: f64,
}

impl Policy for Threshold {
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        // The rows that reach the threshold are the first of the ranking, so their number says which they are.
        view.best(view.reaching(self.t))
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// Fast-dLLM, `factor`, as its upstream code has it: the i-th of n is dropped below 1 − f/(i + 1), the first always
/// stays, and if the tests reach the n-th, all are kept without testing it.
#[derive(Debug, Clone)]
pub(super) struct Factor {
    pub(super) f: f64,
}

impl Policy for Factor {
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let ranked = view.ranked();
        let n = ranked.len();
        let reaches = |i: &usize| {
            let score = view.rows[ranked[i - 1]].score;
            score >= 1.0 - self.f / (*i as f64 + 1.0)
        };
        // The end is exclusive, so the n-th is never tested: upstream's quirk, whose tokens the fixtures have.
        let short = (2..n).find(|i| !reaches(i));
        view.best(short.map_or(n, |i| i - 1))
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// Commits all positions whose most probable token leads the next one by at least `least`.
#[derive(Debug, Clone)]
pub(super) struct Margin {
    pub(super) least: f64,
}

impl Policy for Margin {
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds {
            ranking: Some(RankingScore::Margin),
            ..PolicyNeeds::default()
        }
    }

    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        view.best(view.reaching(self.least))
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// Streaming-dLLM: commits all positions that reach a threshold which falls as the block fills, τ(1 − α(1 − r)), where
/// r is the share that is still masked. The paper counts r up to the end of the suffix that it keeps; here it is the
/// block's alone.
#[derive(Debug, Clone)]
pub(super) struct Decay {
    pub(super) t: f64,
    pub(super) alpha: f64,
}

impl Policy for Decay {
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let share = view.rows.len() as f64 / view.step.masked_at_start as f64;
        view.best(view.reaching(self.t * (1.0 - self.alpha * (1.0 - share))))
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{Scene, committed},
        *,
    };

    #[test]
    fn threshold_keeps_what_reaches_it_and_always_one() {
        let mut policy = Threshold { t: 0.9 };
        assert_eq!(committed(&mut policy, &[0.89, 0.9, 0.95]), [1, 2]);
        assert_eq!(committed(&mut policy, &[0.2, 0.3, 0.3]), [1]);
        assert_eq!(committed(&mut policy, &[f64::NAN, 0.3]), [1]);
        assert_eq!(committed(&mut policy, &[f64::NAN]), [0]);
        let mut all = Threshold { t: 0.0 };
        assert_eq!(committed(&mut all, &[0.3, 0.2]), [0, 1]);
    }

    #[test]
    fn factor_stops_at_the_first_that_falls_short() {
        let count = |scores: &[f64]| committed(&mut Factor { f: 1.0 }, scores).len();
        // Thresholds for i = 2, 3: 1 − 1/3, 1 − 1/4.
        assert_eq!(count(&[0.66, 0.6, 0.5, 0.1]), 1);
        assert_eq!(count(&[0.9, 0.7, 0.74, 0.7]), 2);
        assert_eq!(count(&[0.9, 0.0, 0.76, 0.7, 0.7]), 2);
        assert_eq!(count(&[0.8, 0.76, 0.9, 0.0]), 4);
        assert_eq!(count(&[0.1]), 1);
        assert_eq!(count(&[0.1, 0.0]), 2);
        assert_eq!(count(&[0.9, f64::NAN, f64::NAN]), 1);
    }

    #[test]
    fn decay_asks_for_less_as_the_block_fills() {
        let mut policy = Decay { t: 0.8, alpha: 0.5 };
        let mut scene = Scene::of(&[0.79, 0.8, 0.61, 0.59]);
        assert_eq!(scene.committed(&mut policy), [1]);
        // Half of it is masked: 0.8 · (1 − 0.5 · 0.5).
        scene.step.masked_at_start = 8;
        assert_eq!(scene.committed(&mut policy), [0, 1, 2]);
    }

    #[test]
    fn margin_ranks_by_itself() {
        let mut policy = Margin { least: 0.8 };
        assert_eq!(policy.needs().ranking, Some(RankingScore::Margin));
        assert_eq!(committed(&mut policy, &[0.8, 0.7, 0.9]), [0, 2]);
        assert_eq!(committed(&mut policy, &[0.6, 0.7]), [1]);
    }
}
