//! What passes touch of a mixture's experts, wherever these are. The counts outlive changes of the plan.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use super::stats::ExpertTouches;

/// Counts visits of layers that have experts.
#[derive(Debug, Default)]
pub(super) struct ExpertVisits(Mutex<VisitCounts>);

#[derive(Debug, Default)]
struct VisitCounts {
    /// The experts that the last visit of each layer touched, rising.
    last: BTreeMap<usize, Vec<usize>>,
    touches: ExpertTouches,
}

impl ExpertVisits {
    /// Takes in a visit of a layer that touches these experts, rising.
    pub(super) fn visit(&self, layer: usize, experts: impl Iterator<Item = usize>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let touched: Vec<usize> = experts.collect();
        let last = counts.last.entry(layer).or_default();
        let was_touched = |expert: &&usize| last.binary_search(expert).is_ok();
        let again = touched.iter().filter(was_touched).count();
        let visit = ExpertTouches {
            visits: 1,
            touched: touched.len() as u64,
            touched_again: again as u64,
        };
        *last = touched;
        counts.touches += visit;
    }

    /// All that was touched so far.
    pub(super) fn touches(&self) -> ExpertTouches {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.touches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_visit_is_compared_with_its_layer_s_last_one() {
        let visits = ExpertVisits::default();
        for (layer, experts) in [
            (1, vec![0, 3, 7]),
            (2, vec![0, 3, 7]),
            (1, vec![3, 4, 7]),
            (2, vec![]),
            (1, vec![0, 3]),
            (2, vec![0]),
        ] {
            visits.visit(layer, experts.into_iter());
        }
        let touches = ExpertTouches {
            visits: 6,
            touched: 12,
            touched_again: 3,
        };
        assert_eq!(visits.touches(), touches);
    }
}
