//! Weights as computing sees them.

use sluice_cuda::Span;

use crate::{
    checkpoint::CodedTensor,
    format::{Dots, Format},
};

/// A matrix or vector of weights, where it lies.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// How its numbers are stored; of coded ones, what they are decoded to.
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
    /// In this process, coded.
    Coded(CodedRows<'a>),
    /// On a card.
    Card(Span),
    /// Nowhere: a rehearsal.
    None,
}

/// Rows of a tensor as they are coded.
#[derive(Debug, Clone, Copy)]
pub struct CodedRows<'a> {
    /// The tensor.
    pub tensor: &'a CodedTensor,
    /// Coded bytes of some of it, with these rows among them.
    pub bytes: &'a [u8],
    /// Where those begin, from the tensor's first byte on.
    pub base: u64,
    /// The first of the rows, in the tensor.
    pub first_row: usize,
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
                Data::Coded(coded) => Data::Coded(CodedRows {
                    first_row: coded.first_row + from,
                    ..coded
                }),
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
            Data::Coded(_) | Data::Card(_) | Data::None => {
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
            Data::Host(_) | Data::Coded(_) | Data::None => {
                unreachable!("a card's operations are given its own memory")
            }
        }
    }

    /// All its numbers as `f32`, on the CPU.
    ///
    /// # Panics
    /// When `out` has another length, or coded bytes were not checked when they were read.
    pub fn widen(&self, out: &mut [f32]) {
        match self.data {
            Data::Coded(coded) => {
                let rows = coded.first_row..coded.first_row + self.rows;
                let widened = coded.tensor.widen(coded.bytes, coded.base, &rows, out);
                widened.expect("coded bytes are checked when they are read");
            }
            _ => self.format.widen(self.bytes(), out),
        }
    }

    /// Its numbers where they are `f32` and lie so, on the CPU.
    #[must_use]
    pub fn as_f32(&self) -> Option<&'a [f32]> {
        match self.data {
            Data::Host(bytes) => self.format.as_f32(bytes),
            _ => None,
        }
    }

    /// The kernel for one row of input, where the numbers lie as it takes them.
    #[must_use]
    pub fn dots(&self) -> Option<Dots> {
        match self.data {
            Data::Coded(_) => None,
            _ => self.format.dots(),
        }
    }
}
