//! Sequences of different lengths in one tensor, without padding.

use std::{ops::Range, sync::Arc};

/// How the rows of a tensor divide into sequences, which lie end to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    lengths: Arc<[usize]>,
}

impl Pack {
    /// Sequences of these lengths, in this order.
    #[must_use]
    pub fn new(lengths: impl Into<Arc<[usize]>>) -> Self {
        Self {
            lengths: lengths.into(),
        }
    }

    /// Rows in all sequences together.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Length of the longest sequence.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// The rows of each sequence.
    pub fn sequences(&self) -> impl Iterator<Item = Range<usize>> {
        self.lengths.iter().scan(0, |start, length| {
            let rows = *start..*start + length;
            *start = rows.end;
            Some(rows)
        })
    }

    /// The place of each row in its sequence.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.lengths.iter().flat_map(|length| 0..*length)
    }
}
