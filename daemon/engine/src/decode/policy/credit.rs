//! CreditDecoding (arXiv 2510.06133): tokens that a position has favoured for several passes count for more.

use std::collections::BTreeMap;

use sluice_ops::{Candidate, RankingScore};

use super::{BlockView, Commit, Policy, PolicyDecision, PolicyNeeds, ScoredPosition, ranked};

/// Each position keeps a credit for each token that it has favoured. In every pass, credits shrink to `decay` of their
/// value, and the favourite's grows by its probability to the `power`. `weight` · ln(1 + credit) is added to the
/// logits, and all positions with at least `t` by the resulting probabilities are committed.
///
/// Only tokens with credit are raised, so their log-probabilities are enough to compute those probabilities exactly.
#[derive(Debug, Clone)]
pub(super) struct Credit {
    t: f64,
    decay: f64,
    power: f64,
    weight: f64,
    /// Keyed by canvas position.
    favourites: BTreeMap<usize, Favourites>,
}

/// Tokens that a position has favoured, in the order in which they came, and the credit of each.
#[derive(Debug, Clone, Default)]
struct Favourites {
    tokens: Vec<u32>,
    credits: Vec<f64>,
}

/// A token after its logit was raised.
#[derive(Clone, Copy)]
struct Raised {
    token: u32,
    /// Its probability without credit.
    confidence: f64,
    /// Its probability with credit.
    probability: f64,
}

impl Credit {
    pub(super) fn new(t: f64, decay: f64, power: f64, weight: f64) -> Self {
        Self {
            t,
            decay,
            power,
            weight,
            favourites: BTreeMap::new(),
        }
    }
}

impl Policy for Credit {
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds {
            ranking: Some(RankingScore::Confidence),
            top: true,
            ..PolicyNeeds::default()
        }
    }

    fn open(&mut self) {
        self.favourites.clear();
    }

    fn watched(&self, position: usize) -> &[u32] {
        let favourites = self.favourites.get(&position);
        favourites.map_or(&[], |favourites| &favourites.tokens)
    }

    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let raise = |row: &ScoredPosition<'_>| {
            let candidate = row.candidate;
            let favourites = self.favourites.entry(row.position).or_default();
            let evidence = &candidate.evidence;
            let top = evidence.top.expect("asked for");
            let mut log_probabilities = evidence.watched.clone();
            // A new favourite was not watched in this pass, so its log-probability comes from the row's top token.
            let favourite = favourites.find(top.token).unwrap_or_else(|| {
                log_probabilities.push(top.log_probability);
                favourites.add(top.token)
            });
            // All credits shrink before the favourite's grows, as published: a new credit is not decayed in its first
            // pass.
            for credit in &mut favourites.credits {
                *credit *= self.decay;
            }
            favourites.credits[favourite] += top.log_probability.exp().powf(self.power);
            // With sampling the drawn token stays: a policy may decide when to commit it, not which it is.
            let chosen = view.draws.then_some(candidate);
            favourites.raised(&log_probabilities, self.weight, chosen)
        };
        // Every masked position, not only those to commit: credit comes from the passes in which a token had to wait.
        let raised: Vec<Raised> = view.rows.iter().map(raise).collect();
        let mut commit = ranked(raised.len(), |row| raised[row].probability);
        let count = raised.iter().filter(|raised| raised.probability >= self.t);
        commit.truncate(count.count().max(1));
        let commit = commit.into_iter().map(|row| Commit {
            row,
            token: raised[row].token,
            confidence: raised[row].confidence,
        });
        PolicyDecision {
            commit: commit.collect(),
            ..PolicyDecision::default()
        }
    }

    fn is_stateless(&self) -> bool {
        false
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

impl Favourites {
    fn find(&self, token: u32) -> Option<usize> {
        self.tokens.iter().position(|known| *known == token)
    }

    fn add(&mut self, token: u32) -> usize {
        self.tokens.push(token);
        self.credits.push(0.0);
        self.credits.len() - 1
    }

    /// The likeliest token, or the drawn one, after logits were raised by `weight` · ln(1 + credit).
    fn raised(&self, log_probabilities: &[f64], weight: f64, chosen: Option<&Candidate>) -> Raised {
        let plain: Vec<f64> = log_probabilities.iter().map(|log| log.exp()).collect();
        // Adding ln(1 + c) · w to a logit multiplies its probability by (1 + c)^w; the sum grows by what was added.
        let raised: Vec<f64> = (plain.iter().zip(&self.credits))
            .map(|(probability, credit)| probability * (1.0 + credit).powf(weight))
            .collect();
        let added = plain
            .iter()
            .zip(&raised)
            .map(|(plain, raised)| raised - plain);
        let sum = 1.0 + added.sum::<f64>();
        let favourite = match chosen {
            Some(candidate) => self.find(candidate.token),
            None => Some(ranked(raised.len(), |index| raised[index])[0]),
        };
        match (favourite, chosen) {
            (Some(index), _) => Raised {
                token: self.tokens[index],
                confidence: plain[index],
                probability: raised[index] / sum,
            },
            (None, Some(candidate)) => Raised {
                token: candidate.token,
                confidence: candidate.confidence,
                probability: candidate.confidence / sum,
            },
            (None, None) => unreachable!("there is a favourite"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_ops::{CandidateEvidence, TopToken};

    use super::{super::tests::Scene, *};

    /// A scene whose rows have these probabilities of tokens 0, 1, …, for a policy that may watch some of them.
    fn scene(policy: &Credit, rows: &[&[f64]]) -> Scene {
        let mut scene = Scene::of(&vec![0.0; rows.len()]);
        for ((position, candidate), probabilities) in scene.rows.iter_mut().zip(rows) {
            let top = ranked(probabilities.len(), |token| probabilities[token])[0];
            candidate.token = top as u32;
            candidate.confidence = probabilities[top];
            candidate.evidence = CandidateEvidence {
                watched: (policy.watched(*position).iter())
                    .map(|&token| probabilities[token as usize].ln())
                    .collect(),
                top: Some(TopToken {
                    token: top as u32,
                    log_probability: probabilities[top].ln(),
                }),
                divergence: None,
            };
        }
        scene
    }

    #[test]
    fn what_is_favoured_again_and_again_is_committed() {
        let mut policy = Credit::new(0.7, 0.8, 0.2, 0.7);
        let row: &[f64] = &[0.2, 0.5, 0.3];
        let other: &[f64] = &[0.6, 0.2, 0.2];
        // Credit 0.5^0.2 = 0.8706, factor 1.8706^0.7 = 1.5502: 0.7751 / 1.2751 = 0.6079; the other has 0.7020.
        let decision = scene(&policy, &[row, other]).decide(&mut policy);
        let committed = |decision: PolicyDecision| -> Vec<(usize, u32, f64)> {
            let commit = decision.commit.iter();
            commit
                .map(|commit| (commit.row, commit.token, commit.confidence))
                .collect()
        };
        assert_eq!(committed(decision), [(1, 0, 0.6)]);
        assert_eq!(policy.watched(0), [1]);
        // Credit 1.5670, factor 1.9343: 0.9672 / 1.4672 = 0.6592; then 2.1242, 2.2196: 0.6894; then 2.5699, 2.4371: 0.7091.
        for _ in 0..2 {
            let best = scene(&policy, &[row, &[0.1, 0.89, 0.01]]);
            assert_eq!(best.decide(&mut policy).commit.len(), 1);
        }
        let decision = scene(&policy, &[row, &[0.1, 0.89, 0.01]]).decide(&mut policy);
        assert_eq!(decision.commit.len(), 2);
    }

    #[test]
    fn credit_may_outweigh_a_new_favourite() {
        let mut policy = Credit::new(0.9, 0.8, 0.2, 0.7);
        for _ in 0..3 {
            scene(&policy, &[&[0.5, 0.4, 0.1]]).decide(&mut policy);
        }
        // The new favourite's credit is of this pass only.
        let mut rotated = scene(&policy, &[&[0.4, 0.45, 0.15]]);
        let commit = rotated.decide(&mut policy.clone()).commit[0];
        assert_eq!(
            (commit.token, (commit.confidence * 100.0).round()),
            (0, 40.0)
        );
        // What chance has chosen stays, with or without credit.
        rotated.draws = true;
        for (token, confidence) in [(1, 0.45), (2, 0.15)] {
            rotated.rows[0].1.token = token;
            rotated.rows[0].1.confidence = confidence;
            let commit = rotated.decide(&mut policy.clone()).commit[0];
            assert_eq!(
                (commit.token, (commit.confidence * 100.0).round()),
                (token, (confidence * 100.0).round())
            );
        }
        policy.open();
        assert!(policy.watched(0).is_empty());
    }

    proptest! {
        /// Against the soft-max of all logits with their credits added.
        #[test]
        fn raised_probabilities_are_exact(
            logits in prop::collection::vec(-4.0f64..4.0, 5),
            credits in prop::collection::vec(0.0f64..5.0, 3),
        ) {
            let sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
            let favourites = Favourites { tokens: vec![3, 0, 4], credits };
            let log_probabilities: Vec<f64> =
                favourites.tokens.iter().map(|&token| logits[token as usize] - sum).collect();
            let mut raised = logits;
            for (&token, credit) in favourites.tokens.iter().zip(&favourites.credits) {
                raised[token as usize] += 0.7 * (1.0 + credit).ln();
            }
            let total = raised.iter().map(|logit| logit.exp()).sum::<f64>();
            let found = favourites.raised(&log_probabilities, 0.7, None);
            let expected = raised[found.token as usize].exp() / total;
            prop_assert!((found.probability - expected).abs() < 1e-12);
            for &token in &favourites.tokens {
                prop_assert!(raised[token as usize] <= raised[found.token as usize] + 1e-12);
            }
        }
    }
}
