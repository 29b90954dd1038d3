//! Takes noise out of measured sensitivities: each is moved toward the mean of its type, the more the noisier it is
//! (empirical Bayes, as Morris 1983; the variance between groups by DerSimonian and Laird 1986).

use std::collections::BTreeMap;

/// A measured sensitivity of a weight group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sensitivity {
    /// Natural logarithm of the sensitivity per weight.
    pub log: f64,
    /// Variance of that logarithm, by bootstrap over sequences.
    pub variance: f64,
    /// Groups of one type, such as all down projections, are expected to be alike.
    pub group_type: usize,
}

/// Logarithms of sensitivities with less noise. Where groups of a type differ by no more than their noise, all get the
/// type's mean; where noise is small beside the differences, nearly nothing changes.
#[must_use]
pub fn shrink(sensitivities: &[Sensitivity]) -> Vec<f64> {
    let mut types: BTreeMap<usize, Vec<&Sensitivity>> = BTreeMap::new();
    for one in sensitivities {
        types.entry(one.group_type).or_default().push(one);
    }
    let types: BTreeMap<usize, Type> = types
        .into_iter()
        .map(|(group_type, all)| (group_type, Type::new(&all)))
        .collect();
    sensitivities
        .iter()
        .map(|one| types[&one.group_type].shrunk(one))
        .collect()
}

/// What is known of the groups of a type.
struct Type {
    mean: f64,
    /// Variance of the true logarithms.
    between: f64,
}

impl Type {
    fn new(all: &[&Sensitivity]) -> Self {
        let mean = |between: f64| {
            let (weights, sum) = all.iter().fold((0., 0.), |(weights, sum), one| {
                let weight = 1. / (one.variance + between).max(f64::MIN_POSITIVE);
                (weights + weight, sum + weight * one.log)
            });
            sum / weights
        };
        // Plain weights for the estimate of the variance: with inverse variances one group without noise would take
        // all of it.
        let count = all.len() as f64;
        let centre = all.iter().map(|one| one.log).sum::<f64>() / count;
        let spread: f64 = all.iter().map(|one| (one.log - centre).powi(2)).sum();
        let noise = all.iter().map(|one| one.variance).sum::<f64>() / count;
        let between = if all.len() > 1 {
            (spread / (count - 1.) - noise).max(0.)
        } else {
            0.
        };
        Self {
            mean: mean(between),
            between,
        }
    }

    fn shrunk(&self, one: &Sensitivity) -> f64 {
        let all = self.between + one.variance;
        if all > 0. {
            (self.between * one.log + one.variance * self.mean) / all
        } else {
            one.log
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gaussians;

    fn of(log: f64, variance: f64, group_type: usize) -> Sensitivity {
        Sensitivity {
            log,
            variance,
            group_type,
        }
    }

    #[test]
    fn noise_alone_is_removed_and_differences_stay() {
        // Differences of 0.1 within a noise of 1: the mean; differences of 10 with the same noise: nearly as they are.
        let found = shrink(&[of(1., 1., 0), of(1.1, 1., 0), of(0., 1., 7), of(20., 1., 7)]);
        assert!((found[0] - 1.05).abs() < 1e-9 && (found[1] - 1.05).abs() < 1e-9);
        assert!(found[2] < 0.1 && found[2] > 0. && found[3] > 19.9);
        assert_eq!(shrink(&[of(3., 0.5, 1)]), [3.]);
        assert_eq!(shrink(&[of(3., 0., 1), of(3., 0., 1)]), [3., 3.]);
        assert_eq!(shrink(&[]), [0.; 0]);
    }

    #[test]
    fn shrunk_values_are_nearer_to_the_truth() {
        let count = 400;
        let (truth, noise) = (gaussians(1, count), gaussians(2, count));
        let sizes = gaussians(3, count);
        let measured: Vec<Sensitivity> = (0..count)
            .map(|at| {
                let deviation = f64::from(0.8 * (0.5 * sizes[at]).exp());
                let log = 0.5 * f64::from(truth[at]) + deviation * f64::from(noise[at]);
                of(log, deviation * deviation, at % 3)
            })
            .collect();
        let error = |found: &[f64]| -> f64 {
            let pairs = found.iter().zip(&truth);
            pairs
                .map(|(found, truth)| (found - 0.5 * f64::from(*truth)).powi(2))
                .sum()
        };
        let before: Vec<f64> = measured.iter().map(|one| one.log).collect();
        assert!(error(&shrink(&measured)) < 0.35 * error(&before));
    }
}
