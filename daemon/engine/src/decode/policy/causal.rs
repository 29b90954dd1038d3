//! Policies of models that read finished text causally, and so can be asked for its next token.

use super::{BlockView, DraftWindow, Policy, PolicyDecision, PolicyNeeds};

/// From left to right, with the tokens that a causal pass predicts: one a pass, or as many as it confirms of a draft
/// (`crate::decode::draft`).
#[derive(Debug, Clone)]
pub(super) struct Causal {
    pub(super) window: DraftWindow,
}

impl Policy for Causal {
    fn needs(&self) -> PolicyNeeds {
        PolicyNeeds {
            draft: Some(self.window),
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
