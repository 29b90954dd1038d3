//! How far attention sees.

use std::ops::Range;

/// The keys of its sequence that a position sees.
#[derive(Debug, Clone, Copy)]
pub(super) enum Span {
    All,
    /// Itself and those before it, so many in all.
    Before(usize),
}

impl Span {
    pub(super) fn keys(self, position: usize, length: usize) -> Range<usize> {
        match self {
            Self::All => 0..length,
            Self::Before(window) => (position + 1).saturating_sub(window)..position + 1,
        }
    }
}
