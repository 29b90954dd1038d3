//! What a layer's second moments promise before anything is quantized.

use super::Factor;

/// Bits per weight that calibration saves at equal error, at high rates. With one step for all columns the error goes
/// as the arithmetic mean of H_jj; steps in proportion to 1/√H_jj make it the geometric mean; error feedback replaces
/// H_jj by the pivots d_j ≤ H_jj; both together reach det(H)^(1/n), the least there is (WaterSIC, arXiv 2603.04956).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateGains {
    /// Arithmetic mean of the damped H_jj.
    pub moments_mean: f64,
    /// Geometric mean of the damped H_jj.
    pub moments_geometric_mean: f64,
    /// Arithmetic mean of the pivots d_j = C_jj².
    pub pivots_mean: f64,
    /// Geometric mean of the pivots.
    pub pivots_geometric_mean: f64,
}

impl RateGains {
    /// Of a step for each column, without feedback.
    #[must_use]
    pub fn column_steps_bits(&self) -> f64 {
        bits(self.moments_mean, self.moments_geometric_mean)
    }

    /// Of error feedback with one step for all columns.
    #[must_use]
    pub fn feedback_bits(&self) -> f64 {
        bits(self.moments_mean, self.pivots_mean)
    }

    /// Of both.
    #[must_use]
    pub fn both_bits(&self) -> f64 {
        bits(self.moments_mean, self.pivots_geometric_mean)
    }
}

impl Factor {
    /// The gains that this layer promises; dead inputs don't count.
    #[must_use]
    pub fn rate_gains(&self) -> RateGains {
        let alive: Vec<usize> = (0..self.width).filter(|input| !self.dead[*input]).collect();
        let means = |value: &dyn Fn(usize) -> f64| {
            let sums = alive.iter().map(|input| value(*input));
            let (sum, logs) = sums.fold((0., 0.), |(sum, logs), v| (sum + v, logs + v.ln()));
            let count = alive.len() as f64;
            (sum / count, (logs / count).exp())
        };
        let (moments_mean, moments_geometric_mean) =
            means(&|input| f64::from(self.moments[input]) + self.added);
        let (pivots_mean, pivots_geometric_mean) =
            means(&|input| f64::from(self.pivot(input)).powi(2));
        RateGains {
            moments_mean,
            moments_geometric_mean,
            pivots_mean,
            pivots_geometric_mean,
        }
    }
}

/// Error goes as 4^-bits.
fn bits(before: f64, after: f64) -> f64 {
    0.5 * (before / after).log2()
}

#[cfg(test)]
mod tests {
    use crate::{factor::Factor, moments::SecondMoments};

    #[test]
    fn gains_of_two_inputs_by_hand() {
        let moments = SecondMoments::new(2, vec![4., 1.2, 1.2, 1.]).unwrap();
        let gains = Factor::new(&moments, 0.).unwrap().rate_gains();

        // d = (4, 1 - 1.44/4 = 0.64).
        assert!((gains.moments_mean - 2.5).abs() < 1e-6);
        assert!((gains.column_steps_bits() - 0.5 * (2.5_f64 / 2.).log2()).abs() < 1e-6);
        assert!((gains.feedback_bits() - 0.5 * (2.5_f64 / 2.32).log2()).abs() < 1e-6);
        assert!((gains.both_bits() - 0.5 * (2.5_f64 / 1.6).log2()).abs() < 1e-6);
    }
}
