//! Finds the scale of the steps for which a matrix has the bits that were asked for.

use rayon::prelude::*;

use sluice_codec::EncodeError;

use super::{CHUNK_ROWS, ColumnsError, QuantizeTarget, coder::ColumnCoder};
use crate::feedback::{Importance, columns_of};

/// One chunk of rows is tried for so many chunks of the matrix.
const SAMPLE_SHARE: usize = 10;
/// How far from the target a search may end, in bits per weight.
const TOLERANCE: f64 = 0.004;
/// Most trials of the sample.
const TRIALS: usize = 8;
/// Bits per weight that a unit of ln c takes away at high rates.
const SLOPE: f64 = -std::f64::consts::LOG2_E;

/// A matrix that is quantized with several steps.
pub(super) struct RateSearch<'a, New> {
    width: usize,
    values: &'a [f32],
    importance: Importance<'a>,
    feedback: bool,
    /// C_jj of each column; 0 for dead ones, which are not stored.
    pivots: Vec<f32>,
    /// Geometric mean of the others.
    pivots_mean: f32,
    new: &'a New,
}

/// Quantized rows.
pub(super) struct Outcome<Chunk> {
    pub(super) chunks: Vec<Chunk>,
    /// Bits per weight.
    pub(super) bits: f64,
    /// tr(E H Eᵀ).
    pub(super) error: f64,
}

impl<'a, C: ColumnCoder, New> RateSearch<'a, New>
where
    New: Fn(&[f32], f32) -> Result<C, EncodeError> + Sync,
{
    pub(super) fn new(
        width: usize,
        values: &'a [f32],
        importance: Importance<'a>,
        feedback: bool,
        new: &'a New,
    ) -> Result<Self, ColumnsError> {
        importance.check(width, values)?;
        let sizes = importance.sizes(width);
        let pivots: Vec<f32> = match importance {
            Importance::Full(factor) => (0..width)
                .map(|column| match (factor.is_dead(column), feedback) {
                    (true, _) => 0.,
                    (false, true) => factor.pivot(column),
                    (false, false) => sizes[column],
                })
                .collect(),
            Importance::Uniform | Importance::Diagonal(_) => sizes,
        };
        let alive = pivots.iter().filter(|pivot| **pivot > 0.);
        let logs: f64 = alive.clone().map(|pivot| f64::from(*pivot).ln()).sum();
        let pivots_mean = (logs / alive.count().max(1) as f64).exp() as f32;
        Ok(Self {
            width,
            values,
            importance,
            feedback,
            pivots,
            pivots_mean,
            new,
        })
    }

    /// Quantizes all rows, and tells the scale of the steps.
    pub(super) fn quantize(
        &self,
        target: QuantizeTarget,
    ) -> Result<(f64, Outcome<C::Chunk>), ColumnsError> {
        let (QuantizeTarget::Bits(asked) | QuantizeTarget::Step(asked)) = target;
        if !(asked.is_finite() && asked > 0.) {
            return Err(ColumnsError::Target(asked));
        }
        let all: Vec<usize> = (0..self.rows()).collect();
        match target {
            QuantizeTarget::Step(step) => Ok((step, self.outcome(&all, step)?)),
            QuantizeTarget::Bits(bits) => {
                let sample = self.sample();
                let (step, outcome) = self.search(&sample, bits)?;
                if sample.len() == all.len() {
                    return Ok((step, outcome));
                }
                Ok((step, self.outcome(&all, step)?))
            }
        }
    }

    /// tr(W H Wᵀ).
    pub(super) fn power(&self) -> f64 {
        let rows: Vec<usize> = (0..self.rows()).collect();
        let powers: Vec<Vec<f64>> = rows
            .par_chunks(CHUNK_ROWS)
            .map(|rows| {
                let weights = columns_of(self.values, self.width, rows);
                self.importance.row_powers(&weights, rows.len())
            })
            .collect();
        powers.iter().flatten().sum()
    }

    fn rows(&self) -> usize {
        self.values.len() / self.width.max(1)
    }

    /// A tenth of the rows, at even distances, in whole chunks.
    fn sample(&self) -> Vec<usize> {
        let rows = self.rows();
        let count = rows.div_ceil(CHUNK_ROWS).div_ceil(SAMPLE_SHARE) * CHUNK_ROWS;
        let count = count.min(rows);
        (0..count).map(|at| at * rows / count).collect()
    }

    /// The secant method on ln c, which the rate is nearly linear in.
    fn search(
        &self,
        sample: &[usize],
        bits: f64,
    ) -> Result<(f64, Outcome<C::Chunk>), ColumnsError> {
        let mut log_step = self.first(sample, bits);
        let mut best: Option<(f64, f64, Outcome<C::Chunk>)> = None;
        let (mut last, mut slope) = (None, SLOPE);
        for _ in 0..TRIALS {
            let outcome = self.outcome(sample, log_step.exp())?;
            let beyond = outcome.bits - bits;
            if let Some((last_step, last_beyond)) = last
                && log_step != last_step
            {
                // At low rates the rate falls more slowly; a slope near zero would leave the range where it is linear.
                let found: f64 = (beyond - last_beyond) / (log_step - last_step);
                slope = found.clamp(1.3 * SLOPE, 0.1 * SLOPE);
            }
            last = Some((log_step, beyond));
            let here = log_step;
            if best
                .as_ref()
                .is_none_or(|(least, ..)| beyond.abs() < *least)
            {
                best = Some((beyond.abs(), here, outcome));
            }
            if beyond.abs() < TOLERANCE {
                break;
            }
            log_step -= (beyond / slope).clamp(-3., 3.);
        }
        let (_, log_step, outcome) = best.expect("there is at least one trial");
        Ok((log_step.exp(), outcome))
    }

    /// ln c by the entropy of Gaussian columns of the rows' sizes.
    fn first(&self, sample: &[usize], bits: f64) -> f64 {
        let squares = self.column_squares(sample);
        let alive = squares.iter().zip(&self.pivots);
        let logs = alive
            .map(|(square, pivot)| 12. * square * f64::from(*pivot).powi(2))
            .filter(|size| *size > 0.)
            .map(|size| 0.5 * size.ln());
        let (count, sum) = logs.fold((0, 0.), |(count, sum), log| (count + 1, sum + log));
        if count == 0 {
            // All weights are zero; any step does.
            return 0.;
        }
        sum / f64::from(count) - bits * std::f64::consts::LN_2
    }

    /// Mean square of each column.
    fn column_squares(&self, rows: &[usize]) -> Vec<f64> {
        let mut squares = vec![0.; self.width];
        for row in rows {
            let row = &self.values[row * self.width..][..self.width];
            for (square, value) in squares.iter_mut().zip(row) {
                *square += f64::from(*value).powi(2) / rows.len() as f64;
            }
        }
        squares
    }

    fn outcome(&self, rows: &[usize], step: f64) -> Result<Outcome<C::Chunk>, ColumnsError> {
        let chunks: Result<Vec<_>, EncodeError> = rows
            .par_chunks(CHUNK_ROWS)
            .map(|rows| self.chunk(rows, step as f32))
            .collect();
        let mut outcome = Outcome {
            chunks: Vec::new(),
            bits: 0.,
            error: 0.,
        };
        for (chunk, bits, error) in chunks? {
            outcome.chunks.push(chunk);
            outcome.bits += bits;
            outcome.error += error;
        }
        outcome.bits /= (rows.len() * self.width).max(1) as f64;
        Ok(outcome)
    }

    /// A chunk, its bits and its error.
    fn chunk(&self, rows: &[usize], step: f32) -> Result<(C::Chunk, f64, f64), EncodeError> {
        let weights = columns_of(self.values, self.width, rows);
        let sizes: Vec<f32> = rows.iter().map(|row| self.row_size(*row)).collect();
        // Columns' steps are stored beside the chunk's: it lies in their middle.
        let mut coder = (self.new)(&sizes, step / self.pivots_mean)?;
        let quantize = |column: usize, target: &[f32], decoded: &mut [f32]| {
            let pivot = self.pivots[column];
            // A step of 0 makes a column of zeros.
            let step = match pivot > 0. {
                true => step / pivot,
                false => 0.,
            };
            coder.quantize_column(column, target, step, decoded);
        };
        let errors = self
            .importance
            .quantize(&weights, rows.len(), self.feedback, quantize);
        let (chunk, bits) = coder.finish()?;
        Ok((chunk, bits, errors.iter().sum()))
    }

    /// Root mean square of a row's weights, in steps.
    fn row_size(&self, row: usize) -> f32 {
        let row = &self.values[row * self.width..][..self.width];
        let squares = row.iter().zip(&self.pivots);
        let sum: f64 = squares
            .map(|(value, pivot)| f64::from(value * pivot).powi(2))
            .sum();
        (sum / self.width as f64).sqrt() as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        factor::Factor,
        feedback::MatrixError,
        moments::Moments,
        testing::{correlated, gaussians},
    };

    /// Rounds to multiples of a step, with the entropy of each column as its bits.
    struct Scalar {
        rows: usize,
        bits: f64,
    }

    impl ColumnCoder for Scalar {
        type Chunk = usize;

        fn quantize_column(&mut self, _: usize, values: &[f32], step: f32, decoded: &mut [f32]) {
            if step == 0. {
                decoded.fill(0.);
                return;
            }
            let mut levels: Vec<i64> = Vec::new();
            for (value, decoded) in values.iter().zip(decoded) {
                let level = (value / step).round();
                *decoded = level * step;
                levels.push(level as i64);
            }
            levels.sort_unstable();
            for run in levels.chunk_by(|one, other| one == other) {
                self.bits -= run.len() as f64 * (run.len() as f64 / levels.len() as f64).log2();
            }
        }

        fn finish(self) -> Result<(usize, f64), EncodeError> {
            Ok((self.rows, self.bits))
        }
    }

    fn new(sizes: &[f32], _: f32) -> Result<Scalar, EncodeError> {
        let rows = sizes.len();
        Ok(Scalar { rows, bits: 0. })
    }

    fn factor(width: usize) -> Factor {
        let mut moments = Moments::new(width, true);
        moments.add(&correlated(11, 4 * width, width)).unwrap();
        Factor::new(&moments.second_moments().unwrap(), 1e-4).unwrap()
    }

    #[test]
    fn the_bits_are_met_and_feedback_gains_what_the_factor_promises() {
        let (rows, width) = (600, 128);
        let weights = gaussians(4, rows * width);
        let factor = factor(width);
        let squares: Vec<f32> = factor.mean_squares().to_vec();
        let at = |importance, feedback| {
            let search = RateSearch::new(width, &weights, importance, feedback, &new).unwrap();
            let (_, outcome) = search.quantize(QuantizeTarget::Bits(3.)).unwrap();
            assert_eq!(outcome.chunks, [256, 256, 88]);
            assert!((outcome.bits - 3.).abs() < 0.05, "{}", outcome.bits);
            // Errors are measured by the same second moments, whatever was known.
            (outcome.error, outcome.bits)
        };
        let (steps_alone, _) = at(Importance::Full(&factor), false);
        let (both, _) = at(Importance::Full(&factor), true);
        let gains = factor.rate_gains();
        let promised = gains.both_bits() - gains.column_steps_bits();
        let gained = 0.5 * (steps_alone / both).log2();
        assert!(
            promised > 0.3 && (gained / promised - 1.).abs() < 0.15,
            "{gained} of {promised}"
        );

        let diagonal = at(Importance::Diagonal(&squares), true);
        assert!(diagonal.1 > 2.9);
    }

    #[test]
    fn dead_inputs_take_no_bits() {
        let width = 64;
        let mut inputs = correlated(2, 300, width);
        inputs
            .iter_mut()
            .step_by(width)
            .for_each(|value| *value = 0.);
        let mut moments = Moments::new(width, true);
        moments.add(&inputs).unwrap();
        let factor = Factor::new(&moments.second_moments().unwrap(), 1e-4).unwrap();
        let weights = gaussians(4, 10 * width);
        let search =
            RateSearch::new(width, &weights, Importance::Full(&factor), true, &new).unwrap();

        assert_eq!(search.pivots[0], 0.);
        assert!(search.pivots[1] > 0.);
        let (_, outcome) = search.quantize(QuantizeTarget::Bits(4.)).unwrap();
        assert!(outcome.error < 0.02 * search.power());
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let (rows, width) = (700, 96);
        let weights = gaussians(4, rows * width);
        let factor = factor(width);
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.unwrap().install(|| {
                let importance = Importance::Full(&factor);
                let search = RateSearch::new(width, &weights, importance, true, &new).unwrap();
                let (step, outcome) = search.quantize(QuantizeTarget::Bits(3.)).unwrap();
                (step, outcome.bits, outcome.error, search.power())
            })
        };
        assert_eq!(with(1), with(3));
    }

    #[test]
    fn what_cannot_be_quantized_is_said() {
        let refused = |width, values: &[f32], importance| {
            RateSearch::new(width, values, importance, true, &new)
                .err()
                .unwrap()
        };
        let at = refused(2, &[1., 2., f32::INFINITY, 0.], Importance::Uniform);
        assert_eq!(at, MatrixError::NotFinite { row: 1, column: 0 }.into());
        let at = refused(3, &[1.; 4], Importance::Uniform);
        assert!(matches!(
            at,
            ColumnsError::Matrix(MatrixError::NotWholeRows { .. })
        ));
        let at = refused(2, &[1.; 4], Importance::Diagonal(&[1.; 3]));
        assert_eq!(at, MatrixError::Inputs { width: 2, found: 3 }.into());
        let at = refused(2, &[1.; 4], Importance::Diagonal(&[1., -1.]));
        assert_eq!(at, MatrixError::Importance(1).into());
        let values = [1.; 4];
        let search = RateSearch::new(2, &values, Importance::Uniform, true, &new).unwrap();
        for target in [QuantizeTarget::Bits(f64::NAN), QuantizeTarget::Step(0.)] {
            assert!(matches!(
                search.quantize(target),
                Err(ColumnsError::Target(_))
            ));
        }
    }

    #[test]
    fn zeros_are_quantized_too() {
        let values = vec![0.; 5 * 40];
        let search = RateSearch::new(40, &values, Importance::Uniform, false, &new).unwrap();
        let (_, outcome) = search.quantize(QuantizeTarget::Bits(3.)).unwrap();
        assert_eq!((outcome.error, outcome.bits, search.power()), (0., 0., 0.));
    }
}
