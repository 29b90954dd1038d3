//! Whether a device computes right: whole models beside the reference implementations' outputs. For tests, `sluiced check`,
//! and `tools/gpu`, which has single operations beside the CPU's, too.

mod fixtures;
mod plans;

use std::error::Error;

pub use self::{
    fixtures::{
        Answer, F32_TOLERANCE, FixtureLogits, PlanFor, Sampled, fixture_forwards, fixture_logits,
        fixture_samples, fixture_tokens,
    },
    plans::{resident, streamed},
};

/// Something that was computed twice.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckResult {
    /// What was computed.
    pub name: String,
    /// How far off it is, relative to the largest number expected unless the name says otherwise. Not a number where the
    /// result isn't one.
    pub error: f64,
    /// How far off it may be.
    pub tolerance: f64,
    /// Why there is no result, where there is none.
    pub cause: Option<String>,
}

impl CheckResult {
    /// One that could not be made.
    #[must_use]
    pub fn failed(name: impl Into<String>, cause: &dyn Error) -> Self {
        Self {
            name: name.into(),
            error: f64::NAN,
            tolerance: 0.0,
            cause: Some(cause.to_string()),
        }
    }

    /// Whether it is close enough.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// The larger of two differences; what is no number stays, which a maximum would pass over.
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
