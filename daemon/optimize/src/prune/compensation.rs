//! Least squares for what remains (FASP, arXiv 2501.09412; OSSCAR, arXiv 2403.12983).
//!
//! With kept inputs K, removed ones P and the uncentred second moments H, W'_K = W_K + W_P H_PK (H_KK + ε)⁻¹ minimizes
//! the error of the outputs. Uncentred moments contain the means, so kept inputs with a mean of their own take over
//! what FLAP (arXiv 2312.11983) adds as a bias, and models without biases get none.

use rayon::prelude::*;

use super::PruneError;
use crate::{
    factor::Factor,
    feedback::Importance,
    matmul::{MatrixView, add_product},
    moments::SecondMoments,
};

/// Rows that a thread computes at a time.
const ROWS: usize = 64;

/// The weights of the inputs that are kept, with the error that remains.
#[derive(Clone, Debug, PartialEq)]
pub struct Compensated {
    /// Row-major, outputs × kept inputs.
    pub weight: Vec<f32>,
    /// tr(E H Eᵀ), summed over outputs, for a mean input position.
    pub error: f64,
    /// The same without compensation.
    pub error_before: f64,
}

/// Removes all but the `kept` inputs, ascending, of a matrix of `moments.width()` inputs. `damping` is the ε of
/// [`Factor::new`].
///
/// # Errors
/// When sizes don't fit, a weight isn't finite, nothing is kept, or the kept inputs' moments have no factor.
pub fn compensate(
    weight: &[f32],
    moments: &SecondMoments,
    kept: &[usize],
    damping: f64,
) -> Result<Compensated, PruneError> {
    let width = moments.width();
    Importance::Uniform.check(width, weight)?;
    if kept.is_empty() {
        return Err(PruneError::NothingLeft { layer: 0 });
    }
    if !kept.is_sorted_by(|one, other| one < other) || kept.last().is_some_and(|k| *k >= width) {
        return Err(PruneError::Kept { width });
    }
    let removed: Vec<usize> = (0..width)
        .filter(|at| kept.binary_search(at).is_err())
        .collect();
    let factor = Factor::new(&moments.select(kept), damping)?;
    let among_removed = moments.select(&removed);
    // H_PK, row-major.
    let values = moments.values();
    let between: Vec<f32> = removed
        .iter()
        .flat_map(|row| kept.iter().map(move |column| values[row * width + column]))
        .collect();

    let mut all = vec![0.; weight.len() / width * kept.len()];
    let errors: Vec<(f64, f64)> = weight
        .par_chunks(ROWS * width)
        .zip(all.par_chunks_mut(ROWS * kept.len()))
        .map(|(weight, out)| {
            let rows = weight.len() / width;
            let select = |inputs: &[usize]| -> Vec<f32> {
                let rows = weight.chunks_exact(width);
                rows.flat_map(|row| inputs.iter().map(|input| row[*input]))
                    .collect()
            };
            let times = |left: &[f32], right: &[f32], columns: usize| {
                let mut out = vec![0.; rows * columns];
                let left = MatrixView::new(left, rows, removed.len(), removed.len());
                let right = MatrixView::new(right, removed.len(), columns, columns);
                add_product(&mut out, columns, 1., left, right);
                out
            };
            let lost = select(&removed);
            let shared = times(&lost, &between, kept.len());
            let mut change = shared.clone();
            factor.solve_rows(&mut change);
            for row in change.chunks_exact_mut(kept.len()) {
                for (input, value) in row.iter_mut().enumerate() {
                    // What an input that is nearly always zero would take over, it could hardly give.
                    if factor.is_dead(input) {
                        *value = 0.;
                    }
                }
            }
            // E = (W_P, -Δ) with Δ (H_KK + ε) = W_P H_PK gives W_P H_PP W_Pᵀ - Δ·(W_P H_PK) - ε |Δ|².
            let before = dot(&times(&lost, among_removed.values(), removed.len()), &lost);
            let error = before - dot(&change, &shared) - factor.added() * dot(&change, &change);
            for ((out, own), change) in out.iter_mut().zip(select(kept)).zip(change) {
                *out = own + change;
            }
            (error.max(0.), before)
        })
        .collect();
    Ok(Compensated {
        weight: all,
        error: errors.iter().map(|(error, _)| error).sum(),
        error_before: errors.iter().map(|(_, before)| before).sum(),
    })
}

fn dot(one: &[f32], other: &[f32]) -> f64 {
    let products = one.iter().zip(other);
    products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        moments::Moments,
        testing::{correlated, gaussians},
    };

    /// Mean squared error of the outputs, over the inputs themselves.
    fn outputs_error(inputs: &[f32], width: usize, one: &[f32], other: &[f32]) -> f64 {
        let outputs = |x: &[f32], weight: &[f32]| -> Vec<f64> {
            weight.chunks_exact(width).map(|row| dot(row, x)).collect()
        };
        let rows = inputs.chunks_exact(width);
        let count = rows.len() as f64;
        rows.map(|x| {
            let both = outputs(x, one).into_iter().zip(outputs(x, other));
            both.map(|(a, b)| (a - b).powi(2)).sum::<f64>()
        })
        .sum::<f64>()
            / count
    }

    fn padded(weight: &[f32], width: usize, kept: &[usize]) -> Vec<f32> {
        let mut all = vec![0.; weight.len() / kept.len() * width];
        for (row, own) in all
            .chunks_exact_mut(width)
            .zip(weight.chunks_exact(kept.len()))
        {
            kept.iter()
                .zip(own)
                .for_each(|(input, value)| row[*input] = *value);
        }
        all
    }

    #[test]
    fn no_other_weights_do_better() {
        let (width, outputs) = (24, 5);
        let inputs = correlated(6, 400, width);
        let mut moments = Moments::new(width, true);
        moments.add(&inputs).unwrap();
        let moments = moments.second_moments().unwrap();
        let weight = gaussians(1, outputs * width);
        let kept: Vec<usize> = (0..width).filter(|input| input % 5 != 2).collect();
        let found = compensate(&weight, &moments, &kept, 0.).unwrap();

        let error = |kept_weight: &[f32]| {
            outputs_error(&inputs, width, &weight, &padded(kept_weight, width, &kept))
        };
        let least = error(&found.weight);
        assert!(
            (found.error / least - 1.).abs() < 1e-2,
            "{} {least}",
            found.error
        );
        let own: Vec<f32> = weight
            .chunks_exact(width)
            .flat_map(|row| kept.iter().map(|input| row[*input]))
            .collect();
        assert!((found.error_before / error(&own) - 1.).abs() < 1e-3);
        assert!(least < 0.5 * found.error_before);
        // The error is a convex function of the weights: at its minimum every change makes it larger.
        for at in (0..found.weight.len()).step_by(7) {
            for change in [-0.02, 0.02] {
                let mut other = found.weight.clone();
                other[at] += change;
                assert!(error(&other) > least, "{at}");
            }
        }
    }

    #[test]
    fn a_constant_input_is_taken_over_by_one_that_has_a_mean() {
        // FLAP's case: the removed input is always 2; an input of always 1 is kept.
        let inputs: Vec<f32> = gaussians(1, 100)
            .into_iter()
            .flat_map(|x| [x, 2., 1.])
            .collect();
        let mut moments = Moments::new(3, true);
        moments.add(&inputs).unwrap();
        let moments = moments.second_moments().unwrap();
        let found = compensate(&[1., 5., 0.], &moments, &[0, 2], 1e-6).unwrap();

        assert!((found.weight[0] - 1.).abs() < 1e-3 && (found.weight[1] - 10.).abs() < 1e-3);
        assert!(found.error < 1e-3 * found.error_before);
    }

    #[test]
    fn what_cannot_be_compensated_is_said() {
        let moments = SecondMoments::new(2, vec![1., 0., 0., 1.]).unwrap();
        let found =
            |weight: &[f32], kept: &[usize]| compensate(weight, &moments, kept, 0.1).unwrap_err();
        assert_eq!(found(&[1., 2.], &[]), PruneError::NothingLeft { layer: 0 });
        assert_eq!(found(&[1., 2.], &[1, 0]), PruneError::Kept { width: 2 });
        assert_eq!(found(&[1., 2.], &[2]), PruneError::Kept { width: 2 });
        assert!(matches!(
            found(&[1., f32::NAN], &[0]),
            PruneError::Matrix(_)
        ));
        assert_eq!(
            compensate(&[1., 2.], &moments, &[0, 1], 0.).unwrap().weight,
            [1., 2.]
        );
    }
}
