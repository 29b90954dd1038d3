//! Weights as computing sees them.

use crate::format::Format;

/// A matrix or vector of weights, where it lies.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// How its numbers are stored.
    pub format: Format,
    /// Outputs; 1 for a vector.
    pub rows: usize,
    /// Inputs.
    pub width: usize,
    /// The numbers, row after row. Nothing in a rehearsal.
    pub bytes: &'a [u8],
    /// Number of the weights' state it belongs to.
    pub epoch: u64,
}

impl<'a> Weight<'a> {
    /// The rows `from..to` alone.
    ///
    /// # Panics
    /// When they lie outside.
    #[must_use]
    pub fn rows(&self, from: usize, to: usize) -> Weight<'a> {
        let stride = self.format.bytes(self.width);
        Weight {
            rows: to - from,
            bytes: &self.bytes[from * stride..to * stride],
            ..*self
        }
    }

    /// All its numbers as `f32`.
    ///
    /// # Panics
    /// When `out` has another length.
    pub fn widen(&self, out: &mut [f32]) {
        self.format.widen(self.bytes, out);
    }
}
