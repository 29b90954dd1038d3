//! Several canvases of one request in one pass, for when rows are free: guessed passes ahead, which are checked and
//! change no token, and further orders, of which the most promising goes on.
//!
//! References: self-speculative decoding, SSD (arXiv 2510.04147), for the first; LoPA (zhijie-group/LoPA) for the second.
//! Difference: any stateless policy can be guessed ahead, not the reference schedule alone.

use sluice_ops::{Candidate, LmHeadRow};
use sluice_shared::decoding::Speculation;

use super::{Diffusion, is_fixed};
use crate::decode::policy::Commit;

/// A canvas of a pass.
pub(super) struct CanvasBranch {
    pub(super) canvas: Vec<u32>,
    pub(super) unconditional: Option<Vec<u32>>,
    pub(super) rows: Vec<LmHeadRow>,
    /// Its commits beyond the branch before it or, where orders are tried, beyond the first branch: by position.
    pub(super) guess: Vec<Commit>,
}

impl Diffusion {
    /// The canvases of the next pass. `candidates` are the last ones of positions that are still masked, by position.
    pub(super) fn branches(&self, candidates: &[(usize, Candidate)]) -> Vec<CanvasBranch> {
        let mut all = vec![self.branch(self.rows(), Vec::new())];
        match self.request.decoding.speculation {
            Speculation::None => {}
            Speculation::Draft { branches } => {
                // Each guess takes its commits out, so the next one is made from what would still be masked.
                let mut left = candidates.to_vec();
                for ahead in 0..branches as usize {
                    let last = &all[all.len() - 1];
                    let Some(branch) = self.guess(last, &mut left, ahead) else {
                        break;
                    };
                    all.push(branch);
                }
            }
            Speculation::Explore { branches } => {
                let mut ranked: Vec<_> = candidates.iter().collect();
                ranked.sort_by(|(_, a), (_, b)| b.rank.total_cmp(&a.rank));
                // A branch that fills the last mask has no candidates left to compare it by.
                let ranked = if ranked.len() > 1 { ranked } else { Vec::new() };
                for (position, candidate) in ranked.into_iter().take(branches as usize) {
                    let guess = vec![Commit::of(*position, candidate)];
                    let branch = self.with(&all[0], guess);
                    all.push(branch);
                }
            }
        }
        all
    }

    /// The branch after `last`, if candidates stay as they are.
    fn guess(
        &self,
        last: &CanvasBranch,
        left: &mut Vec<(usize, Candidate)>,
        ahead: usize,
    ) -> Option<CanvasBranch> {
        // `left` must be exactly the candidates of the rows that are still masked.
        if left.is_empty() || last.rows.len() != left.len() {
            return None;
        }
        let candidates: Vec<Candidate> = left
            .iter()
            .map(|(_, candidate)| candidate.clone())
            .collect();
        let judged = self.judged(&last.rows, &candidates, ahead);
        let view = self.view(&judged, &self.vocabulary.ends, ahead);
        // A copy: a guess must leave the request's own policy untouched.
        let decision = self.policy.boxed_clone().decide(&view);
        let prompt = self.request.prompt.len();
        let guess = decision.commit.into_iter().map(|commit| Commit {
            row: last.rows[commit.row].position - prompt,
            ..commit
        });
        let guess: Vec<Commit> = guess.collect();
        left.retain(|(position, _)| guess.iter().all(|commit| commit.row != *position));
        // The last step of a block has no rows by which it could be checked.
        (!left.is_empty()).then(|| self.with(last, guess))
    }

    /// A branch with these committed in addition.
    fn with(&self, from: &CanvasBranch, guess: Vec<Commit>) -> CanvasBranch {
        let prompt = self.request.prompt.len();
        let mut canvas = from.canvas.clone();
        for commit in &guess {
            canvas[prompt + commit.row] = commit.token;
        }
        let is_open = |row: &&LmHeadRow| {
            let position = row.position - prompt;
            guess.iter().all(|commit| commit.row != position)
        };
        CanvasBranch {
            unconditional: (from.unconditional.is_some()).then(|| self.unconditional(&canvas)),
            rows: from.rows.iter().filter(is_open).cloned().collect(),
            canvas,
            guess,
        }
    }

    /// Takes the steps that a pass's candidates allow: one, and as many more as were guessed right. Returns the
    /// candidates of positions that are still masked, by position.
    pub(super) fn follow(&mut self, candidates: &[Vec<Candidate>]) -> Vec<(usize, Candidate)> {
        let mut branches = std::mem::take(&mut self.branches)
            .into_iter()
            .zip(candidates);
        let first = branches.next().expect("a pass has a canvas");
        let taken = match self.request.decoding.speculation {
            Speculation::None => {
                self.step(&first.0.rows, first.1);
                first
            }
            Speculation::Draft { .. } => {
                let mut taken = first;
                loop {
                    // The next branch is valid only if it assumed exactly what this step has committed: then its
                    // candidates are those that the next pass would have computed, noise included.
                    let found = self.step(&taken.0.rows, taken.1);
                    match branches.next() {
                        Some(next) if is_same(&found, &next.0.guess) && !self.has_ended() => {
                            taken = next;
                        }
                        _ => break taken,
                    }
                }
            }
            Speculation::Explore { .. } => {
                let mean = |(_, candidates): &(CanvasBranch, &Vec<Candidate>)| {
                    let sum: f64 = candidates
                        .iter()
                        .map(|candidate| candidate.confidence)
                        .sum();
                    sum / candidates.len() as f64
                };
                // Among equals the first branch, which has committed the least.
                let best = branches.fold(first, |best, next| match mean(&next) > mean(&best) {
                    true => next,
                    false => best,
                });
                // The branch's own guess first: its candidates were computed with that token in place.
                self.commit(&best.0.guess);
                self.step(&best.0.rows, best.1);
                best
            }
        };
        let prompt = self.request.prompt.len();
        let pairs = taken.0.rows.iter().zip(taken.1);
        let open = pairs
            .filter(|(row, _)| !row.is_check)
            .map(|(row, candidate)| (row.position - prompt, candidate.clone()))
            .filter(|(position, _)| !is_fixed(self.positions[*position].state));
        open.collect()
    }
}

/// Whether two steps commit the same tokens to the same positions, in any order.
fn is_same(a: &[Commit], b: &[Commit]) -> bool {
    let same = |x: &Commit, y: &Commit| (x.row, x.token) == (y.row, y.token);
    a.len() == b.len() && a.iter().all(|x| b.iter().any(|y| same(x, y)))
}
