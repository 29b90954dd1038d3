//! Attention by tiles of keys with a running soft-max: two multiplications for each tile, and between them what earlier tiles
//! came to is scaled to the new largest score. Keys that are stored as `f32` are multiplied where they lie; others are widened
//! a tile at a time, for one key head and all queries of a task that share it.
//!
//! The running soft-max is that of Milakov and Gimelshein (arXiv 1805.02867), in tiles as FlashAttention has it.

use std::ops::Range;

use gemm::Parallelism;
use rayon::prelude::*;

use super::{Cpu, exp, scratch::SCRATCH_LEN};
use crate::{
    format::Format,
    model::HEAD_DIM_MAX,
    ops::{
        Activation, AttentionRange, AttentionShape, CacheShape, KeyRows, KeySegment, Keys, KvCache,
    },
};

/// Keys in a tile: with heads of 128, a quarter of a second-level cache.
const TILE_KEYS: usize = 256;
/// Queries in a task, at most: enough for the kernel, few enough that every thread gets some.
const TILE_QUERIES: usize = 64;
/// Rows of a task, at most, where several heads share keys.
const TASK_ROWS: usize = 512;
/// Tasks for each thread, at least, where heads can be taken apart.
const TASKS: usize = 4;

/// There is room for a tile of keys and one of values, for scores, and for a largest score and a sum a row. Whole blocks are
/// no longer than the longest head, which is a multiple of each.
const _: () = assert!(
    TILE_KEYS * HEAD_DIM_MAX + TASK_ROWS * (TILE_KEYS + 2) <= SCRATCH_LEN
        && TILE_QUERIES <= TASK_ROWS
);

/// Some query heads of some queries, all of which read one key head.
struct Task<'a> {
    queries: Range<usize>,
    kv_head: usize,
    heads: Range<usize>,
    segments: &'a [KeySegment],
    /// Of each query how many keys it sees, counted over the segments; all of them where it isn't said.
    seen: Option<&'a [usize]>,
    source: Source<'a>,
}

/// Where keys and values lie: rows of heads, as they are stored.
#[derive(Clone, Copy)]
struct Source<'a> {
    rows: [&'a [u8]; 2],
    shape: CacheShape,
}

impl Source<'_> {
    /// The task's key head of some rows: where the first begins, and from one to the next in numbers. What isn't `f32` is
    /// widened into the tile.
    fn tile(
        &self,
        which: usize,
        kv_head: usize,
        rows: Range<usize>,
        tile: &mut [f32],
    ) -> (*const f32, usize) {
        let CacheShape {
            kv_heads, format, ..
        } = self.shape;
        let head = self.shape.head_bytes();
        let at = |row: usize| (row * kv_heads + kv_head) * head;
        let bytes = &self.rows[which][..at(rows.end - 1) + head];
        if format == Format::F32 {
            let values: &[f32] = bytemuck::cast_slice(bytes);
            let stored = self.shape.stored_dim();
            let start = at(rows.start) / size_of::<f32>();
            return (values[start..].as_ptr(), kv_heads * stored);
        }
        let stored = self.shape.stored_dim();
        for (row, out) in rows.zip(tile.chunks_exact_mut(stored)) {
            format.widen(&bytes[at(row)..at(row) + head], out);
        }
        (tile.as_ptr(), stored)
    }
}

impl Cpu {
    /// Puts these rows of `x` into a cache's room for as many, as such rows are stored there.
    pub(in crate::ops) fn store_rows(
        &self,
        shape: &CacheShape,
        x: &Activation,
        rows: Range<usize>,
        room: &mut [u8],
    ) {
        let row_bytes = room.len() / rows.len().max(1);
        self.run(|| {
            room.par_chunks_exact_mut(row_bytes.max(1))
                .enumerate()
                .for_each(|(index, room)| store_row(shape, x.row(rows.start + index), room));
        });
    }

    /// Attention of ranges that lie inside their matrices.
    pub(in crate::ops) fn attend(
        &self,
        out: &mut Activation,
        q: &Activation,
        keys: &KeyRows<'_>,
        shape: AttentionShape,
        ranges: &[AttentionRange],
    ) {
        let sources: Vec<_> = (keys.caches.iter())
            .map(|cache| Source {
                rows: [0, 1].map(|which| cache.rows(keys.layer, which)),
                shape: cache.shape(),
            })
            .collect();
        let pass = keys.pass.map(|rows| Source {
            rows: rows.map(|rows| bytemuck::cast_slice(rows.values())),
            shape: CacheShape {
                layers: 1,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                format: Format::F32,
            },
        });
        let ranges: Vec<_> = (ranges.iter())
            .filter(|range| !range.queries.is_empty())
            .map(|range| Seen::new(range, pass, &sources))
            .collect();
        let step = heads_step(shape, &ranges, self.device.threads());
        let tasks: Vec<_> = (ranges.iter())
            .flat_map(|range| range.tasks(shape, step))
            .collect();
        self.run(|| {
            let target = Target(out.values_mut().as_mut_ptr());
            tasks.par_iter().for_each(|task| {
                self.scratch
                    .with(|scratch| attend(task, shape, q, scratch, &target));
            });
        });
    }
}

impl Cpu {
    /// What these queries pay attention to of these places, summed over the queries: a row for each head.
    #[expect(
        clippy::too_many_arguments,
        reason = "where the sums go, and what an attention is of"
    )]
    pub(in crate::ops) fn salience(
        &self,
        sums: &mut Activation,
        cache: &KvCache,
        layer: usize,
        q: &Activation,
        queries: Range<usize>,
        shape: AttentionShape,
        places: &[Range<usize>],
    ) {
        let source = Source {
            rows: [0, 1].map(|which| cache.rows(layer, which)),
            shape: cache.shape(),
        };
        let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        let scale = (dim as f32).sqrt().recip();
        self.run(|| {
            // One query at a time: this happens once a block.
            sums.par_rows_mut().enumerate().for_each(|(head, sums)| {
                self.scratch.with(|scratch| {
                    let (scores, tile) = scratch.split_at_mut(sums.len());
                    sums.fill(0.0);
                    for query in queries.clone() {
                        let query = &q.row(query)[head * dim..][..dim];
                        let mut before = 0;
                        for place in places.iter().flat_map(tiles) {
                            let count = place.len();
                            let (start, stride) = source.tile(0, head / group, place, tile);
                            for (index, score) in scores[before..][..count].iter_mut().enumerate() {
                                // SAFETY: the tile has `count` rows of at least `dim` numbers, `stride` apart.
                                let key = unsafe {
                                    std::slice::from_raw_parts(start.add(index * stride), dim)
                                };
                                let dot: f32 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                                *score = dot * scale;
                            }
                            before += count;
                        }
                        let most = exp::max(scores);
                        let inverse = 1.0 / exp::exp_sum(scores, most);
                        for (sum, score) in sums.iter_mut().zip(&*scores) {
                            *sum += score * inverse;
                        }
                    }
                });
            });
        });
    }
}

/// Parts of a range that a tile holds.
fn tiles(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range
        .clone()
        .step_by(TILE_KEYS)
        .map(move |start| start..end.min(start + TILE_KEYS))
}

/// A range, and what its queries see.
struct Seen<'a> {
    queries: Range<usize>,
    segments: Vec<KeySegment>,
    seen: Option<Vec<usize>>,
    source: Source<'a>,
}

impl<'a> Seen<'a> {
    fn new(range: &AttentionRange, pass: Option<Source<'a>>, caches: &[Source<'a>]) -> Self {
        let (segments, seen, source) = match &range.keys {
            Keys::Pass(segments) => (segments.clone(), None, pass.expect("rows were checked")),
            Keys::Kept { cache, segments } => (segments.clone(), None, caches[*cache]),
            Keys::Causal { cache, places } => {
                let seen: Vec<_> = places.iter().map(|place| place + 1).collect();
                let len = seen.iter().copied().max().unwrap_or(0);
                let all = vec![KeySegment { start: 0, len }];
                (all, Some(seen), caches[*cache])
            }
        };
        Self {
            queries: range.queries.clone(),
            segments,
            seen,
            source,
        }
    }

    /// Its tasks, with so many of the heads that share keys in each.
    fn tasks(&self, shape: AttentionShape, step: usize) -> impl Iterator<Item = Task<'_>> {
        let group = shape.heads / shape.kv_heads;
        let Range { start, end } = self.queries;
        let tiles = (start..end).step_by(TILE_QUERIES);
        tiles.flat_map(move |from| {
            let queries = from..end.min(from + TILE_QUERIES);
            let heads = (0..shape.kv_heads).flat_map(move |kv_head| {
                let all = kv_head * group..(kv_head + 1) * group;
                let end = all.end;
                all.step_by(step)
                    .map(move |head| (kv_head, head..end.min(head + step)))
            });
            heads.map(move |(kv_head, heads)| Task {
                queries: queries.clone(),
                kv_head,
                heads,
                segments: &self.segments,
                seen: (self.seen.as_deref())
                    .map(|seen| &seen[queries.start - start..queries.end - start]),
                source: self.source,
            })
        })
    }
}

/// How many of the heads that share keys go into a task: all of them, unless that leaves threads without one.
fn heads_step(shape: AttentionShape, ranges: &[Seen<'_>], threads: usize) -> usize {
    let group = shape.heads / shape.kv_heads;
    let tiles = ranges
        .iter()
        .map(|range| range.queries.len().div_ceil(TILE_QUERIES));
    let tasks = tiles.sum::<usize>() * shape.kv_heads;
    let parts = (TASKS * threads).div_ceil(tasks.max(1));
    group.div_ceil(parts).clamp(1, TASK_ROWS / TILE_QUERIES)
}

/// The output matrix, of which each task writes its own rows and columns.
struct Target(*mut f32);

// SAFETY: tasks differ in their queries or their heads, so they write disjoint parts.
unsafe impl Sync for Target {}

fn attend(
    task: &Task<'_>,
    shape: AttentionShape,
    q: &Activation,
    scratch: &mut [f32],
    target: &Target,
) {
    let dim = shape.head_dim;
    let (tile, scratch) = scratch.split_at_mut(TILE_KEYS * task.source.shape.stored_dim());
    let products = Products::new(task, q.width(), dim);
    let rows = task.queries.len() * task.heads.len();
    let (largest, scratch) = scratch.split_at_mut(rows);
    let (sums, scores) = scratch.split_at_mut(rows);
    largest.fill(f32::NEG_INFINITY);
    sums.fill(0.0);
    // SAFETY: `Ops::attend` has checked that the queries' rows exist and hold these heads; the output has their shape, and no
    // other task touches these heads of these rows.
    let row_mut = |row: usize| unsafe {
        std::slice::from_raw_parts_mut(target.0.add(products.start_of(row)), dim)
    };
    let scale = (dim as f32).sqrt().recip();
    // Keys before this tile, over all segments.
    let mut before = 0;
    for segment in task.segments {
        for from in (0..segment.len).step_by(TILE_KEYS) {
            let count = TILE_KEYS.min(segment.len - from);
            let keys = segment.start + from..segment.start + from + count;
            let scores = &mut scores[..rows * count];
            let (start, stride) = task.source.tile(0, task.kv_head, keys.clone(), tile);
            for product in &products.all {
                // SAFETY: the queries as above; the tile holds `count` rows `stride` numbers apart, of which `dim` are
                // read; the scores hold `count` numbers for each row of the product.
                unsafe {
                    gemm::gemm(
                        product.rows,
                        count,
                        dim,
                        scores.as_mut_ptr().add(product.first_row * count),
                        1,
                        count as isize,
                        false,
                        q.values().as_ptr().add(product.start),
                        1,
                        product.stride as isize,
                        start,
                        stride as isize,
                        1,
                        0.0,
                        scale,
                        false,
                        false,
                        false,
                        Parallelism::None,
                    );
                }
            }
            for (row, scores) in scores.chunks_exact_mut(count).enumerate() {
                let seen = task.seen.map_or(count, |seen| {
                    let seen = seen[products.query_of(row)];
                    seen.saturating_sub(before).min(count)
                });
                let (scores, unseen) = scores.split_at_mut(seen);
                unseen.fill(0.0);
                let most = exp::max(scores).max(largest[row]);
                if most > largest[row] {
                    if before > 0 {
                        let shrunk = (largest[row] - most).exp();
                        sums[row] *= shrunk;
                        row_mut(row).iter_mut().for_each(|value| *value *= shrunk);
                    }
                    largest[row] = most;
                }
                if !scores.is_empty() {
                    sums[row] += exp::exp_sum(scores, most);
                }
            }
            let (start, stride) = task.source.tile(1, task.kv_head, keys, tile);
            for product in &products.all {
                // SAFETY: as above.
                unsafe {
                    gemm::gemm(
                        product.rows,
                        dim,
                        count,
                        target.0.add(product.start),
                        1,
                        product.stride as isize,
                        before > 0,
                        scores.as_ptr().add(product.first_row * count),
                        1,
                        count as isize,
                        start,
                        1,
                        stride as isize,
                        1.0,
                        1.0,
                        false,
                        false,
                        false,
                        Parallelism::None,
                    );
                }
            }
            before += count;
        }
    }
    for (row, sum) in sums.iter().enumerate() {
        let inverse = 1.0 / sum;
        row_mut(row).iter_mut().for_each(|value| *value *= inverse);
    }
}

/// The multiplications that a task's queries are taken through: rows must lie at one distance from each other, which
/// those of one head do, and the heads of one query.
struct Products {
    all: Vec<Product>,
    queries: usize,
}

struct Product {
    /// Where its first row begins, in numbers.
    start: usize,
    /// From one of its rows to the next.
    stride: usize,
    rows: usize,
    /// Of its rows among the task's.
    first_row: usize,
}

impl Products {
    fn new(task: &Task<'_>, width: usize, dim: usize) -> Self {
        let queries = task.queries.len();
        let at = |head: usize| task.queries.start * width + head * dim;
        let all = match queries {
            1 => vec![Product {
                start: at(task.heads.start),
                stride: dim,
                rows: task.heads.len(),
                first_row: 0,
            }],
            _ => (task.heads.clone().enumerate())
                .map(|(index, head)| Product {
                    start: at(head),
                    stride: width,
                    rows: queries,
                    first_row: index * queries,
                })
                .collect(),
        };
        Self { all, queries }
    }

    /// The query that a row is of, among the task's.
    fn query_of(&self, row: usize) -> usize {
        row % self.queries
    }

    /// Where a row begins, in numbers.
    fn start_of(&self, row: usize) -> usize {
        let product = match self.queries {
            1 => &self.all[0],
            queries => &self.all[row / queries],
        };
        product.start + (row - product.first_row) * product.stride
    }
}

fn store_row(shape: &CacheShape, values: &[f32], room: &mut [u8]) {
    let (dim, stored) = (shape.head_dim, shape.stored_dim());
    if dim == stored {
        return shape.format.store(values, room);
    }
    // Heads that are no whole blocks end with zeros.
    let heads = values.chunks_exact(dim);
    for (values, room) in heads.zip(room.chunks_exact_mut(shape.head_bytes())) {
        let mut padded = vec![0.0; stored];
        padded[..dim].copy_from_slice(values);
        Format::store(shape.format, &padded, room);
    }
}
