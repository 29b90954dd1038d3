//! Scores of groups of inputs: the lower, the sooner a group is removed. All take the matrix whose columns fall away
//! (the down or the output projection), row-major, and the number of neighbouring inputs that make a group.

use rayon::prelude::*;

use super::{PruneError, groups};
use crate::feedback::{Importance, MatrixError};

/// The L2 norm of a group's weights, without data: the weakest choice. `rows` are matrices whose rows fall away with
/// the columns (gate and up of a SwiGLU channel), row-major, of as many rows as `weight` has columns.
///
/// # Errors
/// When sizes don't fit or a weight isn't finite.
pub fn magnitude(
    width: usize,
    size: usize,
    weight: &[f32],
    rows: &[&[f32]],
) -> Result<Vec<f64>, PruneError> {
    let count = groups(width, size)?;
    let mut squares = per_input(width, weight, None, |_, value| value * value)?;
    for matrix in rows {
        let elements = matrix.len();
        if !elements.is_multiple_of(width) || elements == 0 {
            return Err(MatrixError::NotWholeRows { elements, width }.into());
        }
        let depth = elements / width;
        Importance::Uniform.check(depth, matrix)?;
        for (square, row) in squares.iter_mut().zip(matrix.chunks_exact(depth)) {
            *square += row
                .iter()
                .map(|value| f64::from(*value).powi(2))
                .sum::<f64>();
        }
    }
    Ok(by_group(&squares, count)
        .into_iter()
        .map(f64::sqrt)
        .collect())
}

/// Wanda (arXiv 2306.11695): Σ |W_ij| √E\[x_j²\], over a group's weights.
///
/// # Errors
/// When sizes don't fit, or a weight or a mean square isn't finite.
pub fn wanda(
    width: usize,
    size: usize,
    weight: &[f32],
    mean_squares: &[f32],
) -> Result<Vec<f64>, PruneError> {
    let count = groups(width, size)?;
    let sums = per_input(width, weight, Some(mean_squares), |moment, value| {
        value.abs() * moment.sqrt()
    })?;
    Ok(by_group(&sums, count))
}

/// FLAP's fluctuation (arXiv 2312.11983): Σ Var(x_j) |W_:j|², what a group adds to the outputs beyond a constant.
///
/// # Errors
/// When sizes don't fit, or a weight or a variance isn't finite.
pub fn fluctuation(
    width: usize,
    size: usize,
    weight: &[f32],
    variances: &[f32],
) -> Result<Vec<f64>, PruneError> {
    let count = groups(width, size)?;
    let sums = per_input(width, weight, Some(variances), |variance, value| {
        variance * value * value
    })?;
    Ok(by_group(&sums, count))
}

/// Standardizes a layer's scores (mean 0, variance 1), as FLAP does before layers are compared under one threshold.
#[must_use]
pub fn standardized(scores: &[f64]) -> Vec<f64> {
    let count = scores.len().max(1) as f64;
    let mean = scores.iter().sum::<f64>() / count;
    let variance = scores
        .iter()
        .map(|score| (score - mean).powi(2))
        .sum::<f64>()
        / count;
    let deviation = if variance > 0. { variance.sqrt() } else { 1. };
    scores
        .iter()
        .map(|score| (score - mean) / deviation)
        .collect()
}

/// The sum over each column of what `score` makes of the input's statistic and a weight.
fn per_input(
    width: usize,
    weight: &[f32],
    statistics: Option<&[f32]>,
    score: impl Fn(f64, f64) -> f64 + Sync,
) -> Result<Vec<f64>, PruneError> {
    let importance = statistics.map_or(Importance::Uniform, Importance::Diagonal);
    importance.check(width, weight)?;
    // Threads share columns, not rows: sums are then the same for any number of them.
    let score = |column: usize| {
        let statistic = statistics.map_or(1., |statistics| f64::from(statistics[column]));
        let values = weight[column..].iter().step_by(width);
        values
            .map(|value| score(statistic, f64::from(*value)))
            .sum()
    };
    Ok((0..width).into_par_iter().map(score).collect())
}

fn by_group(sums: &[f64], count: usize) -> Vec<f64> {
    let groups = sums.chunks_exact(sums.len() / count);
    groups.map(|group| group.iter().sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_the_definitions() {
        // Two outputs, four inputs in two groups.
        let weight = [1., -2., 0., 3., 2., 1., 1., 0.];
        let rows = [0., 2., 1., 1.];
        let near = |found: Vec<f64>, expected: [f64; 2]| {
            let pairs = found.iter().zip(expected);
            pairs.for_each(|(found, expected)| assert!((found - expected).abs() < 1e-9));
        };
        near(
            magnitude(4, 2, &weight, &[]).unwrap(),
            [10_f64.sqrt(), 10_f64.sqrt()],
        );
        near(
            magnitude(4, 2, &weight, &[&rows]).unwrap(),
            [14_f64.sqrt(), 12_f64.sqrt()],
        );
        let statistics = [4., 1., 9., 0.];
        near(
            wanda(4, 2, &weight, &statistics).unwrap(),
            [3. * 2. + 3., 3.],
        );
        near(
            fluctuation(4, 2, &weight, &statistics).unwrap(),
            [5. * 4. + 5., 9.],
        );
        near(standardized(&[1., 3.]), [-1., 1.]);
        near(standardized(&[2., 2.]), [0., 0.]);
    }

    #[test]
    fn what_has_no_score_is_said() {
        let found = wanda(3, 2, &[0.; 3], &[0.; 3]).unwrap_err();
        assert_eq!(found, PruneError::Groups { width: 3, size: 2 });
        assert!(wanda(2, 1, &[0.; 4], &[0.; 3]).is_err());
        assert!(magnitude(2, 1, &[f32::NAN, 0.], &[]).is_err());
        assert!(magnitude(2, 1, &[0.; 2], &[&[1., 2., 3.]]).is_err());
    }
}
