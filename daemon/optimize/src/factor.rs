//! A damped Cholesky factor of a layer's second moments, H + ε · mean(H_jj) · I = C Cᵀ, and what it promises.
//!
//! d_j = C_jj² is the part of input j that the inputs *before* it don't explain, so quantizing from the last input to
//! the first can hide errors in inputs that are still to come (GPTQ, arXiv 2210.17323; that order is Babai's nearest
//! plane, arXiv 2507.18553). WaterSIC (arXiv 2603.04956) takes steps in proportion to 1/C_jj.
//!
//! The factor is kept in `f32`, 604 MB for 12,288 inputs; all sums are in `f64`, so its error is that of rounding each
//! element once, and little damping is enough.

mod gains;
mod solve;

pub use gains::RateGains;

use rayon::prelude::*;
use thiserror::Error;

use crate::{
    matmul::{MatrixView, add_product},
    moments::SecondMoments,
};

/// Columns that are factored together, and rows that a thread takes at a time.
const PANEL: usize = 128;
/// Columns that are upcast and multiplied at a time, so that they stay in the cache.
const DEPTH: usize = 512;
/// How often damping is doubled before giving up.
const DOUBLINGS: u32 = 10;
/// Inputs with less than this share of the median H_jj are dead. Not of the mean, which outliers lift.
const DEAD_SHARE: f32 = 1e-3;

/// Damping for entropy-coded levels, which never clip (WaterSIC). Block formats need more: GPTQ takes 1e-2.
pub const DAMPING: f64 = 1e-4;

/// Why second moments have no factor.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum FactorError {
    /// The damping must be finite and not negative.
    #[error("damping must be finite and not negative, not {0}")]
    Damping(f64),
    /// An element is infinite or NaN.
    #[error("the second moment of inputs {row} and {column} is infinite or NaN")]
    NotFinite {
        /// One input.
        row: usize,
        /// The other input.
        column: usize,
    },
    /// No input was ever different from zero.
    #[error("the second moments of all inputs are zero")]
    Zero,
    /// Even the largest damping that was tried leaves the matrix indefinite.
    #[error("second moments with damping {damping} are not positive definite at input {column}")]
    NotPositive {
        /// The first input whose pivot isn't positive.
        column: usize,
        /// The damping that was tried last.
        damping: f64,
    },
}

/// The factor C of H + ε · mean(H_jj) · I = C Cᵀ. Dead inputs, which are nearly always zero, take part in no other
/// input's row or column.
#[derive(Clone, Debug)]
pub struct Factor {
    width: usize,
    lower: Vec<f32>,
    moments: Vec<f32>,
    dead: Vec<bool>,
    damping: f64,
    added: f64,
}

impl Factor {
    /// Factors second moments. `damping` is ε; where it isn't enough, it is doubled at most ten times (a damping of 0
    /// is tried once).
    ///
    /// # Errors
    /// When an element isn't finite, all are zero, or damping doesn't help.
    pub fn new(moments: &SecondMoments, damping: f64) -> Result<Self, FactorError> {
        if !(damping.is_finite() && damping >= 0.) {
            return Err(FactorError::Damping(damping));
        }
        let (width, values) = (moments.width(), moments.values());
        if let Some(at) = values.par_iter().position_first(|v| !v.is_finite()) {
            let (row, column) = (at / width, at % width);
            return Err(FactorError::NotFinite { row, column });
        }
        let diagonal = moments.diagonal();
        let dead = dead_inputs(&diagonal);
        let alive = diagonal.iter().zip(&dead).filter(|(_, dead)| !**dead);
        let alive = alive.map(|(moment, _)| f64::from(*moment));
        let (count, sum) = alive.fold((0, 0.), |(count, sum), moment| (count + 1, sum + moment));
        if count == 0 {
            return Err(FactorError::Zero);
        }
        let mut tried = damping;
        for doubling in 0..=DOUBLINGS {
            let added = tried * sum / f64::from(count);
            let mut lower = prepared(values, width, &dead, added);
            match cholesky(&mut lower, width) {
                Ok(()) => {
                    return Ok(Self {
                        width,
                        lower,
                        moments: diagonal,
                        dead,
                        damping: tried,
                        added,
                    });
                }
                Err(column) if doubling == DOUBLINGS || tried == 0. => {
                    let damping = tried;
                    return Err(FactorError::NotPositive { column, damping });
                }
                Err(_) => tried *= 2.,
            }
        }
        unreachable!("the last round returns")
    }

    /// Factors any positive definite matrix, of which no row is dead.
    pub(crate) fn undamped(width: usize, values: &[f32]) -> Result<Self, FactorError> {
        let dead = vec![false; width];
        let mut lower = prepared(values, width, &dead, 0.);
        let not_positive = |column| FactorError::NotPositive {
            column,
            damping: 0.,
        };
        cholesky(&mut lower, width).map_err(not_positive)?;
        Ok(Self {
            width,
            lower,
            moments: values.iter().step_by(width + 1).copied().collect(),
            dead,
            damping: 0.,
            added: 0.,
        })
    }

    /// Inputs of the layer.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// C, row-major, `width × width`, zeros above the diagonal.
    #[must_use]
    pub fn lower(&self) -> &[f32] {
        &self.lower
    }

    /// C_jj of input j.
    ///
    /// # Panics
    /// When the input is out of range.
    #[must_use]
    pub fn pivot(&self, input: usize) -> f32 {
        self.lower[input * self.width + input]
    }

    /// E\[x²\] of each input, without damping.
    #[must_use]
    pub fn mean_squares(&self) -> &[f32] {
        &self.moments
    }

    /// Whether an input is nearly always zero: its E\[x²\] is less than a thousandth of the median.
    ///
    /// # Panics
    /// When the input is out of range.
    #[must_use]
    pub fn is_dead(&self, input: usize) -> bool {
        self.dead[input]
    }

    /// The damping ε in force, after doubling.
    #[must_use]
    pub fn damping(&self) -> f64 {
        self.damping
    }

    /// What damping added to each H_jj: ε times their mean.
    #[must_use]
    pub fn added(&self) -> f64 {
        self.added
    }
}

fn dead_inputs(diagonal: &[f32]) -> Vec<bool> {
    let mut sorted = diagonal.to_vec();
    let middle = sorted.len() / 2;
    let median = if sorted.is_empty() {
        0.
    } else {
        *sorted.select_nth_unstable_by(middle, f32::total_cmp).1
    };
    let is_dead = |moment: &f32| *moment <= 0. || *moment < DEAD_SHARE * median;
    diagonal.iter().map(is_dead).collect()
}

/// The damped matrix, with dead inputs apart from all others.
fn prepared(values: &[f32], width: usize, dead: &[bool], added: f64) -> Vec<f32> {
    let mut lower = values.to_vec();
    lower
        .par_chunks_mut(width)
        .enumerate()
        .for_each(|(row, line)| {
            line[row + 1..].fill(0.);
            for (column, value) in line[..row].iter_mut().enumerate() {
                if dead[row] || dead[column] {
                    *value = 0.;
                }
            }
            line[row] = (f64::from(line[row].max(0.)) + added) as f32;
            if dead[row] && line[row] <= 0. {
                // Without damping, a pivot of zero would end the factorization for an input that nothing depends on.
                line[row] = f32::MIN_POSITIVE;
            }
        });
    lower
}

/// Replaces a matrix's lower triangle by its Cholesky factor, panel by panel (left-looking: each panel collects what
/// all columns before it contribute, so that sums stay in `f64` while the factor is in `f32`). The error is the first
/// column whose pivot isn't positive.
fn cholesky(lower: &mut [f32], width: usize) -> Result<(), usize> {
    for start in (0..width).step_by(PANEL) {
        let count = PANEL.min(width - start);
        let (before, rows) = lower.split_at_mut(start * width);
        debug_assert_eq!(before.len(), start * width);
        let (first, rest) = rows.split_at_mut(count * width);
        let top = upcast(first, count, width, 0, start);
        let mut diagonal = remainder(first, width, (start, count), &top);
        factor_panel(&mut diagonal, count).map_err(|column| start + column)?;
        let inverse = inverse_lower(&diagonal, count);
        for (row, line) in first.chunks_exact_mut(width).enumerate() {
            for column in 0..=row {
                line[start + column] = diagonal[row * count + column] as f32;
            }
        }
        rest.par_chunks_mut(PANEL * width).for_each(|rows| {
            let sums = remainder(rows, width, (start, count), &top);
            let height = rows.len() / width;
            let mut solved = vec![0.; height * count];
            let left = MatrixView::new(&sums, height, count, count);
            let right = MatrixView::new(&inverse, count, count, count).transposed();
            add_product(&mut solved, count, 1., left, right);
            for (line, solved) in rows.chunks_exact_mut(width).zip(solved.chunks_exact(count)) {
                for (value, solved) in line[start..].iter_mut().zip(solved) {
                    *value = *solved as f32;
                }
            }
        });
    }
    Ok(())
}

/// Some rows' part in the columns of a panel, less what the columns before explain. `top` are the panel's own rows
/// before it.
fn remainder(rows: &[f32], width: usize, (start, count): (usize, usize), top: &[f64]) -> Vec<f64> {
    let height = rows.len() / width;
    let mut sums = upcast(rows, height, width, start, count);
    for depth in (0..start).step_by(DEPTH) {
        let many = DEPTH.min(start - depth);
        let left = upcast(rows, height, width, depth, many);
        let left = MatrixView::new(&left, height, many, many);
        let right = MatrixView::new(&top[depth..], count, many, start).transposed();
        add_product(&mut sums, count, -1., left, right);
    }
    sums
}

/// Columns `start..start + count` of some rows.
fn upcast(rows: &[f32], height: usize, width: usize, start: usize, count: usize) -> Vec<f64> {
    let lines = rows.chunks_exact(width).take(height);
    lines
        .flat_map(|line| {
            line[start..start + count]
                .iter()
                .map(|value| f64::from(*value))
        })
        .collect()
}

/// An unblocked Cholesky factor of `size × size` elements; the error is the column whose pivot isn't positive.
fn factor_panel(values: &mut [f64], size: usize) -> Result<(), usize> {
    for column in 0..size {
        let (before, rest) = values.split_at_mut(column * size);
        debug_assert_eq!(before.len(), column * size);
        let (own, below) = rest.split_at_mut(size);
        let explained: f64 = own[..column].iter().map(|value| value * value).sum();
        let pivot = own[column] - explained;
        // A pivot below the rounding of what it was subtracted from says nothing.
        if pivot.is_nan() || pivot <= own[column].abs() * 1e-9 {
            return Err(column);
        }
        own[column] = pivot.sqrt();
        own[column + 1..].fill(0.);
        for line in below.chunks_exact_mut(size) {
            let explained: f64 = line[..column]
                .iter()
                .zip(&own[..column])
                .map(|(a, b)| a * b)
                .sum();
            line[column] = (line[column] - explained) / own[column];
        }
    }
    Ok(())
}

/// The inverse of a lower triangular matrix of `size × size` elements.
fn inverse_lower(lower: &[f64], size: usize) -> Vec<f64> {
    let mut inverse = vec![0.; size * size];
    for row in 0..size {
        let (before, own) = inverse.split_at_mut(row * size);
        let own = &mut own[..size];
        own[row] = 1.;
        for at in 0..row {
            let factor = lower[row * size + at];
            for (own, before) in own[..=at].iter_mut().zip(&before[at * size..]) {
                *own -= factor * before;
            }
        }
        let pivot = lower[row * size + row];
        own[..=row].iter_mut().for_each(|value| *value /= pivot);
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{moments::Moments, testing::correlated};

    fn moments(width: usize, rows: usize) -> SecondMoments {
        let mut moments = Moments::new(width, true);
        moments.add(&correlated(5, rows, width)).unwrap();
        moments.second_moments().unwrap()
    }

    #[test]
    fn the_factor_times_its_transpose_is_the_damped_matrix() {
        // Several panels and depths, the last ones incomplete.
        let width = 4 * PANEL + DEPTH + 17;
        let moments = moments(width, 300);
        let factor = Factor::new(&moments, 1e-4).unwrap();
        assert_eq!(factor.damping(), 1e-4);

        let lower = factor.lower();
        for row in (0..width).step_by(37) {
            for column in (0..=row).step_by(29).chain([row]) {
                let products = (0..=column).map(|at| {
                    f64::from(lower[row * width + at]) * f64::from(lower[column * width + at])
                });
                let found: f64 = products.sum();
                let added = if row == column { factor.added() } else { 0. };
                let expected = f64::from(moments.values()[row * width + column]) + added;
                let scale = f64::from(moments.diagonal()[row] * moments.diagonal()[column]).sqrt();
                assert!((found - expected).abs() < 1e-6 * scale, "{row}, {column}");
            }
            assert!(
                lower[row * width + row + 1..(row + 1) * width]
                    .iter()
                    .all(|v| *v == 0.)
            );
        }
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let moments = moments(300, 100);
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.unwrap()
                .install(|| Factor::new(&moments, 1e-3).unwrap().lower)
        };
        assert_eq!(with(1), with(3));
    }

    #[test]
    fn damping_is_doubled_until_it_is_enough() {
        // Eigenvalues 1.1 and -0.1 (times two): damping has to exceed a tenth.
        let indefinite = SecondMoments::new(2, vec![1., 1.1, 1.1, 1.]).unwrap();
        let factor = Factor::new(&indefinite, 0.03).unwrap();
        assert_eq!(factor.damping(), 0.12);

        let found = Factor::new(&indefinite, 1e-6).unwrap_err();
        assert!(
            matches!(found, FactorError::NotPositive { column: 1, .. }),
            "{found}"
        );
        assert!(Factor::new(&indefinite, 0.).is_err());
    }

    #[test]
    fn dead_inputs_stand_apart() {
        let mut values = vec![0.; 16];
        for (at, moment) in [1., 2., 1e-6, 0.].into_iter().enumerate() {
            values[at * 5] = moment;
        }
        (values[1], values[4], values[2], values[8]) = (0.5, 0.5, 1e-4, 1e-4);
        let factor = Factor::new(&SecondMoments::new(4, values).unwrap(), 0.).unwrap();

        assert_eq!(
            [0, 1, 2, 3].map(|input| factor.is_dead(input)),
            [false, false, true, true]
        );
        assert_eq!(factor.lower()[8..11], [0., 0., 1e-3]);
        assert_eq!(factor.pivot(0), 1.);
    }

    #[test]
    fn what_has_no_factor_is_said() {
        let zero = SecondMoments::new(2, vec![0.; 4]).unwrap();
        assert_eq!(Factor::new(&zero, 0.1).unwrap_err(), FactorError::Zero);
        let one = SecondMoments::new(1, vec![1.]).unwrap();
        assert!(matches!(
            Factor::new(&one, f64::NAN),
            Err(FactorError::Damping(_))
        ));
    }
}
