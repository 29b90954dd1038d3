//! Whether a device computes right: whole models compared with the reference implementations' outputs. For tests,
//! `sluiced check` and `tools/gpu`, which compares single operations with the CPU's, too.

mod fixtures;
mod latents;
mod plans;

use std::error::Error;

pub use self::{
    fixtures::{
        Answer, F32_TOLERANCE, FixtureLogits, PlanFor, Sampled, fixture_forwards, fixture_logits,
        fixture_samples, fixture_tokens,
    },
    latents::fixture_latents,
    plans::{resident, streamed},
};

/// A comparison of two computations of the same thing.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckResult {
    /// The name of the computation.
    pub name: String,
    /// The error, relative to the largest expected element unless the name says otherwise. NaN where the result is NaN
    /// or missing.
    pub error: f64,
    /// The largest error that passes.
    pub tolerance: f64,
    /// Why there is no result; `None` where there is one.
    pub cause: Option<String>,
}

impl CheckResult {
    /// The result of a computation that failed.
    #[must_use]
    pub fn failed(name: impl Into<String>, cause: &dyn Error) -> Self {
        Self {
            name: name.into(),
            error: f64::NAN,
            tolerance: 0.0,
            cause: Some(cause.to_string()),
        }
    }

    /// Whether the error is within the tolerance. NaN is not.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// The larger of two errors. NaN stays, which a maximum would drop.
#[must_use]
pub fn worse(worst: f64, difference: f64) -> f64 {
    match worst.is_nan() || difference <= worst {
        true => worst,
        false => difference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_the_worst() {
        for differences in [
            [f64::NAN, 1.0, 2.0],
            [1.0, f64::NAN, 2.0],
            [1.0, 2.0, f64::NAN],
        ] {
            assert!(differences.into_iter().fold(0.0, worse).is_nan());
        }
        assert_eq!([1.0, 3.0, 2.0].into_iter().fold(0.0, worse), 3.0);
    }
}
