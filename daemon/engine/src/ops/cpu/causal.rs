//! Attention to keys and values that are kept as they are stored: widened a tile of positions at a time, for one key head
//! and the queries that share it.

use std::ops::Range;

use gemm::Parallelism;
use rayon::prelude::*;

use super::{Cpu, attention::softmax, scratch::SCRATCH_LEN};
use crate::{
    format::Format,
    model::{CONTEXT_MAX, HEAD_DIM_MAX},
    ops::{Activation, AttentionShape, CacheShape, CausalTasks, KvCache},
};

/// Positions that are widened at once: with heads of 128, a quarter of a second-level cache.
const TILE_KEYS: usize = 256;
/// Queries in a task, at most.
const TILE_QUERIES: usize = 64;

/// Any model that is read has room for a tile and for the scores of a query. Whole blocks are no longer than the longest
/// head, which is a multiple of each.
const _: () = assert!(TILE_KEYS * HEAD_DIM_MAX + CONTEXT_MAX <= SCRATCH_LEN);

/// Some query heads of some queries of a sequence, all of which read one key head.
struct Task<'a> {
    cache: &'a KvCache,
    kv_head: usize,
    heads: Range<usize>,
    queries: Range<usize>,
}

impl Cpu {
    /// Puts these rows of `x`, as they are stored, behind the positions that the cache holds.
    pub(in crate::ops) fn store_rows(
        &self,
        cache: &mut KvCache,
        layer: usize,
        which: usize,
        x: &Activation,
        rows: Range<usize>,
    ) {
        let shape = cache.shape();
        let room = cache.room_mut(layer, which, rows.len());
        let row_bytes = room.len() / rows.len().max(1);
        self.run(|| {
            room.par_chunks_exact_mut(row_bytes.max(1))
                .enumerate()
                .for_each(|(index, room)| store_row(&shape, x.row(rows.start + index), room));
        });
    }

    /// Attention of each sequence's queries to all positions in its cache up to their own.
    pub(in crate::ops) fn attend_causal(
        &self,
        out: &mut Activation,
        q: &Activation,
        caches: &[&KvCache],
        layer: usize,
        shape: AttentionShape,
        queries: &CausalTasks,
    ) {
        let positions = &queries.positions;
        let mut tasks = Vec::new();
        for (cache, queries) in caches.iter().zip(&queries.sequences) {
            add_tasks(&mut tasks, cache, shape, queries.clone(), positions);
        }
        self.run(|| {
            let target = Target(out.values_mut().as_mut_ptr());
            tasks.par_iter().for_each(|task| {
                self.scratch.with(|scratch| {
                    attend(task, q, layer, shape, positions, scratch, &target);
                });
            });
        });
    }
}

/// Adds the tasks of a sequence's queries.
fn add_tasks<'a>(
    tasks: &mut Vec<Task<'a>>,
    cache: &'a KvCache,
    shape: AttentionShape,
    queries: Range<usize>,
    positions: &[usize],
) {
    let Some(last) = positions[queries.clone()].iter().max() else {
        return;
    };
    let keys = last + 1;
    let tile = TILE_KEYS * cache.shape().stored_dim();
    // Scores and a tile share the scratch.
    let scores = (SCRATCH_LEN - tile) / keys;
    assert!(
        scores > 0,
        "contexts and heads are bounded when a model is read"
    );
    let group = shape.heads / shape.kv_heads;
    let heads_step = group.min(scores);
    let queries_step = (scores / heads_step).min(TILE_QUERIES);
    for start in queries.clone().step_by(queries_step) {
        let queries = start..queries.end.min(start + queries_step);
        for kv_head in 0..shape.kv_heads {
            let end = (kv_head + 1) * group;
            tasks.extend((kv_head * group..end).step_by(heads_step).map(|head| Task {
                cache,
                kv_head,
                heads: head..end.min(head + heads_step),
                queries: queries.clone(),
            }));
        }
    }
}

/// The output matrix, of which each task writes its own rows and columns.
struct Target(*mut f32);

// SAFETY: tasks differ in their queries or their heads, so they write disjoint parts.
unsafe impl Sync for Target {}

fn attend(
    task: &Task<'_>,
    q: &Activation,
    layer: usize,
    shape: AttentionShape,
    positions: &[usize],
    scratch: &mut [f32],
    target: &Target,
) {
    let dim = shape.head_dim;
    let stored = task.cache.shape().stored_dim();
    let positions = &positions[task.queries.clone()];
    let keys = positions.iter().max().map_or(0, |last| last + 1);
    let (tile, scores) = scratch.split_at_mut(TILE_KEYS * stored);
    let rows = positions.len();
    let scores = &mut scores[..task.heads.len() * rows * keys];
    let scale = (dim as f32).sqrt().recip();
    let products = Products::new(task, q, shape, rows);

    for from in (0..keys).step_by(TILE_KEYS) {
        let count = TILE_KEYS.min(keys - from);
        widen(task, layer, 0, from..from + count, tile);
        for product in &products.0 {
            let first = product.first_row * keys + from;
            // SAFETY: the queries' rows exist and hold these heads; the tile holds `count` rows of `stored` numbers, of
            // which `dim` are read; the scores hold `keys` columns for each row of the product, of which this writes
            // `count` from `from` on.
            unsafe {
                gemm::gemm(
                    product.rows,
                    count,
                    dim,
                    scores.as_mut_ptr().add(first),
                    1,
                    keys as isize,
                    false,
                    q.values().as_ptr().add(product.start),
                    1,
                    product.stride as isize,
                    tile.as_ptr(),
                    stored as isize,
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
    }
    for (index, row) in scores.chunks_exact_mut(keys).enumerate() {
        let (seen, unseen) = row.split_at_mut(positions[products.query_of(index, rows)] + 1);
        softmax(seen);
        unseen.fill(0.0);
    }
    for from in (0..keys).step_by(TILE_KEYS) {
        let count = TILE_KEYS.min(keys - from);
        widen(task, layer, 1, from..from + count, tile);
        for product in &products.0 {
            let first = product.first_row * keys + from;
            // SAFETY: as above; the output has the queries' shape, and no other task writes these heads of these rows.
            unsafe {
                gemm::gemm(
                    product.rows,
                    dim,
                    count,
                    target.0.add(product.start),
                    1,
                    product.stride as isize,
                    from > 0,
                    scores.as_ptr().add(first),
                    1,
                    keys as isize,
                    tile.as_ptr(),
                    1,
                    stored as isize,
                    1.0,
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
    }
}

/// The multiplications that a task's queries are taken through: rows must lie at one distance from each other, which
/// those of one head do, and the heads of one query.
struct Products(Vec<Product>);

struct Product {
    /// Where its first row begins, in numbers.
    start: usize,
    /// From one of its rows to the next.
    stride: usize,
    rows: usize,
    /// Of its rows among the task's scores.
    first_row: usize,
}

impl Products {
    fn new(task: &Task<'_>, q: &Activation, shape: AttentionShape, rows: usize) -> Self {
        let dim = shape.head_dim;
        let at = |head: usize| task.queries.start * q.width() + head * dim;
        if rows == 1 {
            return Self(vec![Product {
                start: at(task.heads.start),
                stride: dim,
                rows: task.heads.len(),
                first_row: 0,
            }]);
        }
        let heads = task.heads.clone().enumerate();
        let products = heads.map(|(index, head)| Product {
            start: at(head),
            stride: q.width(),
            rows,
            first_row: index * rows,
        });
        Self(products.collect())
    }

    /// The query that a row of scores belongs to, of `rows` queries.
    fn query_of(&self, row: usize, rows: usize) -> usize {
        row % rows
    }
}

/// Widens the task's key head of some positions, a row of stored numbers each.
fn widen(task: &Task<'_>, layer: usize, which: usize, positions: Range<usize>, tile: &mut [f32]) {
    let shape = task.cache.shape();
    let head = shape.head_bytes();
    let row = shape.kv_heads * head;
    let bytes = task.cache.rows(layer, which, positions.end);
    let out = tile.chunks_exact_mut(shape.stored_dim());
    for (position, out) in positions.zip(out) {
        let start = position * row + task.kv_head * head;
        shape.format.widen(&bytes[start..start + head], out);
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
