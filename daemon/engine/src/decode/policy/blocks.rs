//! Policies that block diffusion models are published with.

use super::{BlockView, Commit, Policy, PolicyDecision, PolicyNeeds};

/// SDAR's `low_confidence_dynamic`, and LLaDA2.0's sampler: all positions above the threshold if they are at least as many as
/// the reference's schedule has, else as many of the best. With a step for each position it is Fast-dLLM v2's, too.
#[derive(Debug, Clone)]
pub(super) struct Dynamic {
    pub(super) t: f64,
}

impl Policy for Dynamic {
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let above = view.rows.iter().filter(|row| row.score > self.t).count();
        view.best(above.max(view.step.quota()))
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// SDAR's `sequential`: the first masked positions, as many as the reference's schedule has.
#[derive(Debug, Clone)]
pub(super) struct Sequential;

impl Policy for Sequential {
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        view.commit(0..view.step.quota().clamp(1, view.rows.len()))
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// Nemotron-Labs-Diffusion's sampler: all positions that reach the threshold, the best one in any case, and in the last step
/// whatever is left.
#[derive(Debug, Clone)]
pub(super) struct Deadline {
    pub(super) t: f64,
}

impl Policy for Deadline {
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        match view.step.index + 1 >= view.step.steps {
            true => view.commit(0..view.rows.len()),
            false => view.best(view.reaching(self.t)),
        }
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// LLaDA2.1's sampler: all positions above `t`, or else the best one; and committed tokens are replaced by others of more than
/// `edit`, until a pass changes nothing, or `post` passes had nothing masked.
#[derive(Debug, Clone)]
pub(super) struct Edit {
    pub(super) t: f64,
    pub(super) edit: f64,
    pub(super) post: usize,
}

impl Policy for Edit {
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds {
            edits: Some(self.post),
            ..PolicyNeeds::default()
        }
    }

    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let above = view.rows.iter().filter(|row| row.score > self.t).count();
        let written = view.written.iter().enumerate();
        let differs = written.filter(|(_, written)| {
            let candidate = written.candidate;
            candidate.token != written.token && candidate.confidence > self.edit
        });
        PolicyDecision {
            replace: differs
                .map(|(row, written)| Commit::of(row, written.candidate))
                .collect(),
            ..match view.rows.is_empty() {
                true => PolicyDecision::default(),
                false => view.best(above),
            }
        }
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
    fn dynamic_keeps_what_is_above_or_as_many_as_the_schedule_has() {
        let mut scene = Scene::of(&[0.5, 0.9, 0.91, 0.2]);
        scene.step.scheduled = 4;
        scene.step.steps = 4;
        // Strictly above.
        assert_eq!(scene.committed(&mut Dynamic { t: 0.9 }), [2]);
        assert_eq!(scene.committed(&mut Dynamic { t: 0.4 }), [0, 1, 2]);
        assert_eq!(scene.committed(&mut Dynamic { t: 1.0 }), [2]);
        scene.step.steps = 2;
        assert_eq!(scene.committed(&mut Dynamic { t: 0.9 }), [1, 2]);
        assert_eq!(committed(&mut Dynamic { t: 0.5 }, &[f64::NAN]), [0]);
    }

    #[test]
    fn the_last_step_takes_all_that_is_left() {
        let mut scene = Scene::of(&[0.5, 0.9, 0.91, 0.2]);
        let mut policy = Deadline { t: 0.9 };
        assert_eq!(scene.committed(&mut policy), [1, 2]);
        assert_eq!(scene.committed(&mut Deadline { t: 1.0 }), [2]);
        scene.step.index = 3;
        assert_eq!(scene.committed(&mut policy), [0, 1, 2, 3]);
    }

    #[test]
    fn written_tokens_are_replaced_by_surer_ones() {
        let mut policy = Edit {
            t: 0.7,
            edit: 0.5,
            post: 16,
        };
        let mut scene = Scene::of(&[0.6, 0.5]);
        let written = |position: usize, token: u32, confidence: f64| {
            let found = super::super::tests::candidate(position, confidence);
            (position, token, found)
        };
        let same = super::super::tests::candidate(4, 0.9).token;
        scene.written = vec![
            written(3, 0, 0.5),
            written(4, same, 0.9),
            written(5, 0, 0.51),
        ];
        // The best one where none is above.
        assert_eq!(scene.committed(&mut policy), [0]);
        let replaced = |decision: &PolicyDecision| -> Vec<usize> {
            decision.replace.iter().map(|commit| commit.row).collect()
        };
        assert_eq!(replaced(&scene.decide(&mut policy)), [2]);
        scene.rows.clear();
        let decision = scene.decide(&mut policy);
        assert_eq!((decision.commit.len(), replaced(&decision)), (0, vec![2]));
    }

    #[test]
    fn sequential_goes_from_the_left() {
        let mut scene = Scene::of(&[0.1, 0.9, f64::NAN, 0.2]);
        scene.step.scheduled = 8;
        scene.step.steps = 3;
        assert_eq!(scene.committed(&mut Sequential), [0, 1, 2]);
        scene.step.index = 2;
        assert_eq!(scene.committed(&mut Sequential), [0, 1]);
    }
}
