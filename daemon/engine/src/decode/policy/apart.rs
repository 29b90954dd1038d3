//! An option of other policies: equal tokens are not committed close to each other in one pass.
//!
//! The positions of a pass are filled as if none of the others were, so two neighbours can each be right alone and
//! wrong together. Mostly they are wrong in one way: where a word will stand is uncertain by a position or two, all of
//! these predict it, and it is doubled ("was was", "ros·es·es"). That much can be seen from the candidates. Of equal
//! tokens so near to each other the surest is committed, and the others are asked again by a pass that sees it: what
//! should stand there twice, such as digits or blank lines, is then still predicted, and comes one pass later.

use super::{BlockView, Commit, Policy, PolicyDecision, PolicyNeeds, ranked};

/// Another policy, without commits that repeat a token within so many positions.
#[derive(Clone)]
pub(super) struct Apart {
    pub(super) policy: Box<dyn Policy>,
    pub(super) positions: usize,
}

impl Policy for Apart {
    fn needs(&self) -> PolicyNeeds {
        self.policy.needs()
    }

    fn open(&mut self) {
        self.policy.open();
    }

    fn watched(&self, position: usize) -> &[u32] {
        self.policy.watched(position)
    }

    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let mut decision = self.policy.decide(view);
        let commit = std::mem::take(&mut decision.commit);
        // With `fast`, 100 tokens have 0.22 repeats where they have 0.49 without this, at 3.05 tokens a pass for 3.08
        // (docs/benchmarks.md).
        let mut kept: Vec<Commit> = Vec::with_capacity(commit.len());
        // The surest first, so that it is the one that stays.
        for index in ranked(commit.len(), |index| view.rows[commit[index].row].score) {
            let this = commit[index];
            let doubles =
                |other: &Commit| other.token == this.token && self.is_near(view, this, *other);
            // Behind the end of the text everything is end tokens, none of them doubled by mistake.
            if view.ends.contains(&this.token) || !kept.iter().any(doubles) {
                kept.push(this);
            }
        }
        decision.commit = kept;
        decision
    }

    fn is_stateless(&self) -> bool {
        self.policy.is_stateless()
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

impl Apart {
    /// Whether two rows are near each other with only masks between them: a fixed token between them settles which is
    /// which.
    fn is_near(&self, view: &BlockView<'_>, a: Commit, b: Commit) -> bool {
        let distance = view.rows[a.row]
            .position
            .abs_diff(view.rows[b.row].position);
        // Rows are the masked positions in order, so equal distances mean that every position between them is masked.
        distance <= self.positions && distance == a.row.abs_diff(b.row)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_shared::policy::{POLICIES, PolicyChoice};

    use super::{
        super::{
            policy,
            tests::{Scene, candidate},
        },
        *,
    };

    const END: u32 = 7;

    /// A block of masks that predict these tokens with these confidences.
    fn scene(predicted: &[(u32, f64)]) -> Scene {
        let mut scene = Scene::of(&[]);
        scene.block = 0..predicted.len();
        scene.step.masked_at_start = predicted.len().max(1);
        scene.step.scheduled = predicted.len().max(1);
        scene.ends = vec![END];
        scene.rows = (predicted.iter().enumerate())
            .map(|(position, &(token, confidence))| (position, says(position, token, confidence)))
            .collect();
        scene
    }

    fn says(position: usize, token: u32, confidence: f64) -> sluice_ops::Candidate {
        let mut candidate = candidate(position, confidence);
        candidate.token = token;
        if let Some(top) = &mut candidate.evidence.top {
            top.token = token;
        }
        candidate
    }

    fn threshold(apart: usize) -> Box<dyn Policy> {
        let choice = format!("threshold:t=0.8,apart={apart}");
        policy(&choice.parse().expect("a policy"))
    }

    #[test]
    fn of_equal_neighbours_the_surest_is_committed() {
        let doubled = scene(&[(1, 0.9), (2, 0.85), (2, 0.95), (3, 0.9)]);
        assert_eq!(doubled.committed(&mut *threshold(0)), [0, 1, 2, 3]);
        assert_eq!(doubled.committed(&mut *threshold(1)), [0, 2, 3]);
        // Of three the outer ones may stay, if the middle one goes.
        let tripled = scene(&[(2, 0.95), (2, 0.9), (2, 0.85)]);
        assert_eq!(tripled.committed(&mut *threshold(1)), [0, 2]);
        assert_eq!(tripled.committed(&mut *threshold(2)), [0]);
    }

    #[test]
    fn a_word_of_two_pieces_is_not_doubled_either() {
        let doubled = scene(&[(1, 0.95), (2, 0.94), (1, 0.9), (2, 0.91), (3, 0.9)]);
        assert_eq!(doubled.committed(&mut *threshold(1)), [0, 1, 2, 3, 4]);
        assert_eq!(doubled.committed(&mut *threshold(2)), [0, 1, 4]);
    }

    #[test]
    fn what_is_fixed_between_them_tells_equal_tokens_apart() {
        let mut twice = scene(&[(2, 0.9), (1, 0.9), (2, 0.95)]);
        assert_eq!(twice.committed(&mut *threshold(2)), [1, 2]);
        twice.rows.remove(1);
        assert_eq!(twice.committed(&mut *threshold(2)), [0, 2]);
    }

    #[test]
    fn the_end_fills_what_is_left_at_once() {
        let ended = scene(&[(1, 0.9), (END, 0.9), (END, 0.99), (END, 0.9)]);
        assert_eq!(ended.committed(&mut *threshold(4)), [0, 1, 2, 3]);
    }

    #[test]
    fn what_stands_there_twice_comes_a_pass_later() {
        let digits = scene(&[(5, 0.99), (5, 0.98)]);
        assert_eq!(digits.committed(&mut *threshold(1)), [0]);
        let mut rest = scene(&[(5, 0.99), (5, 0.98)]);
        rest.rows.remove(0);
        assert_eq!(rest.committed(&mut *threshold(1)), [1]);
    }

    /// Every policy that has the option, with it.
    fn all(apart: usize) -> impl Iterator<Item = Box<dyn Policy>> {
        let choices = POLICIES
            .iter()
            .filter_map(move |info| PolicyChoice::new(info.name, [("apart", apart as f64)]).ok());
        choices.map(|choice| policy(&choice))
    }

    proptest! {
        /// Whatever a model says: a pass commits no token twice within the distance, but it commits, so that blocks end.
        #[test]
        fn no_pass_doubles_and_every_block_ends(
            said in prop::collection::vec((0u32..10, 0.0..=1.0f64), 1..40),
            apart in 1usize..5,
        ) {
            for mut policy in all(apart) {
                policy.open();
                let mut masked: Vec<usize> = (0..said.len()).collect();
                let mut index = 0;
                while !masked.is_empty() {
                    let mut pass = scene(&said);
                    pass.step.index = index;
                    pass.rows.retain(|(position, _)| masked.contains(position));
                    for (position, candidate) in &mut pass.rows {
                        let watched = policy.watched(*position).len();
                        candidate.evidence.watched = vec![-1.0; watched];
                    }
                    let PolicyDecision { commit, .. } = pass.decide(&mut *policy);
                    prop_assert!(!commit.is_empty());
                    let at = |commit: &Commit| pass.rows[commit.row].0;
                    for (number, a) in commit.iter().enumerate() {
                        for b in &commit[number + 1..] {
                            let (from, to) = (at(a).min(at(b)), at(a).max(at(b)));
                            let is_open = (from..to).all(|between| masked.contains(&between));
                            let doubles = a.token == b.token && to - from <= apart && is_open;
                            prop_assert!(!doubles || a.token == END, "{a:?} and {b:?}");
                        }
                    }
                    let gone: Vec<usize> = commit.iter().map(at).collect();
                    masked.retain(|position| !gone.contains(position));
                    index += 1;
                    prop_assert!(index <= said.len());
                }
            }
        }
    }
}
