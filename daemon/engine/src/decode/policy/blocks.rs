//! Policies that block diffusion models are published with.

use super::{BlockView, Policy, PolicyDecision};

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
        view.commit(0..view.step.quota().min(view.rows.len()))
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
    fn sequential_goes_from_the_left() {
        let mut scene = Scene::of(&[0.1, 0.9, f64::NAN, 0.2]);
        scene.step.scheduled = 8;
        scene.step.steps = 3;
        assert_eq!(scene.committed(&mut Sequential), [0, 1, 2]);
        scene.step.index = 2;
        assert_eq!(scene.committed(&mut Sequential), [0, 1]);
    }
}
