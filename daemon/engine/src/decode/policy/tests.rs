//! What every policy of the registry keeps to, and what the tests of each are written with.

use proptest::prelude::*;
use sluice_ops::{CandidateEvidence, TopToken};
use sluice_shared::policy::POLICIES;

use super::*;

/// A block after a pass, for policies to look at.
pub(super) struct Scene {
    pub(super) step: PolicyStep,
    pub(super) block: Range<usize>,
    /// Positions, and what stands there.
    pub(super) rows: Vec<(usize, Candidate)>,
    /// Committed positions, what stands there, and the candidate for it.
    pub(super) written: Vec<(usize, u32, Candidate)>,
    /// Positions, and the probabilities of their tokens.
    pub(super) checked: Vec<(usize, f64)>,
    pub(super) ends: Vec<u32>,
    pub(super) draws: bool,
}

impl Scene {
    /// Nothing but masks of such confidence.
    pub(super) fn of(confidences: &[f64]) -> Self {
        Self {
            step: PolicyStep {
                index: 0,
                steps: 4,
                masked_at_start: confidences.len(),
                scheduled: confidences.len(),
            },
            block: 0..confidences.len(),
            rows: (confidences.iter().enumerate())
                .map(|(position, &confidence)| (position, candidate(position, confidence)))
                .collect(),
            written: Vec::new(),
            checked: Vec::new(),
            ends: Vec::new(),
            draws: false,
        }
    }

    pub(super) fn decide(&self, policy: &mut dyn Policy) -> PolicyDecision {
        let rows: Vec<ScoredPosition<'_>> = (self.rows.iter())
            .map(|(position, candidate)| ScoredPosition {
                position: *position,
                score: candidate.rank,
                candidate,
            })
            .collect();
        let now = candidate(0, 0.5);
        let written: Vec<WrittenPosition<'_>> = (self.written.iter())
            .map(|(position, token, candidate)| WrittenPosition {
                position: *position,
                token: *token,
                candidate,
            })
            .collect();
        let checked: Vec<CheckedPosition<'_>> = (self.checked.iter())
            .map(|&(position, probability)| CheckedPosition {
                position,
                probability,
                candidate: &now,
            })
            .collect();
        policy.decide(&BlockView {
            step: self.step,
            block: self.block.clone(),
            rows: &rows,
            written: &written,
            checked: &checked,
            ends: &self.ends,
            draws: self.draws,
        })
    }

    /// The positions that are committed, rising.
    pub(super) fn committed(&self, policy: &mut dyn Policy) -> Vec<usize> {
        let commit = self.decide(policy).commit;
        let mut positions: Vec<_> = commit
            .iter()
            .map(|commit| self.rows[commit.row].0)
            .collect();
        positions.sort_unstable();
        positions
    }
}

/// Of a position, where the token says which.
pub(super) fn candidate(position: usize, confidence: f64) -> Candidate {
    Candidate {
        token: 100 + position as u32,
        confidence,
        rank: confidence,
        target_log_probability: None,
        evidence: CandidateEvidence {
            top: Some(TopToken {
                token: 100 + position as u32,
                log_probability: confidence.ln(),
            }),
            ..CandidateEvidence::default()
        },
    }
}

/// What is committed of masks side by side.
pub(super) fn committed(policy: &mut dyn Policy, confidences: &[f64]) -> Vec<usize> {
    Scene::of(confidences).committed(policy)
}

/// Every policy of the registry, as it is by default.
fn all() -> impl Iterator<Item = Box<dyn Policy>> {
    let choices = POLICIES.iter().map(|info| info.name.parse().unwrap());
    choices.map(|choice| policy(&choice))
}

fn confidence() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => 0.0..=1.0,
        1 => prop::sample::select(vec![0.0, 0.9, 1.0]),
        1 => Just(f64::NAN),
    ]
}

proptest! {
    /// Whatever a model says, each pass of every policy leaves fewer masks, so that blocks end.
    #[test]
    fn every_block_ends(
        len in 1usize..40,
        pinned in prop::collection::vec(any::<bool>(), 40),
        said in prop::collection::vec(confidence(), 80),
        steps in 1usize..50,
        draws in any::<bool>(),
    ) {
        for mut policy in all() {
            policy.open();
            let mut masked: Vec<usize> = (0..len).filter(|&position| !pinned[position]).collect();
            let masked_at_start = masked.len();
            let mut committed: Vec<usize> = Vec::new();
            let mut index = 0;
            let mut said = said.iter().copied().cycle();
            while !masked.is_empty() {
                let checks = if policy.needs().checks { &committed[..] } else { &[] };
                let mut says = || said.next().expect("without end");
                let rows = masked.iter().map(|&at| {
                    let mut candidate = candidate(at, says());
                    candidate.evidence.watched = policy.watched(at).iter().map(|_| says().ln()).collect();
                    candidate.evidence.divergence = Some(says() * 0.02).filter(|_| index > 0);
                    (at, candidate)
                });
                let scene = Scene {
                    step: PolicyStep { index, steps, masked_at_start, scheduled: masked_at_start },
                    block: 0..len,
                    rows: rows.collect(),
                    written: Vec::new(),
                    checked: checks.iter().map(|&at| (at, says())).collect(),
                    ends: Vec::new(),
                    draws,
                };
                let PolicyDecision { commit, take_back, .. } = scene.decide(&mut *policy);
                prop_assert!(!commit.is_empty());
                prop_assert!(take_back.len() < commit.len());
                let back: Vec<usize> = take_back.iter().map(|&index| scene.checked[index].0).collect();
                let gone: Vec<usize> = commit.iter().map(|commit| scene.rows[commit.row].0).collect();
                let before = masked.len();
                masked.retain(|at| !gone.contains(at));
                prop_assert_eq!(masked.len(), before - gone.len(), "each row once");
                committed.retain(|at| !back.contains(at));
                prop_assert_eq!(masked.len() + committed.len() + gone.len() + back.len(), masked_at_start, "each token once");
                masked.extend(&back);
                committed.extend(&gone);
                masked.sort_unstable();
                committed.sort_unstable();
                index += 1;
            }
            prop_assert!(index <= masked_at_start);
        }
    }
}

#[test]
fn ranks_fall_and_equals_go_to_the_lower_position() {
    let scores = [0.5, f64::NAN, 0.9, 0.5, -0.0, 0.0];
    assert_eq!(ranked(6, |index| scores[index]), [2, 0, 3, 4, 5, 1]);
}
