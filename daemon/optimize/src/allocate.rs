//! Which weight group gets how many bits.
//!
//! [`choose`] picks one of a group's candidates (rates, the checkpoint's own weights) under limits of bytes and of time,
//! and says how far from the optimum its answer may be. [`shrink`] takes noise out of measured sensitivities first.

mod choice;
mod hull;
mod shrink;

use thiserror::Error;

pub use choice::{Allocation, Candidate, Limits, choose};
pub use shrink::{Sensitivity, shrink};

/// Why bits can't be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum AllocateError {
    /// A number that must be finite and not negative isn't, or a range is empty.
    #[error("group {0} has a loss, a size, a time or a range that can't be one")]
    Group(usize),
    /// A group without a candidate.
    #[error("group {0} has no candidates")]
    NoCandidates(usize),
    /// The budget is below what the smallest candidates take, or isn't a number.
    #[error("the budget is {budget}; at least {least} are needed")]
    Budget {
        /// Bytes or bits that may be used.
        budget: f64,
        /// Bytes or bits of the smallest candidates or rates.
        least: f64,
    },
    /// No choice that was found is within the limit of time.
    #[error(
        "the limit is {limit} s; the fastest choice within the budget that was found takes {least} s"
    )]
    Time {
        /// Seconds that a pass may take.
        limit: f64,
        /// Seconds of the fastest choice that was found within the budget of bytes.
        least: f64,
    },
}
