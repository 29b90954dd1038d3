//! The EB-Sampler (arXiv 2505.24857): as many positions as an entropy budget allows.

use sluice_ops::RankingScore;

use super::{BlockView, Policy, PolicyDecision, PolicyNeeds};

/// Commits the most certain positions, as long as the entropies of all but the least certain of them sum to at most
/// `gamma`: a bound on what is lost by choosing them as if they were independent.
#[derive(Debug, Clone)]
pub(super) struct Entropy {
    pub(super) gamma: f64,
}

impl Policy for Entropy {
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds {
            ranking: Some(RankingScore::Entropy),
            ..PolicyNeeds::default()
        }
    }

    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let mut spent = 0.0;
        let affordable = view.ranked().into_iter().take_while(|&row| {
            // The score is Σ p ln p, the negated entropy.
            let entropy = -view.rows[row].score;
            // Compared before this position's own entropy is added: the last one committed does not count.
            let is_affordable = spent <= self.gamma && !entropy.is_nan();
            spent += entropy;
            is_affordable
        });
        // The ranking begins with the most certain, so the affordable rows are its first ones.
        view.best(affordable.count())
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::committed, *};

    #[test]
    fn all_but_the_largest_entropy_fit_the_budget() {
        let committed = |entropies: &[f64]| {
            let scores: Vec<f64> = entropies.iter().map(|entropy| -entropy).collect();
            committed(&mut Entropy { gamma: 0.25 }, &scores)
        };
        // 0 + 0.125 + 0.125 fits, and with it one more, however large.
        assert_eq!(committed(&[0.125, 2.0, 0.0, 0.125, 3.0]), [0, 1, 2, 3]);
        // 0.125 + 0.25 does not, and of equals the lower position goes first.
        assert_eq!(committed(&[0.5, 0.25, 0.125, 0.5]), [1, 2]);
        assert_eq!(committed(&[5.0, 4.0]), [1]);
        assert_eq!(committed(&[0.0, f64::NAN]), [0]);
    }
}
