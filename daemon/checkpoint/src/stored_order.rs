//! The order in which a file stores a tensor's elements, where it isn't the engine's: elements are put in order while
//! they are read, and none is computed.

mod interleaved;
mod transposed;

use std::ops::Range;

pub(super) use self::{interleaved::Interleaved, transposed::Transposed};
use super::CheckpointError;

/// A stored order of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredOrder {
    /// Row after row, as the engine has it.
    Rows,
    /// Rows of the two halves of each head alternate.
    Interleaved(Interleaved),
    /// Column after column.
    Transposed(Transposed),
}

impl StoredOrder {
    /// Fills `out` with bytes `part` of the tensor in order; `read` reads bytes as they are stored.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(super) fn read(
        &self,
        part: Range<u64>,
        out: &mut [u8],
        read: impl Fn(Range<u64>, &mut [u8]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        match self {
            Self::Rows => read(part, out),
            Self::Interleaved(halves) => halves.read(part, out, read),
            Self::Transposed(columns) => columns.read(part, out, read),
        }
    }

    /// Whether the bytes of a part are stored in its place, so that [`Self::sort`] can put them in order there.
    pub(super) fn is_in_place(&self, part: &Range<u64>) -> bool {
        match self {
            Self::Rows => true,
            Self::Interleaved(halves) => halves.is_whole(part),
            Self::Transposed(_) => false,
        }
    }

    /// Puts the stored bytes of such a part in order.
    pub(super) fn sort(&self, bytes: &mut [u8]) {
        match self {
            Self::Rows => {}
            Self::Interleaved(halves) => halves.sort(bytes),
            Self::Transposed(_) => unreachable!("a part of columns is nowhere in place"),
        }
    }
}
