//! The policy of models that denoise canvases of random tokens.

use super::{BlockView, Policy, PolicyDecision, PolicyNeeds, Renoising};

/// The surest rows of a pass are accepted, and all others get random tokens (`crate::decode::renoise`).
#[derive(Debug, Clone)]
pub(super) struct Renoise {
    pub(super) rule: Renoising,
}

impl Policy for Renoise {
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds {
            renoising: Some(self.rule),
            ..PolicyNeeds::default()
        }
    }

    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        view.commit(0..1)
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}
