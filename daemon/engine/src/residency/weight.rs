//! Weights as computing sees them.

use sluice_cuda::Span;

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
    /// The numbers, row after row.
    pub data: Data<'a>,
    /// Number of the weights' state it belongs to.
    pub epoch: u64,
}

/// Where a weight's bytes are.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    /// In this process.
    Host(&'a [u8]),
    /// On a card.
    Card(Span),
    /// Nowhere: a rehearsal.
    None,
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
            data: match self.data {
                Data::Host(bytes) => Data::Host(&bytes[from * stride..to * stride]),
                Data::Card(span) => Data::Card(span.part(from * stride, (to - from) * stride)),
                Data::None => Data::None,
            },
            ..*self
        }
    }

    /// Its bytes, for the CPU's operations.
    ///
    /// # Panics
    /// When they are not in this process.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        match self.data {
            Data::Host(bytes) => bytes,
            Data::Card(_) | Data::None => {
                unreachable!("the CPU's operations are given the process's own memory")
            }
        }
    }

    /// Where its bytes are, for a card's operations.
    ///
    /// # Panics
    /// When they are not on a card.
    #[must_use]
    pub fn span(&self) -> Span {
        match self.data {
            Data::Card(span) => span,
            Data::Host(_) | Data::None => {
                unreachable!("a card's operations are given its own memory")
            }
        }
    }

    /// All its numbers as `f32`, on the CPU.
    ///
    /// # Panics
    /// When `out` has another length.
    pub fn widen(&self, out: &mut [f32]) {
        self.format.widen(self.bytes(), out);
    }
}
