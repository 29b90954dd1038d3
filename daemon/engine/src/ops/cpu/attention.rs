//! Attention by two multiplications with a soft-max between, for a tile of queries at a time.

use std::ops::Range;

use gemm::Parallelism;
use rayon::prelude::*;

use super::{Cpu, scratch::SCRATCH_LEN};
use crate::ops::{Activation, AttentionRange, AttentionShape, KeySegment};

/// Queries in a tile, at most: enough for the kernel, few enough that every thread gets some.
const TILE_QUERIES: usize = 64;

/// One head's queries of one tile.
struct Task<'a> {
    queries: Range<usize>,
    keys: &'a [KeySegment],
    head: usize,
}

impl Cpu {
    /// Attention of ranges that lie inside their matrices.
    pub(in crate::ops) fn attend(
        &self,
        out: &mut Activation,
        q: &Activation,
        k: &Activation,
        v: &Activation,
        shape: AttentionShape,
        ranges: &[AttentionRange],
    ) {
        let mut tasks = Vec::new();
        for range in ranges.iter().filter(|range| !range.queries.is_empty()) {
            let keys = range.key_count();
            assert!(keys <= SCRATCH_LEN, "{keys} keys");
            let step = (SCRATCH_LEN / keys).min(TILE_QUERIES);
            for start in range.queries.clone().step_by(step) {
                let queries = start..range.queries.end.min(start + step);
                tasks.extend((0..shape.heads).map(|head| Task {
                    queries: queries.clone(),
                    keys: &range.keys,
                    head,
                }));
            }
        }
        self.run(|| {
            let target = Target(out.values_mut().as_mut_ptr());
            tasks.par_iter().for_each(|task| {
                self.scratch
                    .with(|scores| attend_tile(task, shape, q, k, v, scores, &target));
            });
        });
    }
}

/// The output matrix, of which each task writes its own rows and columns.
struct Target(*mut f32);

// SAFETY: tasks differ in their rows or their head, so they write disjoint parts.
unsafe impl Sync for Target {}

fn attend_tile(
    task: &Task<'_>,
    shape: AttentionShape,
    q: &Activation,
    k: &Activation,
    v: &Activation,
    scores: &mut [f32],
    target: &Target,
) {
    let rows = task.queries.len();
    let keys: usize = task.keys.iter().map(|segment| segment.len).sum();
    let scores = &mut scores[..rows * keys];
    let dim = shape.head_dim;
    let query_at = task.queries.start * q.width() + task.head * dim;
    let kv_head = task.head * shape.kv_heads / shape.heads;
    let key_at = |segment: &KeySegment| segment.start * k.width() + kv_head * dim;
    let scale = (dim as f32).sqrt().recip();

    let mut column = 0;
    for segment in task.keys {
        // SAFETY: `attend` has checked that the queries and the segment's rows exist and
        // that a head lies within a row; the scores hold `rows * keys` numbers, of which
        // this writes `segment.len` columns from `column` on.
        unsafe {
            gemm::gemm(
                rows,
                segment.len,
                dim,
                scores.as_mut_ptr().add(column),
                1,
                keys as isize,
                false,
                q.values().as_ptr().add(query_at),
                1,
                q.width() as isize,
                k.values().as_ptr().add(key_at(segment)),
                k.width() as isize,
                1,
                0.0,
                scale,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
        column += segment.len;
    }
    for row in scores.chunks_exact_mut(keys) {
        softmax(row);
    }
    column = 0;
    for segment in task.keys {
        // SAFETY: as above; the output has the queries' shape, and no other task writes
        // these rows of this head.
        unsafe {
            gemm::gemm(
                rows,
                dim,
                segment.len,
                target.0.add(query_at),
                1,
                q.width() as isize,
                column > 0,
                scores.as_ptr().add(column),
                1,
                keys as isize,
                v.values().as_ptr().add(key_at(segment)),
                1,
                v.width() as isize,
                1.0,
                1.0,
                false,
                false,
                false,
                Parallelism::None,
            );
        }
        column += segment.len;
    }
}

/// Soft-max of a row, in place.
pub(super) fn softmax(row: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - max).exp();
        sum += *value;
    }
    let inverse = 1.0 / sum;
    for value in row {
        *value *= inverse;
    }
}
