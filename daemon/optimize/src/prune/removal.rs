//! The order in which groups are removed greedily, each at the least cost given those that are gone: Optimal Brain
//! Surgeon for structures.
//!
//! Removing input p with compensation costs |W_:p|² / \[H⁻¹\]_pp, where W is compensated for earlier removals and H is
//! that of the inputs still there; a group P costs tr(W_P (\[H⁻¹\]_PP)⁻¹ W_Pᵀ). A removal takes u uᵀ out of H⁻¹ and
//! v uᵀ out of W, with u = \[H⁻¹\]_:p / √\[H⁻¹\]_pp and v = W_:p / √\[H⁻¹\]_pp. These are collected, and applied to
//! both matrices some dozens at a time.

use rayon::prelude::*;

use super::{PruneError, groups};
use crate::{
    factor::Factor,
    feedback::Importance,
    matmul::{MatrixView, add_product},
    moments::SecondMoments,
};

/// Removals that are applied together.
const TOGETHER: usize = 64;
/// Rows or columns that a thread takes at a time.
const PIECE: usize = 128;

/// Groups in the order of their removal.
#[derive(Clone, Debug, PartialEq)]
pub struct RemovalOrder {
    /// Groups, the first to go first.
    pub order: Vec<usize>,
    /// What each removal adds to tr(E H Eᵀ), with compensation.
    pub costs: Vec<f64>,
    /// Groups in all.
    pub groups: usize,
}

impl RemovalOrder {
    /// A score for each group, for [`choose`](super::choose): the largest cost up to its removal, so that what goes
    /// under a threshold is a beginning of the order; those not in the order get `rest`.
    #[must_use]
    pub fn scores(&self, rest: f64) -> Vec<f64> {
        let mut scores = vec![rest; self.groups];
        let mut largest = 0_f64;
        for (group, cost) in self.order.iter().zip(&self.costs) {
            largest = largest.max(*cost);
            scores[*group] = largest;
        }
        scores
    }
}

/// Removes `count` groups of `size` neighbouring inputs, one after the other. `weight` is row-major, of
/// `moments.width()` inputs; `damping` is the ε of [`Factor::new`]. Takes about `width³ + count · size · outputs ·
/// width` operations.
///
/// # Errors
/// When sizes don't fit, a weight isn't finite, nothing would be left, or the moments have no factor.
pub fn removal_order(
    weight: &[f32],
    moments: &SecondMoments,
    size: usize,
    count: usize,
    damping: f64,
) -> Result<RemovalOrder, PruneError> {
    let width = moments.width();
    let groups = groups(width, size)?;
    Importance::Uniform.check(width, weight)?;
    if count >= groups {
        return Err(PruneError::NothingLeft { layer: 0 });
    }
    let mut remaining = Remaining::new(weight, &Factor::new(moments, damping)?);
    let mut alive: Vec<usize> = (0..groups).collect();
    let mut removed = RemovalOrder {
        order: Vec::new(),
        costs: Vec::new(),
        groups,
    };
    for _ in 0..count {
        let costs = if size == 1 {
            alive.iter().map(|input| remaining.cost(*input)).collect()
        } else {
            remaining.group_costs(&alive, size)?
        };
        let least = costs
            .iter()
            .enumerate()
            .min_by(|one, other| one.1.total_cmp(other.1));
        let (at, _) = least.expect("fewer groups are removed than there are");
        let group = alive.remove(at);
        let inputs = group * size..(group + 1) * size;
        removed.order.push(group);
        removed
            .costs
            .push(inputs.map(|input| remaining.remove(input)).sum());
        if size > 1 {
            remaining.apply();
        }
    }
    Ok(removed)
}

/// W and H⁻¹ of the inputs that are still there, less removals that aren't applied yet.
struct Remaining {
    width: usize,
    outputs: usize,
    weight: Vec<f32>,
    inverse: Vec<f32>,
    /// |W_:j|² and \[H⁻¹\]_jj, of now.
    squares: Vec<f64>,
    diagonal: Vec<f64>,
    /// u and v of removals to be applied.
    inputs: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl Remaining {
    fn new(weight: &[f32], factor: &Factor) -> Self {
        let width = factor.width();
        let inverse = factor.inverse();
        let mut squares = vec![0.; width];
        for row in weight.chunks_exact(width) {
            for (square, value) in squares.iter_mut().zip(row) {
                *square += f64::from(*value).powi(2);
            }
        }
        let diagonal = inverse.iter().step_by(width + 1);
        Self {
            width,
            outputs: weight.len() / width,
            weight: weight.to_vec(),
            diagonal: diagonal.map(|value| f64::from(*value)).collect(),
            inverse,
            squares,
            inputs: Vec::new(),
            values: Vec::new(),
        }
    }

    /// What removing an input costs now.
    fn cost(&self, input: usize) -> f64 {
        self.squares[input].max(0.) / self.pivot(input)
    }

    /// \[H⁻¹\]_pp, which rounding may not make zero.
    fn pivot(&self, input: usize) -> f64 {
        self.diagonal[input].max(f64::from(f32::MIN_POSITIVE))
    }

    /// What removing each of some groups costs; all removals are applied.
    fn group_costs(&self, groups: &[usize], size: usize) -> Result<Vec<f64>, PruneError> {
        let costs = groups.par_iter().map(|group| {
            let inputs: Vec<usize> = (group * size..(group + 1) * size).collect();
            let rows = self.weight.chunks_exact(self.width);
            let own: Vec<f32> = rows
                .flat_map(|row| &row[inputs[0]..][..size])
                .copied()
                .collect();
            let mut divided = own.clone();
            let inverse: Vec<f32> = inputs
                .iter()
                .flat_map(|row| &self.inverse[row * self.width + inputs[0]..][..size])
                .copied()
                .collect();
            Factor::undamped(size, &inverse)?.solve_rows(&mut divided);
            let products = own.iter().zip(divided);
            Ok(products
                .map(|(own, divided)| f64::from(own * divided))
                .sum())
        });
        costs.collect()
    }

    /// Removes an input, and returns its cost.
    fn remove(&mut self, input: usize) -> f64 {
        let (width, root) = (self.width, self.pivot(input).sqrt() as f32);
        let mut u = self.inverse[input * width..][..width].to_vec();
        let column = self.weight[input..].iter().step_by(width);
        let mut v: Vec<f32> = column.copied().collect();
        for (inputs, values) in self.inputs.iter().zip(&self.values) {
            let own = inputs[input];
            u.iter_mut()
                .zip(inputs)
                .for_each(|(u, other)| *u -= own * other);
            v.iter_mut()
                .zip(values)
                .for_each(|(v, other)| *v -= own * other);
        }
        u.iter_mut().for_each(|u| *u /= root);
        v.iter_mut().for_each(|v| *v /= root);

        let cost: f64 = v.iter().map(|v| f64::from(*v).powi(2)).sum();
        let products = self.products(&v);
        for (at, (u, product)) in u.iter().zip(products).enumerate() {
            let u = f64::from(*u);
            self.diagonal[at] -= u * u;
            self.squares[at] += u * u * cost - 2. * u * f64::from(product);
        }
        self.inputs.push(u);
        self.values.push(v);
        if self.inputs.len() == TOGETHER {
            self.apply();
        }
        cost
    }

    /// vᵀ W, of now.
    fn products(&self, v: &[f32]) -> Vec<f32> {
        let dot =
            |other: &Vec<f32>| -> f32 { v.iter().zip(other).map(|(v, other)| v * other).sum() };
        let shares: Vec<f32> = self.values.iter().map(dot).collect();
        let mut products = vec![0.; self.width];
        let pieces = products.par_chunks_mut(PIECE).enumerate();
        pieces.for_each(|(piece, products)| {
            let start = piece * PIECE;
            let mut add = |share: f32, row: &[f32]| {
                for (product, value) in products.iter_mut().zip(&row[start..]) {
                    *product += share * value;
                }
            };
            let rows = self.weight.chunks_exact(self.width);
            v.iter().zip(rows).for_each(|(v, row)| add(*v, row));
            let removals = shares.iter().zip(&self.inputs);
            removals.for_each(|(share, inputs)| add(-share, inputs));
        });
        products
    }

    /// Takes collected removals out of both matrices.
    fn apply(&mut self) {
        let (width, count) = (self.width, self.inputs.len());
        // The last removal of a group may have filled a batch, which applied it.
        if count == 0 {
            return;
        }
        let inputs = std::mem::take(&mut self.inputs).concat();
        let values = std::mem::take(&mut self.values).concat();
        let subtract = |matrix: &mut [f32], left: &[f32], height: usize| {
            let pieces = matrix.par_chunks_mut(PIECE * width).enumerate();
            pieces.for_each(|(piece, rows)| {
                let (start, rows_count) = (piece * PIECE, rows.len() / width);
                let left = MatrixView::new(&left[start..], count, rows_count, height).transposed();
                let right = MatrixView::new(&inputs, count, width, width);
                add_product(rows, width, -1., left, right);
            });
        };
        subtract(&mut self.inverse, &inputs, width);
        subtract(&mut self.weight, &values, self.outputs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        moments::Moments,
        prune::compensate,
        testing::{correlated, gaussians},
    };

    fn moments(width: usize) -> SecondMoments {
        let mut moments = Moments::new(width, true);
        moments.add(&correlated(6, 4 * width, width)).unwrap();
        moments.second_moments().unwrap()
    }

    /// The error after compensation by least squares from scratch, of the damped matrix.
    fn error_without(
        weight: &[f32],
        moments: &SecondMoments,
        size: usize,
        removed: &[usize],
    ) -> f64 {
        let width = moments.width();
        let kept: Vec<usize> = (0..width)
            .filter(|at| !removed.contains(&(at / size)))
            .collect();
        compensate(weight, moments, &kept, 0.).unwrap().error
    }

    #[test]
    fn costs_are_those_of_least_squares_and_each_removal_is_the_cheapest() {
        for (width, size, count) in [(20, 1, 6), (24, 4, 3)] {
            // Damped beforehand, so that both ways have the same matrix.
            let mut values = moments(width).values().to_vec();
            values
                .iter_mut()
                .step_by(width + 1)
                .for_each(|value| *value += 0.01);
            let moments = SecondMoments::new(width, values).unwrap();
            let weight = gaussians(3, 7 * width);
            let found = removal_order(&weight, &moments, size, count, 0.).unwrap();

            let mut before = 0.;
            for at in 0..count {
                let with = |group: usize| {
                    let removed = [&found.order[..at], &[group]].concat();
                    error_without(&weight, &moments, size, &removed)
                };
                let own = with(found.order[at]);
                assert!(
                    ((own - before) / found.costs[at] - 1.).abs() < 2e-2,
                    "{own} {before}"
                );
                let others = (0..width / size).filter(|group| !found.order[..=at].contains(group));
                for other in others {
                    assert!(with(other) > own * 0.999, "{other} at {at}");
                }
                before = own;
            }
            let scores = found.scores(f64::MAX);
            assert!(scores[found.order[0]] <= scores[found.order[1]]);
            assert_eq!(
                scores.iter().filter(|score| **score == f64::MAX).count(),
                width / size - count
            );
        }
    }

    #[test]
    fn collected_removals_are_applied() {
        let (width, count) = (3 * TOGETHER, 2 * TOGETHER + 5);
        let mut values = moments(width).values().to_vec();
        values
            .iter_mut()
            .step_by(width + 1)
            .for_each(|value| *value += 0.05);
        let moments = SecondMoments::new(width, values).unwrap();
        let weight = gaussians(3, 9 * width);
        let found = removal_order(&weight, &moments, 1, count, 0.).unwrap();

        let expected = error_without(&weight, &moments, 1, &found.order);
        let total: f64 = found.costs.iter().sum();
        assert!(
            (total / expected - 1.).abs() < 1e-2,
            "{total} for {expected}"
        );
    }

    /// Heads of 64, as many models have them.
    #[test]
    fn groups_that_fill_a_batch_are_removed() {
        let width = 4 * TOGETHER;
        let weight = gaussians(3, 5 * width);
        let found = removal_order(&weight, &moments(width), TOGETHER, 2, 0.01).unwrap();
        assert_eq!(found.order.len(), 2);
    }

    #[test]
    fn of_two_inputs_that_are_the_same_only_one_is_cheap() {
        let mut inputs = gaussians(5, 200 * 4);
        inputs.chunks_exact_mut(4).for_each(|x| x[3] = x[0]);
        let mut moments = Moments::new(4, true);
        moments.add(&inputs).unwrap();
        let weight = [3., 1., 1., 3.];
        let found = removal_order(&weight, &moments.second_moments().unwrap(), 1, 2, 1e-4).unwrap();

        assert!(
            [0, 3].contains(&found.order[0]) && [1, 2].contains(&found.order[1]),
            "{found:?}"
        );
        assert!(found.costs[0] < 1e-2 && found.costs[1] > 0.5);
    }

    #[test]
    fn what_cannot_be_removed_is_said() {
        let moments = moments(4);
        let removed =
            |size, count| removal_order(&[1.; 8], &moments, size, count, 0.1).unwrap_err();
        assert_eq!(removed(3, 1), PruneError::Groups { width: 4, size: 3 });
        assert_eq!(removed(2, 2), PruneError::NothingLeft { layer: 0 });
    }
}
