//! Which experts passes have touched, and which one to give up for another.
//!
//! Each layer is visited once a pass, in order, and passes of one block touch nearly the same experts. So an expert that its layer's
//! last visit touched is worth keeping, and of those the one whose layer comes next is worth most: what was just used is needed again
//! only after a whole round. (What was used longest ago, as an LRU has it, is needed next: with half of the slots that a round needs it
//! would never hit.) An expert that later visits did not touch goes first, the longer ago the sooner.

use std::ops::Range;

/// Passes are alike, so that the last one's experts are worth reading ahead, where at least this share of them was touched again.
const STEADY_SHARE: f64 = 0.75;

/// The visits of each layer, and of each expert the last one that touched it. Experts are numbered by their place in a pass.
#[derive(Debug)]
pub(super) struct ExpertUsage {
    layers: Vec<LayerUsage>,
    /// The layer of each place.
    layer_of: Vec<usize>,
    /// The visit of its layer that touched each expert last; 0: none.
    last: Vec<u64>,
    /// The layer that was visited last.
    at: usize,
}

#[derive(Debug)]
struct LayerUsage {
    places: Range<usize>,
    visits: u64,
    /// Experts that the last visit touched.
    touched: usize,
    /// The share of a visit's experts that the next one touched, too: of some visits, the last one counting half.
    kept: f64,
}

/// How little a place is worth: the greatest goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Worthless {
    /// Visits of its layer since it was touched.
    age: u64,
    /// Layers to visit until its own comes.
    distance: usize,
    /// The first of a layer's experts are needed first.
    place: usize,
}

impl ExpertUsage {
    /// Of layers with so many experts each.
    pub(super) fn new(experts: impl IntoIterator<Item = usize>) -> Self {
        let mut layers = Vec::new();
        let mut layer_of = Vec::new();
        for count in experts {
            let start = layer_of.len();
            layer_of.resize(start + count, layers.len());
            layers.push(LayerUsage {
                places: start..start + count,
                visits: 0,
                touched: 0,
                kept: 0.0,
            });
        }
        Self {
            last: vec![0; layer_of.len()],
            at: 0,
            layers,
            layer_of,
        }
    }

    /// The place of a layer's first expert.
    pub(super) fn first(&self, layer: usize) -> usize {
        self.layers[layer].places.start
    }

    /// Takes in a visit of a layer that touches these experts.
    pub(super) fn visit(&mut self, layer: usize, touched: &[usize]) {
        self.at = layer;
        let usage = &mut self.layers[layer];
        // Nothing is known of a visit before the cache was there.
        if usage.touched > 0 {
            let was_touched = |place: &&usize| self.last[**place] == usage.visits;
            let again = touched.iter().filter(was_touched).count();
            usage.kept = f64::midpoint(usage.kept, again as f64 / usage.touched as f64);
        }
        usage.touched = touched.len();
        usage.visits += 1;
        for &place in touched {
            self.last[place] = usage.visits;
        }
    }

    pub(super) fn worthless(&self, place: usize) -> Worthless {
        let layer = self.layer_of[place];
        let count = self.layers.len();
        Worthless {
            age: match self.last[place] {
                0 => u64::MAX,
                last => self.layers[layer].visits - last,
            },
            // The present layer's own come last: after all others.
            distance: (layer + count - self.at - 1) % count,
            place,
        }
    }

    /// The expert to give up first, of these.
    pub(super) fn victim(&self, places: impl Iterator<Item = usize>) -> Option<usize> {
        places.max_by_key(|&place| self.worthless(place))
    }

    /// Experts that the next layers are expected to touch, in the order of their use: those of the layers' last visits, as far as
    /// visits are alike.
    pub(super) fn expected(&self, layers_ahead: usize) -> impl Iterator<Item = usize> {
        let count = self.layers.len();
        let ahead = (1..=layers_ahead.min(count - 1)).map(move |ahead| (self.at + ahead) % count);
        let steady = ahead.filter(|&layer| self.layers[layer].kept >= STEADY_SHARE);
        steady.flat_map(|layer| {
            let usage = &self.layers[layer];
            let is_last = |place: &usize| usage.visits > 0 && self.last[*place] == usage.visits;
            usage.places.clone().filter(is_last)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_round_needs_last_goes_first_and_before_it_what_no_visit_touched() {
        let mut usage = ExpertUsage::new([4, 4, 4]);
        for layer in 0..3 {
            let first = usage.first(layer);
            usage.visit(layer, &[first, first + 1]);
        }
        usage.visit(0, &[0, 2]);
        // Of the present layer 1 wasn't touched this time, 3 never; then its own, which come after a round, the last first.
        let mut left: Vec<usize> = (0..12).collect();
        let mut order = Vec::new();
        while let Some(victim) = usage.victim(left.iter().copied()) {
            left.retain(|&place| place != victim);
            order.push(victim);
        }
        assert_eq!(order, [3, 11, 10, 7, 6, 1, 2, 0, 9, 8, 5, 4]);
    }

    #[test]
    fn only_what_stays_alike_is_expected() {
        let mut usage = ExpertUsage::new([4, 4]);
        let none = [0; 0];
        let mut visit = |layer: usize, experts: [usize; 2]| {
            let first = usage.first(layer);
            usage.visit(layer, &experts.map(|expert| first + expert));
            usage.expected(1).collect::<Vec<_>>()
        };
        assert_eq!(visit(0, [0, 1]), none);
        assert_eq!(visit(1, [0, 1]), none);
        for _ in 0..2 {
            visit(0, [0, 1]);
            visit(1, [0, 1]);
        }
        assert_eq!(visit(0, [0, 1]), [4, 5]);
        // The other layer's visits differ, so that it is not read ahead.
        visit(1, [2, 3]);
        assert_eq!(visit(0, [0, 1]), none);
    }
}
