//! Attention of query rows to keys and values of the same pass, or to a KV cache: in tiles with a running softmax, so
//! that scores exist for a few queries and keys at a time, never for a whole canvas.

use std::ops::Range;

use sluice_cuda::{ATTEND_QUERIES, AttentionSegment, AttentionTask};

use super::{Activation, AttentionShape, Backend, KvCache, Ops, Phase, activation::Indices};
use crate::OpsError;

/// Consecutive key and value rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySegment {
    /// The first row of the segment.
    pub start: usize,
    /// How many rows it has.
    pub len: usize,
}

/// Rows of a pass that were written to consecutive positions of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassRun {
    /// The rows.
    pub rows: Range<usize>,
    /// The position of the first one.
    pub start: usize,
}

/// Query rows and what they attend to. Each canvas of a batch and each guidance branch is a range of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionRange {
    /// Rows of the queries in the pass.
    pub queries: Range<usize>,
    /// Keys and values that these queries see.
    pub keys: AttentionKeys,
}

/// Keys and values that queries see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttentionKeys {
    /// Rows of this pass, the same for all of the queries.
    Pass(Vec<KeySegment>),
    /// Rows of this pass, which are the queries' own: each sees so many up to itself.
    PassWindow {
        /// The rows.
        rows: Range<usize>,
        /// Most rows that a query sees.
        window: usize,
    },
    /// Places of a cache, the same for all of the queries.
    Cached {
        /// Which of the pass's caches.
        cache: usize,
        /// Positions in that cache, as segments of rows.
        segments: Vec<KeySegment>,
        /// Which positions hold rows of this pass. On the CPU these are read as they were computed, so that only what
        /// earlier passes have left is rounded.
        own: Vec<PassRun>,
    },
    /// Autoregressive: the positions of a cache up to and including each query's own, as far as its window reaches.
    Causal {
        /// Which of the pass's caches.
        cache: usize,
        /// The queries' own positions, one for each query.
        positions: Vec<usize>,
        /// Rows of this pass among the positions. They are read where the cache keeps the latest in more bits, rounded
        /// by [`Ops::round_recent`].
        own: Option<PassRun>,
    },
}

/// Where keys and values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeySource {
    /// This pass, of whose rows a query with a place of its own sees so many.
    Pass {
        window: Option<usize>,
    },
    Cache(usize),
}

impl AttentionKeys {
    fn source(&self) -> KeySource {
        match self {
            Self::Pass(_) => KeySource::Pass { window: None },
            Self::PassWindow { window, .. } => KeySource::Pass {
                window: Some(*window),
            },
            Self::Cached { cache, .. } | Self::Causal { cache, .. } => KeySource::Cache(*cache),
        }
    }

    /// The least number of key rows that the source must have.
    fn end(&self) -> usize {
        match self {
            Self::Pass(segments) | Self::Cached { segments, .. } => {
                let ends = segments.iter().map(|segment| segment.start + segment.len);
                ends.max().unwrap_or(0)
            }
            Self::PassWindow { rows, .. } => rows.end,
            Self::Causal {
                positions: places, ..
            } => places.iter().max().map_or(0, |last| last + 1),
        }
    }
}

/// Keys and values of a layer: of the rows of this pass, where queries see those, and what caches hold.
#[derive(Clone, Copy)]
pub struct KeyRows<'a> {
    /// Keys and values of this pass; `None` where no query sees them.
    pub pass: Option<[&'a Activation; 2]>,
    /// The pass's KV caches, by the index that [`AttentionKeys`] names.
    pub caches: &'a [&'a KvCache],
    /// The layer whose rows of the caches are read.
    pub layer: usize,
}

/// Ranges as the device takes them.
pub struct AttentionTasks {
    ranges: Vec<AttentionRange>,
    on_gpu: Option<GpuTasks>,
}

/// Words of a task on a GPU: the size of `AttentionTask`, which is asserted below.
const TASK_WORDS: usize = 6;

/// Segments to allow for in each range: those before and after a gap, and one row more.
const SEGMENTS_USUAL: usize = 3;

/// The tasks on a GPU: six words a task, two a segment.
pub(super) struct GpuTasks {
    pub(super) tasks: Indices,
    pub(super) segments: Indices,
    /// Tasks that see the same memory are launched together.
    launches: Vec<(KeySource, Range<usize>)>,
}

/// Whether no query is in two ranges: tasks write the output's rows at the same time.
fn are_disjoint(ranges: &[AttentionRange]) -> bool {
    let mut queries: Vec<_> = (ranges.iter())
        .map(|range| (range.queries.start, range.queries.end))
        .filter(|(start, end)| start < end)
        .collect();
    queries.sort_unstable();
    queries.windows(2).all(|pair| pair[0].1 <= pair[1].0)
}

/// Runs of queries at consecutive positions, each as long as a task may be.
fn runs(places: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (query, &place) in places.iter().enumerate() {
        match runs.last_mut() {
            // Only consecutive positions share a task: its causal mask is computed from the first position and the
            // index alone.
            Some(run) if run.len() < ATTEND_QUERIES && places[query - 1] + 1 == place => {
                run.end = query + 1;
            }
            _ => runs.push(query..query + 1),
        }
    }
    runs
}

impl Ops {
    /// Makes ranges ready for [`Ops::attend`].
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When a range sees no keys, not each of its queries has a place, or two ranges share a query.
    pub fn attention_tasks(&self, ranges: Vec<AttentionRange>) -> Result<AttentionTasks, OpsError> {
        assert!(are_disjoint(&ranges), "a query has one row of output");
        for AttentionRange { queries, keys } in &ranges {
            assert!(queries.is_empty() || keys.end() > 0);
            match keys {
                AttentionKeys::Causal { positions, .. } => {
                    assert_eq!(positions.len(), queries.len());
                }
                AttentionKeys::PassWindow { rows, .. } => assert_eq!(rows, queries),
                AttentionKeys::Pass(_) | AttentionKeys::Cached { .. } => {}
            }
        }
        let on_card = match self.device.is_gpu() {
            true => Some(self.gpu_tasks(&ranges)?),
            false => None,
        };
        Ok(AttentionTasks {
            ranges,
            on_gpu: on_card,
        })
    }

    fn gpu_tasks(&self, ranges: &[AttentionRange]) -> Result<GpuTasks, OpsError> {
        let (mut tasks, mut segments) = (Vec::new(), Vec::new());
        let mut launches: Vec<(KeySource, Range<usize>)> = Vec::new();
        // Tasks and groups of segments that the ranges can lead to, whatever the queries see.
        let mut room = 0;
        for AttentionRange { queries, keys } in ranges {
            let first = tasks.len() / TASK_WORDS;
            let own_segments = segments.len() / 2;
            match keys {
                AttentionKeys::Pass(shared)
                // Ranges of one source share a launch; a task points at its range's segments, which are stored once.
                | AttentionKeys::Cached {
                    segments: shared, ..
                } => {
                    for start in queries.clone().step_by(ATTEND_QUERIES) {
                        let count = ATTEND_QUERIES.min(queries.end - start);
                        tasks.extend([start, count, own_segments, shared.len(), 0, 0]);
                    }
                    segments.extend(shared.iter().flat_map(|keys| [keys.start, keys.len]));
                    room += 1;
                }
                AttentionKeys::PassWindow { rows, .. } => {
                    for start in rows.clone().step_by(ATTEND_QUERIES) {
                        let count = ATTEND_QUERIES.min(rows.end - start);
                        tasks.extend([start, count, own_segments, 1, 1, start]);
                    }
                    segments.extend([rows.start, rows.len()]);
                    room += 1;
                }
                AttentionKeys::Causal {
                    positions: places, ..
                } if places.is_empty() => {}
                AttentionKeys::Causal {
                    positions: places, ..
                } => {
                    // The last ones see the most keys: they begin first, so that no block is left to run alone at the
                    // end of the launch.
                    for run in runs(places).into_iter().rev() {
                        let (query, place) = (queries.start + run.start, places[run.start]);
                        tasks.extend([query, run.len(), own_segments, 1, 1, place]);
                    }
                    segments.extend([0, keys.end()]);
                    // Positions may all be isolated, so each query may become a task of its own.
                    room += queries.len();
                }
            }
            let these = first..tasks.len() / TASK_WORDS;
            // Tasks are in the order of ranges, and only neighbours are merged: the launch's tasks must lie next to
            // each other.
            match launches.last_mut() {
                Some((source, all)) if *source == keys.source() => all.end = these.end,
                _ => launches.push((keys.source(), these)),
            }
        }
        const {
            assert!(
                size_of::<AttentionTask>() == 4 * TASK_WORDS && size_of::<AttentionSegment>() == 8
            );
        };
        // Sized for the most tasks that so many queries in so many ranges can become, whatever they see: a dry run
        // knows only these sums, and must come to the same size.
        let queries: usize = ranges.iter().map(|range| range.queries.len()).sum();
        let task_numbers = (room + queries / ATTEND_QUERIES) * TASK_WORDS;
        Ok(GpuTasks {
            tasks: self.indices_in(task_numbers, tasks)?,
            segments: self.indices_in(room * 2 * SEGMENTS_USUAL, segments)?,
            launches,
        })
    }

    /// `softmax(q · kᵀ / √head_dim) · v` for each head; rows of the result are those of `q`. Cached keys that queries
    /// see must have been written before, those of this pass too.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When widths differ, or a range lies outside.
    pub fn attend(
        &self,
        q: &Activation,
        keys: &KeyRows<'_>,
        shape: AttentionShape,
        tasks: &AttentionTasks,
    ) -> Result<Activation, OpsError> {
        assert_eq!(q.width(), shape.heads * shape.head_dim);
        for range in &tasks.ranges {
            assert!(range.queries.end <= q.len());
            let rows = match range.keys.source() {
                KeySource::Pass { .. } => {
                    let [k, v] = keys.pass.expect("queries see rows of this pass");
                    assert_eq!(k.width(), shape.kv_heads * shape.head_dim);
                    assert_eq!(v.width(), k.width());
                    k.len().min(v.len())
                }
                KeySource::Cache(index) => {
                    let cache = keys.caches[index];
                    assert_eq!(cache.shape().kv_heads, shape.kv_heads);
                    assert_eq!(cache.shape().head_dim, shape.head_dim);
                    match cache.shape().window {
                        // Positions take turns in it.
                        Some(_) => usize::MAX,
                        None => cache.capacity(),
                    }
                }
            };
            assert!(range.keys.end() <= rows);
        }
        let _timed = self.timed(Phase::Attention);
        let mut out = self.pool.take(q.len(), q.width(), q.dtype())?;
        match &self.backend {
            Backend::Cpu(cpu) => cpu.attend(&mut out, q, keys, shape, &tasks.ranges),
            Backend::Gpu(gpu) => {
                let on_gpu = tasks.on_gpu.as_ref();
                let on_gpu = on_gpu.expect("made for operations of a GPU");
                // A launch takes one matrix of keys and one of values, so each cache needs its own.
                for (source, these) in &on_gpu.launches {
                    let (spans, window) = match *source {
                        KeySource::Pass { window } => {
                            (keys.pass.map(|rows| rows.map(Activation::span)), window)
                        }
                        KeySource::Cache(index) => {
                            let cache = keys.caches[index];
                            (Some(cache.spans(keys.layer)), cache.shape().window)
                        }
                    };
                    let spans = spans.expect("queries see what there is");
                    gpu.attend(&out, q, (spans, window), shape, on_gpu, these.clone())?;
                }
            }
            Backend::DryRun => {}
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {

    use sluice_formats::{DType, noise::Noise};
    use sluice_machine::{GpuProfile, Profile};

    use super::*;
    use crate::{device::Device, ledger::Ledger};

    fn filled(ops: &Ops, rows: usize, width: usize, seed: u64) -> Activation {
        let noise = Noise::new(seed);
        let mut out = ops.pool.take(rows, width, DType::F32).unwrap();
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
    fn queries_share_a_task_while_their_places_follow_one_another() {
        let most = ATTEND_QUERIES;
        assert!(runs(&[]).is_empty());
        let prompt: Vec<_> = (5..5 + 2 * most + 1).collect();
        let whole = [0..most, most..2 * most, 2 * most..2 * most + 1];
        assert_eq!(runs(&prompt), whole);
        assert_eq!(runs(&[3, 4, 6, 5, 6, 6]), [0..2, 2..3, 3..5, 5..6]);
    }

    /// A dry run knows how many queries and ranges there are, not how places lie.
    #[test]
    fn tasks_take_the_same_memory_wherever_queries_stand() {
        let profile = Profile {
            gpu: Some(GpuProfile {
                total_bytes: 1 << 40,
                dtype: DType::F32,
                context_bytes: 0,
                workspace_bytes: 0,
            }),
            ..Profile::cpu(1)
        };
        let bytes = |places: Vec<usize>| {
            let ops = Ops::new(Device::dry_run(profile), Ledger::dry_run()).unwrap();
            ops.reserve(0).unwrap();
            let keys = AttentionKeys::Causal {
                cache: 0,
                positions: places,
                own: None,
            };
            let queries = 0..200;
            let tasks = ops.attention_tasks(vec![AttentionRange { queries, keys }]);
            drop(tasks.unwrap());
            ops.activation_bytes()
        };
        let together = bytes((50..250).collect());
        assert_eq!(bytes((0..200).map(|query| 2 * query).collect()), together);
    }

    /// Few queries and many, to keys of several tiles.
    #[test]
    fn grouped_heads_and_separate_segments() {
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let all = [
            (0..300, vec![(0, 7), (50, 560)]),
            (300..350, vec![(120, 80)]),
            (350..351, vec![(199, 1)]),
            (351..355, vec![(0, 620)]),
        ];
        for (heads, kv_heads, dim) in [(4, 2, 10), (3, 3, 64), (6, 1, 130), (1, 1, 1024)] {
            let shape = AttentionShape {
                heads,
                kv_heads,
                head_dim: dim,
                is_scaled: true,
            };
            let q = filled(&ops, 355, heads * dim, 1);
            let k = filled(&ops, 620, kv_heads * dim, 2);
            let v = filled(&ops, 620, kv_heads * dim, 3);
            let ranges = all.iter().map(|(queries, keys)| AttentionRange {
                queries: queries.clone(),
                keys: AttentionKeys::Pass(
                    keys.iter()
                        .map(|&(start, len)| KeySegment { start, len })
                        .collect(),
                ),
            });
            let tasks = ops.attention_tasks(ranges.collect()).unwrap();
            let keys = KeyRows {
                pass: Some([&k, &v]),
                caches: &[],
                layer: 0,
            };
            let out = ops.attend(&q, &keys, shape, &tasks).unwrap();
            for (queries, keys) in &all {
                let rows: Vec<usize> = keys
                    .iter()
                    .flat_map(|&(start, len)| start..start + len)
                    .collect();
                // Every seventh and the last: the plain sum takes its time.
                let checked = queries.clone().step_by(7).chain([queries.end - 1]);
                for (query, head) in
                    checked.flat_map(|query| (0..heads).map(move |head| (query, head)))
                {
                    let row = &q.row(query)[head * dim..][..dim];
                    let offset = head / (heads / kv_heads) * dim;
                    let expected = plain(row, &k, &v, &rows, offset, dim);
                    let found = &out.row(query)[head * dim..][..dim];
                    for (found, expected) in found.iter().zip(expected) {
                        let difference = (f64::from(*found) - expected).abs();
                        assert!(difference < 2e-5, "{difference}: query {query}, {shape:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn ranges_that_share_a_query_are_found() {
        let range = |queries| AttentionRange {
            queries,
            keys: AttentionKeys::Pass(Vec::new()),
        };
        let are_disjoint = |all: &[Range<usize>]| {
            are_disjoint(&all.iter().cloned().map(range).collect::<Vec<_>>())
        };
        assert!(are_disjoint(&[4..6, 0..4, 2..2, 6..7]));
        assert!(!are_disjoint(&[0..4, 3..5]));
        assert!(!are_disjoint(&[1..2, 0..9]));
    }
}
