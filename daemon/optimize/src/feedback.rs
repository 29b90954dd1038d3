//! Quantizing the columns of a matrix one by one, with the errors of those before fed back into those to come: GPTQ
//! (arXiv 2210.17323), or Babai's nearest plane (arXiv 2507.18553), for any way to quantize a column.
//!
//! With H = C Cᵀ, C lower triangular, tr(E H Eᵀ) = |E C|². Column k of E C is E_k C_kk plus what the columns after k
//! contribute, Σ_{j>k} E_j C_jk; so columns are quantized from the last to the first, and the target of each is what
//! would bring that sum to zero: W_k + Σ_{j>k} E_j C_jk / C_kk.

use rayon::prelude::*;
use thiserror::Error;

use crate::{
    factor::Factor,
    matmul::{MatrixView, add_product},
};

/// Columns whose targets are computed together: what later blocks contribute comes from one product.
const BLOCK: usize = 128;
/// Inputs with less than this share of the mean E\[x²\] count as if they had it, so that no step is unbounded.
const LEAST_SHARE: f32 = 1e-4;

/// What is known of a layer's inputs: the matrix H that weighs the errors of its weights.
#[derive(Clone, Copy, Debug)]
pub enum Importance<'a> {
    /// Nothing: H is the identity.
    Uniform,
    /// E\[x²\] of each input: H is diagonal.
    Diagonal(&'a [f32]),
    /// All second moments.
    Full(&'a Factor),
}

/// Why a matrix can't be quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MatrixError {
    /// The elements are not whole rows.
    #[error("{elements} elements are not whole rows of {width}")]
    NotWholeRows {
        /// Elements that were given.
        elements: usize,
        /// Elements of a row.
        width: usize,
    },
    /// Statistics of a layer with another number of inputs.
    #[error("statistics of {found} inputs don't fit a matrix of {width}")]
    Inputs {
        /// Inputs of the matrix.
        width: usize,
        /// Inputs that statistics were given of.
        found: usize,
    },
    /// A weight is infinite or NaN.
    #[error("weight {column} of row {row} is infinite or NaN")]
    NotFinite {
        /// Output.
        row: usize,
        /// Input.
        column: usize,
    },
    /// An input's E\[x²\] is infinite, NaN or negative.
    #[error("the mean square of input {0} is not a number that it can be")]
    Importance(usize),
}

impl Importance<'_> {
    /// Whether a matrix of rows of `width` weights can be quantized with these statistics.
    pub(crate) fn check(&self, width: usize, values: &[f32]) -> Result<(), MatrixError> {
        let elements = values.len();
        if width == 0 || !elements.is_multiple_of(width) {
            return Err(MatrixError::NotWholeRows { elements, width });
        }
        let found = match self {
            Self::Uniform => width,
            Self::Diagonal(moments) => moments.len(),
            Self::Full(factor) => factor.width(),
        };
        if found != width {
            return Err(MatrixError::Inputs { width, found });
        }
        if let Self::Diagonal(moments) = self {
            let wrong = |moment: &f32| !(moment.is_finite() && *moment >= 0.);
            if let Some(input) = moments.iter().position(wrong) {
                return Err(MatrixError::Importance(input));
            }
        }
        if let Some(at) = values.par_iter().position_first(|value| !value.is_finite()) {
            let (row, column) = (at / width, at % width);
            return Err(MatrixError::NotFinite { row, column });
        }
        Ok(())
    }

    /// E\[x²\] of each input; `None` for [`Importance::Uniform`].
    pub(crate) fn mean_squares(&self) -> Option<&[f32]> {
        match self {
            Self::Uniform => None,
            Self::Diagonal(moments) => Some(moments),
            Self::Full(factor) => Some(factor.mean_squares()),
        }
    }

    /// √H_jj of each input.
    pub(crate) fn sizes(&self, width: usize) -> Vec<f32> {
        match self {
            Self::Uniform => vec![1.; width],
            Self::Diagonal(moments) => sizes(moments, LEAST_SHARE),
            Self::Full(factor) => {
                let added = factor.added() as f32;
                let moments = factor.mean_squares().iter();
                moments
                    .map(|moment| (moment.max(0.) + added).sqrt())
                    .collect()
            }
        }
    }

    /// Quantizes `rows` rows by `quantize`, which gets a column, the values it should have, and room for those that it
    /// has afterwards. Returns each row's error e H eᵀ.
    ///
    /// `weights` are the columns, one after another. Without `feedback`, values are the weights themselves.
    pub(crate) fn quantize(
        &self,
        weights: &[f32],
        rows: usize,
        feedback: bool,
        mut quantize: impl FnMut(usize, &[f32], &mut [f32]),
    ) -> Vec<f64> {
        let width = weights.len() / rows.max(1);
        let sizes = self.sizes(width);
        let mut errors = vec![0.; weights.len()];
        let mut costs = vec![0.; rows];
        let (mut target, mut decoded) = (vec![0.; rows], vec![0.; rows]);
        let added = match self {
            Self::Full(factor) => factor.added(),
            Self::Uniform | Self::Diagonal(_) => 0.,
        };
        for start in (0..width).step_by(BLOCK).rev() {
            let count = BLOCK.min(width - start);
            let mut sums = vec![0.; count * rows];
            self.add_later(&errors, rows, (start, count), &mut sums);
            for column in (start..start + count).rev() {
                let sums = &mut sums[(column - start) * rows..][..rows];
                let pivot = match self {
                    Self::Full(factor) => {
                        add_within(factor, &errors, rows, (column, start + count), sums);
                        factor.pivot(column)
                    }
                    Self::Uniform | Self::Diagonal(_) => sizes[column],
                };
                let own = &weights[column * rows..][..rows];
                target.copy_from_slice(own);
                if feedback {
                    for (target, sum) in target.iter_mut().zip(&*sums) {
                        *target += sum / pivot;
                    }
                }
                quantize(column, &target, &mut decoded);
                let errors = &mut errors[column * rows..][..rows];
                for ((error, own), decoded) in errors.iter_mut().zip(own).zip(&decoded) {
                    *error = own - decoded;
                }
                for ((cost, sum), error) in costs.iter_mut().zip(sums).zip(errors) {
                    let all = f64::from(*sum + pivot * *error);
                    // The factor is that of the damped matrix; the error is that of the matrix as it was.
                    *cost += all * all - added * f64::from(*error) * f64::from(*error);
                }
            }
        }
        // Where damping is most of the matrix, rounding may leave a difference just below zero.
        costs.iter_mut().for_each(|cost| *cost = cost.max(0.));
        costs
    }

    /// Each row's own w H wᵀ: the error of replacing it by zeros.
    pub(crate) fn row_powers(&self, weights: &[f32], rows: usize) -> Vec<f64> {
        self.quantize(weights, rows, false, |_, _, decoded| decoded.fill(0.))
    }

    /// Adds what the columns after a block contribute to its sums.
    fn add_later(
        &self,
        errors: &[f32],
        rows: usize,
        (start, count): (usize, usize),
        sums: &mut [f32],
    ) {
        let Self::Full(factor) = self else {
            return;
        };
        let (width, end) = (factor.width(), start + count);
        if end < width {
            let lower = &factor.lower()[end * width + start..];
            let left = MatrixView::new(lower, width - end, count, width).transposed();
            let right = MatrixView::new(&errors[end * rows..], width - end, rows, rows);
            add_product(sums, rows, 1., left, right);
        }
    }
}

/// Adds what the columns after `column` and before `end` contribute to it.
fn add_within(
    factor: &Factor,
    errors: &[f32],
    rows: usize,
    (column, end): (usize, usize),
    sums: &mut [f32],
) {
    for later in column + 1..end {
        let share = factor.lower()[later * factor.width() + column];
        let errors = &errors[later * rows..][..rows];
        for (sum, error) in sums.iter_mut().zip(errors) {
            *sum += share * error;
        }
    }
}

/// Square roots, none smaller than that of a share of the mean; ones where nothing is known.
fn sizes(moments: &[f32], least_share: f32) -> Vec<f32> {
    let mean = moments.iter().sum::<f32>() / moments.len().max(1) as f32;
    if mean <= 0. {
        return vec![1.; moments.len()];
    }
    let size = |moment: &f32| moment.max(least_share * mean).sqrt();
    moments.iter().map(size).collect()
}

/// Some rows of a row-major matrix as columns, one after another.
pub(crate) fn columns_of(values: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    let mut columns = vec![0.; rows.len() * width];
    for (at, row) in rows.iter().enumerate() {
        let row = &values[row * width..][..width];
        let places = columns.iter_mut().skip(at).step_by(rows.len());
        places.zip(row).for_each(|(place, value)| *place = *value);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        moments::{Moments, SecondMoments},
        testing::{correlated, gaussians},
    };

    fn moments(width: usize) -> SecondMoments {
        let mut moments = Moments::new(width, true);
        moments.add(&correlated(3, 4 * width, width)).unwrap();
        moments.second_moments().unwrap()
    }

    /// tr(E H Eᵀ) by the definition.
    fn error(moments: &SecondMoments, errors: &[f32]) -> f64 {
        let width = moments.width();
        let rows = errors.chunks_exact(width);
        rows.map(|row| {
            (0..width)
                .map(|i| {
                    let line = &moments.values()[i * width..][..width];
                    let sum: f64 = line.iter().zip(row).map(|(m, e)| f64::from(m * e)).sum();
                    f64::from(row[i]) * sum
                })
                .sum::<f64>()
        })
        .sum()
    }

    fn rounded(
        importance: Importance<'_>,
        weights: &[f32],
        width: usize,
        feedback: bool,
    ) -> (Vec<f32>, f64) {
        let rows: Vec<usize> = (0..weights.len() / width).collect();
        let columns = columns_of(weights, width, &rows);
        let mut errors = vec![0.; weights.len()];
        let costs =
            importance.quantize(&columns, rows.len(), feedback, |column, target, decoded| {
                for (row, (value, decoded)) in target.iter().zip(decoded).enumerate() {
                    *decoded = (value * 2.).round() / 2.;
                    errors[row * width + column] = weights[row * width + column] - *decoded;
                }
            });
        (errors, costs.iter().sum())
    }

    #[test]
    fn errors_are_those_of_the_definition_and_feedback_lessens_them() {
        for width in [5, 40, BLOCK + 9, 2 * BLOCK] {
            let moments = moments(width);
            let factor = Factor::new(&moments, 1e-3).unwrap();
            let weights = gaussians(7, 33 * width);
            let (errors, plain) = rounded(Importance::Full(&factor), &weights, width, false);
            let expected = error(&moments, &errors);
            assert!(
                (plain / expected - 1.).abs() < 1e-3,
                "{plain} for {expected}"
            );

            let (errors, fed_back) = rounded(Importance::Full(&factor), &weights, width, true);
            let expected = error(&moments, &errors);
            assert!(
                (fed_back / expected - 1.).abs() < 1e-3,
                "{fed_back} for {expected}"
            );
            assert!(fed_back < 0.8 * plain, "{width}: {fed_back} after {plain}");
        }
    }

    #[test]
    fn without_correlation_feedback_changes_nothing() {
        let width = 20;
        let weights = gaussians(1, 4 * width);
        let diagonal: Vec<f32> = (0..width).map(|at| 1. + at as f32).collect();
        for importance in [Importance::Uniform, Importance::Diagonal(&diagonal)] {
            let plain = rounded(importance, &weights, width, false);
            assert_eq!(plain, rounded(importance, &weights, width, true));
        }
        let (errors, found) = rounded(Importance::Diagonal(&diagonal), &weights, width, true);
        let squares = errors.iter().enumerate();
        let expected: f32 = squares.map(|(at, e)| e * e * diagonal[at % width]).sum();
        assert!((found as f32 / expected - 1.).abs() < 1e-5);
    }

    #[test]
    fn the_error_of_zeros_is_a_rows_power() {
        let width = 30;
        let moments = moments(width);
        let factor = Factor::new(&moments, 1e-2).unwrap();
        let weights = gaussians(2, 3 * width);
        let powers =
            Importance::Full(&factor).row_powers(&columns_of(&weights, width, &[0, 1, 2]), 3);
        for (row, power) in powers.iter().enumerate() {
            let expected = error(&moments, &weights[row * width..][..width]);
            assert!((power / expected - 1.).abs() < 1e-4);
        }
    }
}
