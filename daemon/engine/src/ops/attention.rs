//! Attention of query rows to segments of key rows, in tiles: scores exist for a few queries at a time, never for a whole
//! canvas.

use std::ops::Range;

use sluice_cuda::{ATTEND_QUERIES, Segment, Task};

use super::{Activation, Body, Ops, activation::Indices};
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

impl AttentionRange {
    /// Keys that each query sees.
    pub(super) fn key_count(&self) -> usize {
        self.keys.iter().map(|segment| segment.len).sum()
    }
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

/// Ranges as the device takes them.
pub struct AttentionTasks {
    ranges: Vec<AttentionRange>,
    on_card: Option<CardTasks>,
}

/// Numbers of a task on a card.
pub(super) const TASK_NUMBERS: usize = 4;

/// The same on a card: four numbers a task, two a segment.
pub(super) struct CardTasks {
    pub(super) tasks: Indices,
    pub(super) segments: Indices,
}

impl AttentionTasks {
    pub(super) fn on_card(&self) -> &CardTasks {
        let tasks = self.on_card.as_ref();
        tasks.expect("made for a card's operations")
    }
}

impl Ops {
    /// Makes ranges ready for [`Ops::attend`].
    ///
    /// # Errors
    /// When memory can't be had.
    ///
    /// # Panics
    /// When a range sees no keys.
    pub fn attention_tasks(
        &self,
        ranges: Vec<AttentionRange>,
    ) -> Result<AttentionTasks, EngineError> {
        assert!(
            ranges
                .iter()
                .all(|range| range.queries.is_empty() || range.key_count() > 0)
        );
        let on_card = match self.device.is_card() {
            true => Some(self.card_tasks(&ranges)?),
            false => None,
        };
        Ok(AttentionTasks { ranges, on_card })
    }

    fn card_tasks(&self, ranges: &[AttentionRange]) -> Result<CardTasks, EngineError> {
        let (mut tasks, mut segments) = (Vec::new(), Vec::new());
        for range in ranges {
            for start in range.queries.clone().step_by(ATTEND_QUERIES) {
                let count = ATTEND_QUERIES.min(range.queries.end - start);
                tasks.extend([start, count, segments.len() / 2, range.keys.len()]);
            }
            segments.extend(range.keys.iter().flat_map(|keys| [keys.start, keys.len]));
        }
        const { assert!(size_of::<Task>() == 4 * TASK_NUMBERS && size_of::<Segment>() == 8) };
        // As many tasks as these queries may be, however they are shared out among so many ranges: a rehearsal knows sums.
        let queries: usize = ranges.iter().map(|range| range.queries.len()).sum();
        let room = (ranges.len() + queries / ATTEND_QUERIES) * TASK_NUMBERS;
        Ok(CardTasks {
            tasks: self.indices_in(room, tasks)?,
            segments: self.indices(segments)?,
        })
    }

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
        tasks: &AttentionTasks,
    ) -> Result<Activation, EngineError> {
        assert_eq!(q.width(), shape.heads * shape.head_dim);
        assert_eq!(k.width(), shape.kv_heads * shape.head_dim);
        assert_eq!(v.width(), k.width());
        for range in &tasks.ranges {
            assert!(range.queries.end <= q.len());
            for segment in &range.keys {
                assert!(segment.start + segment.len <= k.len().min(v.len()));
            }
        }
        let mut out = self.pool.take(q.len(), q.width(), q.number())?;
        match &self.body {
            Body::Cpu(cpu) => cpu.attend(&mut out, q, k, v, shape, &tasks.ranges),
            Body::Card(card) => card.attend(&out, q, k, v, shape, tasks.on_card())?,
            Body::Rehearsal => {}
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use sluice_cuda::Number;

    use super::*;
    use crate::{device::Device, ledger::Ledger, ops::Noise};

    fn filled(ops: &Ops, rows: usize, width: usize, seed: u64) -> Activation {
        let noise = Noise::new(seed);
        let mut out = ops.pool.take(rows, width, Number::F32).unwrap();
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
        let ranges = vec![
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
        let tasks = ops.attention_tasks(ranges.clone()).unwrap();
        let out = ops.attend(&q, &k, &v, shape, &tasks).unwrap();
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
