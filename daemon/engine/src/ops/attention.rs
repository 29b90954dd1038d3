//! Attention of query rows to segments of key rows, in tiles: scores exist for a few
//! queries at a time, never for a whole canvas.

use std::ops::Range;

use gemm::Parallelism;
use rayon::prelude::*;

use super::{Activation, Ops, scratch::SCRATCH_LEN};
use crate::error::EngineError;

/// Consecutive key and value rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySegment {
    /// First row.
    pub start: usize,
    /// Rows.
    pub len: usize,
}

/// Query rows and what they attend to. Packed canvases and guidance branches are each a
/// range of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionRange {
    /// Rows of the queries.
    pub queries: Range<usize>,
    /// Rows of keys and values that all of them see.
    pub keys: Vec<KeySegment>,
}

/// How rows are made up of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
}

/// Queries in a tile, at most: enough for the kernel, few enough that every thread gets some.
const TILE_QUERIES: usize = 64;

/// One head's queries of one tile.
struct Task<'a> {
    queries: Range<usize>,
    keys: &'a [KeySegment],
    head: usize,
}

impl Ops {
    /// `softmax(q · kᵀ / √head_dim) · v` for each head; rows of the result are those of `q`.
    ///
    /// # Errors
    /// When memory can't be had.
    ///
    /// # Panics
    /// When a range lies outside, or sees more keys than a thread's scratch holds scores.
    pub fn attend(
        &self,
        q: &Activation,
        k: &Activation,
        v: &Activation,
        shape: AttentionShape,
        ranges: &[AttentionRange],
    ) -> Result<Activation, EngineError> {
        assert_eq!(q.width(), shape.heads * shape.head_dim);
        assert_eq!(k.width(), shape.kv_heads * shape.head_dim);
        assert_eq!(v.width(), k.width());
        let mut tasks = Vec::new();
        for range in ranges {
            assert!(range.queries.end <= q.len());
            for segment in &range.keys {
                assert!(segment.start + segment.len <= k.len().min(v.len()));
            }
            let keys: usize = range.keys.iter().map(|segment| segment.len).sum();
            assert!(keys > 0 && keys <= SCRATCH_LEN, "{keys} keys");
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
        let mut out = self.pool.take(q.len(), q.width())?;
        self.device.run(|| {
            let target = Target(out.values_mut().as_mut_ptr());
            tasks.par_iter().for_each(|task| {
                self.scratch
                    .with(|scores| attend_tile(task, shape, q, k, v, scores, &target));
            });
        });
        Ok(out)
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

fn softmax(row: &mut [f32]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{device::Device, ledger::Ledger, ops::Noise};

    fn filled(ops: &Ops, rows: usize, width: usize, seed: u64) -> Activation {
        let noise = Noise::new(seed);
        let mut out = ops.pool.take(rows, width).unwrap();
        for (i, value) in out.values_mut().iter_mut().enumerate() {
            *value = noise.uniform(0, i as u64, 0) as f32 * 4.0 - 2.0;
        }
        out
    }

    /// A plain `f64` attention of one query to a list of key rows.
    fn plain(
        q: &[f32],
        k: &Activation,
        v: &Activation,
        rows: &[usize],
        offset: usize,
        dim: usize,
    ) -> Vec<f64> {
        let scores: Vec<f64> = rows
            .iter()
            .map(|&row| {
                let key = &k.row(row)[offset..offset + dim];
                let dot: f64 = q.iter().zip(key).map(|(a, b)| f64::from(a * b)).sum();
                (dot / (dim as f64).sqrt()).exp()
            })
            .collect();
        let total: f64 = scores.iter().sum();
        (0..dim)
            .map(|i| {
                let weighted = rows
                    .iter()
                    .zip(&scores)
                    .map(|(&row, score)| score * f64::from(v.row(row)[offset + i]));
                weighted.sum::<f64>() / total
            })
            .collect()
    }

    #[test]
    fn grouped_heads_and_separate_segments() {
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let shape = AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 10,
        };
        let q = filled(&ops, 150, 40, 1);
        let k = filled(&ops, 200, 20, 2);
        let v = filled(&ops, 200, 20, 3);
        let ranges = [
            AttentionRange {
                queries: 0..100,
                keys: vec![
                    KeySegment { start: 0, len: 7 },
                    KeySegment { start: 50, len: 60 },
                ],
            },
            AttentionRange {
                queries: 100..150,
                keys: vec![KeySegment {
                    start: 120,
                    len: 80,
                }],
            },
        ];
        let out = ops.attend(&q, &k, &v, shape, &ranges).unwrap();
        for range in &ranges {
            let rows: Vec<usize> = range
                .keys
                .iter()
                .flat_map(|segment| segment.start..segment.start + segment.len)
                .collect();
            for query in range.queries.clone() {
                for head in 0..4 {
                    let row = &q.row(query)[head * 10..][..10];
                    let expected = plain(row, &k, &v, &rows, head / 2 * 10, 10);
                    let found = &out.row(query)[head * 10..][..10];
                    for (found, expected) in found.iter().zip(expected) {
                        assert!((f64::from(*found) - expected).abs() < 1e-5);
                    }
                }
            }
        }
    }
}
