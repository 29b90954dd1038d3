//! Policies that use which positions are adjacent.

use super::{BlockView, Policy, PolicyDecision};

/// dInfer's hierarchical decoding: commits all positions with at least `high`, and of each run of adjacent masks
/// without one the best if it has at least `low`, since distant tokens depend on each other less.
#[derive(Debug, Clone)]
pub(super) struct Hierarchical {
    pub(super) high: f64,
    pub(super) low: f64,
}

impl Policy for Hierarchical {
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        let rows = view.rows;
        let mut commit = Vec::new();
        let mut from = 0;
        // A commit in each run splits it, so that a block fills in about log n passes if all goes well.
        let runs = rows.chunk_by(|a, b| a.position + 1 == b.position);
        for run in runs {
            let of_run = from..from + run.len();
            from = of_run.end;
            let high = of_run.clone().filter(|&row| rows[row].score >= self.high);
            let before = commit.len();
            commit.extend(high);
            if commit.len() == before {
                let first = of_run.start;
                let best = super::ranked(run.len(), |index| run[index].score)[0];
                commit.extend(Some(first + best).filter(|&row| rows[row].score >= self.low));
            }
        }
        view.with_best(commit)
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

/// LocalLeap: commits all positions with at least `t`, and within `radius` positions of those and of committed or
/// pinned ones, all with at least `relaxed`.
#[derive(Debug, Clone)]
pub(super) struct Local {
    pub(super) t: f64,
    pub(super) relaxed: f64,
    pub(super) radius: usize,
}

impl Policy for Local {
    fn decide(&mut self, view: &BlockView<'_>) -> PolicyDecision {
        // Anchors are fixed positions, and masks that are confident by themselves.
        let mut is_anchor = vec![true; view.block.len()];
        let place = |position: usize| position - view.block.start;
        for row in view.rows {
            is_anchor[place(row.position)] = row.score >= self.t;
        }
        let is_near = |position: usize| {
            let place = place(position);
            // A view ends at the block, so anchors beyond it do not count.
            let to = is_anchor.len().min(place + self.radius + 1);
            is_anchor[place.saturating_sub(self.radius)..to].contains(&true)
        };
        let rows = view.rows.iter().enumerate().filter(|(_, row)| {
            row.score >= self.t || (row.score >= self.relaxed && is_near(row.position))
        });
        view.with_best(rows.map(|(index, _)| index).collect())
    }

    fn boxed_clone(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{Scene, candidate, committed},
        *,
    };

    fn rows(confidences: &[(usize, f64)]) -> Scene {
        let mut scene = Scene::of(&[]);
        scene.block = 10..30;
        scene.rows = (confidences.iter())
            .map(|&(position, confidence)| (position, candidate(position, confidence)))
            .collect();
        scene
    }

    #[test]
    fn hierarchical_takes_the_best_of_each_run() {
        let mut policy = Hierarchical {
            high: 0.92,
            low: 0.62,
        };
        // Two high ones in a run; a run with a low one; one with none that reaches.
        let scene = rows(&[
            (10, 0.95),
            (11, 0.8),
            (12, 0.92),
            (14, 0.7),
            (15, 0.7),
            (17, 0.61),
        ]);
        assert_eq!(scene.committed(&mut policy), [10, 12, 14]);
        assert_eq!(committed(&mut policy, &[0.1, 0.3, 0.3]), [1]);
        assert_eq!(committed(&mut policy, &[f64::NAN, 0.7, f64::NAN]), [1]);
    }

    #[test]
    fn local_relaxes_beside_anchors() {
        let mut policy = Local {
            t: 0.9,
            relaxed: 0.75,
            radius: 2,
        };
        assert_eq!(
            committed(&mut policy, &[0.8, 0.8, 0.7, 0.95, 0.75, 0.1, 0.8]),
            [1, 3, 4]
        );
        // What is no mask is an anchor too; outside the block there is none.
        let masks: Vec<(usize, f64)> = (10..30)
            .filter(|&at| at != 20)
            .map(|at| (at, 0.8))
            .collect();
        assert_eq!(rows(&masks).committed(&mut policy), [10, 18, 19, 21, 22]);
    }
}
