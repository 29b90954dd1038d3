//! How the rows of a tensor are rotated.

use std::sync::Arc;

use sluice_weights::RopePairs;

/// Positions, and how rotary position embedding turns heads at them.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// The position of each row.
    pub positions: Arc<[usize]>,
    /// Heads in a row.
    pub heads: usize,
    /// The base of the frequencies.
    pub theta: f64,
    /// Which elements of a head turn together.
    pub pairs: RopePairs,
}
