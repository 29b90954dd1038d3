//! How a step of `cargo ci` ends.

pub(crate) enum Outcome {
    Passed,
    /// Something it needs is not here.
    Skipped(String),
    Failed(String),
}
