//! By the `gemm` crate, which a tile of the portable [`Microkernel`](crate::cpu::microkernel::Microkernel) is multiplied by,
//! too, and so with the same sums.

use sluice_weights::HEAD_DIM_MAX;

use super::{super::TILE_KEYS, Heads, StoredRows};
use crate::cpu::microkernel::portable::{Operand, multiply};

/// Queries that are multiplied at a time.
const LANES: usize = 4;

/// # Safety
/// As [`Score`](super::Score).
pub(super) unsafe fn score(
    queries: &[f32],
    heads: Heads,
    keys: StoredRows<'_>,
    scores: &mut [f32],
) {
    let mut lanes = [0.0; LANES * HEAD_DIM_MAX];
    let mut own = [0.0; LANES * TILE_KEYS];
    let parts = queries.chunks(LANES * heads.stride);
    for (queries, scores) in parts.zip(scores.chunks_mut(LANES * keys.count)) {
        let count_of_queries = queries.len() / heads.stride;
        for (lane, query) in queries.chunks_exact(heads.stride).enumerate() {
            for (lanes, value) in lanes.chunks_exact_mut(LANES).zip(&query[..heads.dim]) {
                lanes[lane] = *value;
            }
        }
        for from in (0..keys.count).step_by(TILE_KEYS) {
            let count = TILE_KEYS.min(keys.count - from);
            let rows = Operand {
                start: row(keys, from),
                along: 1,
                across: keys.stride / size_of::<f32>(),
            };
            // SAFETY: as the caller says; there are lanes of all elements, and of a score for each key.
            unsafe {
                let lanes = &lanes[..LANES * heads.dim];
                multiply::<LANES>([count_of_queries, count], lanes, rows, &mut own);
            };
            for (lane, scores) in scores.chunks_exact_mut(keys.count).enumerate() {
                for (score, own) in scores[from..][..count]
                    .iter_mut()
                    .zip(own.chunks_exact(LANES))
                {
                    *score = own[lane];
                }
            }
        }
    }
}

/// # Safety
/// As [`Weigh`](super::Weigh).
pub(super) unsafe fn weigh(
    weights: &[f32],
    values: StoredRows<'_>,
    sums: &mut [f32],
    heads: Heads,
) {
    let mut own = [0.0; LANES * HEAD_DIM_MAX];
    let mut lanes = [0.0; LANES * TILE_KEYS];
    assert!(values.count <= TILE_KEYS, "a tile has no more keys");
    let lanes = &mut lanes[..LANES * values.count];
    let parts = weights.chunks(LANES * values.count);
    for (weights, sums) in parts.zip(sums.chunks_mut(LANES * heads.stride)) {
        for (lane, weights) in weights.chunks_exact(values.count).enumerate() {
            for (lanes, weight) in lanes.chunks_exact_mut(LANES).zip(weights) {
                lanes[lane] = *weight;
            }
        }
        let columns = Operand {
            start: row(values, 0),
            along: values.stride / size_of::<f32>(),
            across: 1,
        };
        let queries = weights.len() / values.count;
        // SAFETY: as above.
        unsafe { multiply::<LANES>([queries, heads.dim], lanes, columns, &mut own) };
        for (lane, sums) in sums.chunks_exact_mut(heads.stride).enumerate() {
            for (sum, own) in sums[..heads.dim].iter_mut().zip(own.chunks_exact(LANES)) {
                *sum += own[lane];
            }
        }
    }
}

fn row(rows: StoredRows<'_>, index: usize) -> *const f32 {
    rows.bytes[index * rows.stride..].as_ptr().cast()
}
