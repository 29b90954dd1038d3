//! Whether a device computes right: each of its operations beside the CPU's on random inputs, and whole models beside the
//! reference implementations' outputs. For tests, and for whoever has a card that nobody has tried before.

mod fixtures;
mod operations;
mod speed;

pub use self::{
    fixtures::{fixture_logits, fixture_tokens},
    operations::operations,
    speed::{Speed, speeds},
};

/// Something that was computed twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// What was computed.
    pub name: String,
    /// How far off it is, relative to the largest number expected unless the name says otherwise. Not a number where the
    /// result isn't one.
    pub error: f64,
    /// How far off it may be.
    pub tolerance: f64,
}

impl Check {
    /// Whether it is close enough.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.error <= self.tolerance
    }
}
