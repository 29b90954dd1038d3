//! Continuous rates: the reverse water-filling of rate-distortion theory, with limits.

use super::AllocateError;

/// A group whose loss at R bits per weight is `sensitivity · 4^-R`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateCurve {
    /// Weights of the group.
    pub weights: f64,
    /// Its measured loss at some rate R₀, times 4^R₀.
    pub sensitivity: f64,
    /// The lowest rate, in bits per weight.
    pub bits_min: f64,
    /// The highest rate.
    pub bits_max: f64,
}

/// Rates, in bits per weight, that minimize the sum of losses with `budget_bits` bits for all weights together:
/// R = ½ log₂(sensitivity / weights) + a constant, within each group's range. A budget beyond all highest rates gives
/// these.
///
/// # Errors
/// When a number can't be what it should, or the budget is below all lowest rates.
pub fn rates(curves: &[RateCurve], budget_bits: f64) -> Result<Vec<f64>, AllocateError> {
    for (at, curve) in curves.iter().enumerate() {
        let is_valid = [
            curve.weights,
            curve.sensitivity,
            curve.bits_min,
            curve.bits_max,
        ]
        .iter()
        .all(|number| number.is_finite() && *number >= 0.);
        if !is_valid || curve.bits_min > curve.bits_max {
            return Err(AllocateError::Group(at));
        }
    }
    let least: f64 = curves
        .iter()
        .map(|curve| curve.weights * curve.bits_min)
        .sum();
    // Rounding of the caller's sum must not refuse a budget that is exactly the lowest rates'.
    if budget_bits.is_nan() || budget_bits < least * (1. - 1e-12) {
        return Err(AllocateError::Budget {
            budget: budget_bits,
            least,
        });
    }
    let rate = |curve: &RateCurve, level: f64| {
        // Of a group without a loss, the lowest rate; the same of a group without weights.
        let own = 0.5 * (curve.sensitivity / curve.weights).log2();
        let rate = if own.is_finite() {
            own + level
        } else {
            curve.bits_min
        };
        rate.max(curve.bits_min).min(curve.bits_max)
    };
    let bits = |level: f64| -> f64 {
        let all = curves
            .iter()
            .map(|curve| curve.weights * rate(curve, level));
        all.sum()
    };
    // Bits grow with the level, and in a straight line between the levels at which a group reaches its limits: between
    // two neighbours of these the level follows directly.
    let mut turns: Vec<f64> = curves
        .iter()
        .map(|curve| (0.5 * (curve.sensitivity / curve.weights).log2(), curve))
        .filter(|(own, _)| own.is_finite())
        .flat_map(|(own, curve)| [curve.bits_min - own, curve.bits_max - own])
        .collect();
    turns.sort_by(f64::total_cmp);
    let above = turns.partition_point(|level| bits(*level) <= budget_bits);
    let level = match (above.checked_sub(1).map(|at| turns[at]), turns.get(above)) {
        (Some(low), Some(high)) => {
            let (fewer, more) = (bits(low), bits(*high));
            low + (high - low) * (budget_bits - fewer) / (more - fewer)
        }
        (Some(highest), None) => highest,
        (None, Some(lowest)) => *lowest,
        (None, None) => 0.,
    };
    Ok(curves.iter().map(|curve| rate(curve, level)).collect())
}

/// What the best rates save over one rate for all, in bits per weight at equal loss: half the logarithm of the weighted
/// arithmetic mean of sensitivities per weight over the geometric one. Less than 0.03 isn't worth the effort.
#[must_use]
pub fn allocation_gain_bits(curves: &[RateCurve]) -> f64 {
    let alive = curves
        .iter()
        .filter(|curve| curve.weights > 0. && curve.sensitivity > 0.);
    let (mut weights, mut sum, mut logs) = (0., 0., 0.);
    for curve in alive {
        weights += curve.weights;
        sum += curve.sensitivity;
        logs += curve.weights * (curve.sensitivity / curve.weights).log2();
    }
    if weights > 0. {
        0.5 * ((sum / weights).log2() - logs / weights)
    } else {
        0.
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn curve(weights: f64, sensitivity: f64, bits_min: f64, bits_max: f64) -> RateCurve {
        RateCurve {
            weights,
            sensitivity,
            bits_min,
            bits_max,
        }
    }

    fn loss(curves: &[RateCurve], rates: &[f64]) -> f64 {
        let pairs = curves.iter().zip(rates);
        pairs
            .map(|(curve, rate)| curve.sensitivity * (-2. * rate).exp2())
            .sum()
    }

    #[test]
    fn two_groups_by_hand() {
        // Four times the loss per weight: one bit more.
        let curves = [curve(10., 40., 0., 8.), curve(10., 10., 0., 8.)];
        let found = rates(&curves, 60.).unwrap();
        assert!(
            (found[0] - 3.5).abs() < 1e-9 && (found[1] - 2.5).abs() < 1e-9,
            "{found:?}"
        );
        let gain = allocation_gain_bits(&curves);
        let uniform = loss(&curves, &[3., 3.]);
        assert!((gain - 0.5 * (uniform / loss(&curves, &found)).log2()).abs() < 1e-9);

        let narrow = curves.map(|curve| RateCurve {
            bits_max: 3.2,
            ..curve
        });
        let found = rates(&narrow, 60.).unwrap();
        assert!(
            (found[0] - 3.2).abs() < 1e-9 && (found[1] - 2.8).abs() < 1e-9,
            "{found:?}"
        );
        assert_eq!(rates(&narrow, 1e9).unwrap(), [3.2, 3.2]);
        let refused = rates(&curves.map(|c| RateCurve { bits_min: 2., ..c }), 39.);
        assert_eq!(
            refused,
            Err(AllocateError::Budget {
                budget: 39.,
                least: 40.
            })
        );
        assert!(rates(&curves, f64::NAN).is_err());
        assert_eq!(
            rates(&[curve(1., f64::NAN, 0., 1.)], 1.),
            Err(AllocateError::Group(0))
        );
        assert_eq!(
            rates(&[curve(1., 1., 2., 1.)], 1.),
            Err(AllocateError::Group(0))
        );
        assert_eq!(rates(&[], 1.), Ok(vec![]));
    }

    proptest! {
        #[test]
        fn no_exchange_between_two_groups_helps(
            groups in vec((1.0..1e6_f64, prop_oneof![1 => Just(0.), 9 => 1e-6..1e3_f64], 0.0..3.0_f64, 0.0..5.0_f64), 1..12),
            share in 0.0..1.0_f64,
        ) {
            let curves: Vec<RateCurve> = groups
                .into_iter()
                .map(|(weights, sensitivity, min, range)| curve(weights, sensitivity, min, min + range))
                .collect();
            let bits = |rates: &[f64]| -> f64 {
                curves.iter().zip(rates).map(|(curve, rate)| curve.weights * rate).sum()
            };
            let (least, most): (Vec<f64>, Vec<f64>) =
                curves.iter().map(|curve| (curve.bits_min, curve.bits_max)).unzip();
            let budget = bits(&least) + share * (bits(&most) - bits(&least));
            let found = rates(&curves, budget).unwrap();

            prop_assert!(bits(&found) <= budget * (1. + 1e-9));
            for (curve, rate) in curves.iter().zip(&found) {
                prop_assert!((curve.bits_min..=curve.bits_max).contains(rate));
            }
            let before = loss(&curves, &found);
            for from in 0..curves.len() {
                for to in 0..curves.len() {
                    let mut other = found.clone();
                    let moved = 1e-3 * curves[from].weights.min(curves[to].weights);
                    other[from] -= moved / curves[from].weights;
                    other[to] += moved / curves[to].weights;
                    if other[from] >= curves[from].bits_min && other[to] <= curves[to].bits_max {
                        prop_assert!(loss(&curves, &other) >= before * (1. - 1e-9));
                    }
                }
            }
        }
    }
}
