//! Numbers as multiples of a step, coded to a chosen rate.

use crate::path::Path;

/// Symbols of one row as the numbers they stand for.
pub(crate) fn widen(_path: Path, levels: &[f32; 256], step: f32, symbols: &[u8], out: &mut [f32]) {
    for (out, symbol) in out.iter_mut().zip(symbols) {
        *out = levels[usize::from(*symbol)] * step;
    }
}
