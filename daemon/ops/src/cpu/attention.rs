//! Attention by tiles of keys with a running softmax: two matmuls for each tile, and between them the sums of earlier
//! tiles are scaled to the new maximum. Keys that are not stored as `f32` are dequantized a tile at a time, for one KV
//! head and all queries of a task that share it. A task of at least one panel of queries packs keys and values, as
//! `linear` packs its rows; fewer queries read them where they lie.
//!
//! The running softmax is that of Milakov and Gimelshein (arXiv 1805.02867), in tiles as FlashAttention has it.

mod backward;
mod few;
mod panels;
mod stored;
#[cfg(test)]
mod tests;

use std::ops::Range;

use rayon::prelude::*;
use sluice_formats::Format;
use sluice_weights::HEAD_DIM_MAX;

use self::stored::StoredRows;
use super::{CpuBackend, FEW_ELEMENTS, exp, heads_output::HeadsOutput, microkernel::Microkernel};
use crate::{
    Activation, AttentionKeys, AttentionRange, AttentionShape, KeyRows, KeySegment, KvCache,
    KvCacheShape, PassRun,
    kv_cache::{KeptRows, recent_start},
    rotation::rotate,
    shapes::RECENT_BLOCK,
};

/// Most keys in a tile, and most elements: those of 256 keys of heads of 256.
const TILE_KEYS: usize = 256;
const TILE_LEN: usize = 1 << 16;
/// Most queries in a task: enough that packing keys costs little beside them, few enough that every thread gets some.
const TILE_QUERIES: usize = 256;
/// Most rows of a task where several heads share keys, and most elements of those rows.
const TASK_ROWS: usize = 512;
const TASK_LEN: usize = 1 << 16;
/// Queries that go through the keys of their windows together.
const WINDOW_QUERIES: usize = 64;
/// Least tasks for each thread, where heads can be split.
const TASKS: usize = 4;

/// A tile holds some keys of the longest head, and a task some queries. Whole blocks are no longer than the longest head,
/// which is a multiple of each.
const _: () = assert!(TILE_LEN >= 16 * HEAD_DIM_MAX && TASK_LEN >= 16 * HEAD_DIM_MAX);

/// Some query heads of some queries, all of which read one key head.
struct HeadTask<'a> {
    queries: Range<usize>,
    kv_head: usize,
    heads: Range<usize>,
    segments: &'a [SourceSegment<'a>],
    /// For each query which keys it sees, counted through all segments in their order; `None`: all of them.
    seen: Option<&'a [Range<usize>]>,
    /// The shape of the cache, or else of the pass's rows: tiles have room for its heads, and are rotated as those are.
    shape: KvCacheShape,
    /// What scores are multiplied by.
    score_scale: f32,
}

/// Consecutive rows of one source.
struct SourceSegment<'a> {
    source: RowSource<'a>,
    rows: KeySegment,
    /// Where tiles are counted from: that of the first row. They don't depend on who sees them.
    position: usize,
}

/// Keys that are attended to at a time.
struct Tile<'a> {
    source: &'a RowSource<'a>,
    keys: Range<usize>,
    /// Where the first of them is, as [`SourceSegment::position`] counts.
    position: usize,
}

impl<'a> SourceSegment<'a> {
    /// These rows; `None` if there are none.
    fn new(source: RowSource<'a>, rows: Range<usize>) -> Option<Self> {
        let (start, len) = (rows.start, rows.len());
        let rows = KeySegment { start, len };
        (len > 0).then_some(Self {
            source,
            rows,
            position: 0,
        })
    }
}

impl HeadTask<'_> {
    /// A row for each query and head: the queries of one head after the other.
    fn rows(&self) -> usize {
        self.queries.len() * self.heads.len()
    }

    /// Writes a row's query, scaled as its scores are to be.
    fn scaled_query(&self, row: usize, q: &Activation, dim: usize, out: &mut [f32]) {
        let (query, head) = self.place(row);
        // Scaling `dim` elements of the query is cheaper than scaling the scores of every key.
        let query = &q.row(query)[head * dim..][..dim];
        for (out, value) in out.iter_mut().zip(query) {
            *out = value * self.score_scale;
        }
        if self.shape.is_rotated() {
            rotate(out);
        }
    }

    /// The query and the head of a row.
    fn place(&self, row: usize) -> (usize, usize) {
        let queries = self.queries.len();
        (
            self.queries.start + row % queries,
            self.heads.start + row / queries,
        )
    }

    /// Which keys of a tile of `count` keys a row sees, where `before` keys came in earlier tiles.
    fn seen(&self, row: usize, before: usize, count: usize) -> Range<usize> {
        self.seen.map_or(0..count, |seen| {
            let seen = &seen[row % self.queries.len()];
            let within = |end: usize| end.saturating_sub(before).min(count);
            within(seen.start)..within(seen.end)
        })
    }

    /// Rotates a head of the output back: it is a mean of values.
    fn rotate_back(&self, out: &mut [f32]) {
        if self.shape.is_rotated() {
            rotate(out);
        }
    }

    /// The tiles of the keys, as far as any of the queries sees them.
    fn tiles(&self) -> impl Iterator<Item = Tile<'_>> {
        let step = tile_keys(&self.shape);
        let mut most = self.seen.map_or(usize::MAX, |seen| {
            seen.iter().map(|seen| seen.end).max().unwrap_or(0)
        });
        self.segments.iter().flat_map(move |segment| {
            let SourceSegment {
                source,
                rows: KeySegment { start, len },
                position,
            } = segment;
            let (start, first, len) = (*start, *position, (*len).min(most));
            most -= len;
            // Between multiples of `step`, wherever a window begins.
            let blocks = first / step..(first + len).div_ceil(step);
            blocks.filter(move |_| len > 0).map(move |block| {
                let from = (block * step).max(first);
                let to = ((block + 1) * step).min(first + len);
                Tile {
                    source,
                    keys: start + from - first..start + to - first,
                    position: from,
                }
            })
        })
    }
}

/// Where keys and values lie: rows of heads, as they are stored.
#[derive(Clone, Copy)]
struct RowSource<'a> {
    rows: [&'a [u8]; 2],
    shape: KvCacheShape,
    /// Whether heads are yet to be rotated, as those of the cache beside them are.
    rotates: bool,
}

/// Keys in a tile.
fn tile_keys(shape: &KvCacheShape) -> usize {
    // By the stored length, padding included: that is what a dequantized row takes of the tile.
    TILE_KEYS.min(TILE_LEN / shape.stored_dim())
}

impl RowSource<'_> {
    /// The task's KV head of some rows, as it is stored.
    fn stored(&self, which: usize, kv_head: usize, rows: Range<usize>) -> StoredRows<'_> {
        let head = self.shape.head_bytes();
        let at = |row: usize| (row * self.shape.kv_heads + kv_head) * head;
        StoredRows {
            // Only up to the last row's own head: what follows belongs to other heads and may not be there.
            bytes: &self.rows[which][at(rows.start)..at(rows.end - 1) + head],
            stride: self.shape.kv_heads * head,
            count: rows.len(),
        }
    }

    /// The task's KV head of some rows: from its first element on, and the stride from one row to the next. What is not
    /// `f32` is dequantized into `tile`, and what is yet to be rotated is copied there.
    fn tile<'t>(
        &'t self,
        which: usize,
        kv_head: usize,
        rows: Range<usize>,
        tile: &'t mut [f32],
    ) -> (&'t [f32], usize) {
        let KvCacheShape {
            kv_heads, format, ..
        } = self.shape;
        let head = self.shape.head_bytes();
        let at = |row: usize| (row * kv_heads + kv_head) * head;
        // Only up to the last row's own head: what follows belongs to other heads and may not be there.
        let bytes = &self.rows[which][..at(rows.end - 1) + head];
        if format == Format::F32 && !self.rotates {
            let values: &[f32] = bytemuck::cast_slice(bytes);
            let stored = self.shape.stored_dim();
            let start = at(rows.start) / size_of::<f32>();
            return (&values[start..], kv_heads * stored);
        }
        let stored = self.shape.stored_dim();
        // Of each row only the task's own head is dequantized.
        for (row, out) in rows.zip(tile.chunks_exact_mut(stored)) {
            format.dequantize(&bytes[at(row)..at(row) + head], out);
            if self.rotates {
                // Without the padding.
                rotate(&mut out[..self.shape.head_dim]);
            }
        }
        (tile, stored)
    }
}

impl RowSource<'_> {
    /// The same as `f32`, each row padded with zeros to `padded` elements.
    fn padded<'t>(
        &'t self,
        which: usize,
        kv_head: usize,
        rows: Range<usize>,
        padded: usize,
        tile: &'t mut [f32],
    ) -> StoredRows<'t> {
        let mut own = [0.0; HEAD_DIM_MAX];
        let tile = &mut tile[..rows.len() * padded];
        let count = rows.len();
        for (row, out) in rows.zip(tile.chunks_exact_mut(padded)) {
            let (head, _) = self.tile(which, kv_head, row..row + 1, &mut own);
            let (values, rest) = out.split_at_mut(self.shape.head_dim);
            values.copy_from_slice(&head[..values.len()]);
            rest.fill(0.0);
        }
        StoredRows {
            bytes: bytemuck::cast_slice(tile),
            stride: padded * size_of::<f32>(),
            count,
        }
    }
}

impl CpuBackend {
    /// Writes these rows of `x` into a cache's places, in the cache's format.
    pub(crate) fn store_rows(
        &self,
        shape: &KvCacheShape,
        x: &Activation,
        rows: Range<usize>,
        out: &mut [u8],
    ) {
        // `max(1)` here and below only keeps no rows from dividing by zero: chunks of zero bytes would panic.
        let row_bytes = out.len() / rows.len().max(1);
        let store = |(index, room): (usize, &mut [u8])| {
            store_row(shape, x.row(rows.start + index), room);
        };
        if rows.len() * x.width() <= FEW_ELEMENTS {
            return out
                .chunks_exact_mut(row_bytes.max(1))
                .enumerate()
                .for_each(store);
        }
        self.run(|| {
            out.par_chunks_exact_mut(row_bytes.max(1))
                .enumerate()
                .for_each(store);
        });
    }

    /// Rounds rows to the format of a cache, in place.
    pub(crate) fn round_rows(&self, shape: &KvCacheShape, x: &mut Activation, rows: Range<usize>) {
        let width = x.width();
        let values = &mut x.values_mut()[rows.start * width..rows.end * width];
        self.run(|| {
            values
                .par_chunks_exact_mut(shape.head_dim)
                .for_each(|head| {
                    let mut padded = [0.0; HEAD_DIM_MAX];
                    let padded = &mut padded[..shape.stored_dim()];
                    padded[..head.len()].copy_from_slice(head);
                    let mut bytes = [0; 2 * HEAD_DIM_MAX];
                    let bytes = &mut bytes[..shape.head_bytes()];
                    shape.format.quantize(padded, bytes);
                    shape.format.dequantize(bytes, padded);
                    head.copy_from_slice(&padded[..head.len()]);
                });
        });
    }

    /// Attention of ranges that lie inside their matrices.
    pub(crate) fn attend(
        &self,
        out: &mut Activation,
        q: &Activation,
        keys: &KeyRows<'_>,
        shape: AttentionShape,
        ranges: &[AttentionRange],
    ) {
        let sources: Vec<_> = (keys.caches.iter())
            .map(|cache| CacheSource::new(cache, keys.layer))
            .collect();
        // Rows of the pass are treated as a cache of one layer in `f32`, so that one code path serves both.
        let pass = keys.pass.map(|rows| RowSource {
            rows: rows.map(|rows| bytemuck::cast_slice(rows.values())),
            shape: KvCacheShape {
                layers: 1,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                format: Format::F32,
                keeps_recent: false,
                window: None,
            },
            rotates: false,
        });
        let ranges: Vec<_> = (ranges.iter())
            .filter(|range| !range.queries.is_empty())
            .flat_map(|range| RangeKeys::of(range, pass, &sources))
            .collect();
        // Decided for all ranges together: whether threads would idle depends on the sum of their tasks.
        let step = heads_step(shape, &ranges, self.device.threads());
        let tasks: Vec<_> = (ranges.iter())
            .flat_map(|range| range.tasks(shape, step))
            .collect();
        self.run(|| {
            // Tasks of the same query write different heads of one row, so no slices could be shared out.
            let target = HeadsOutput::new(out);
            let instructions = self.instructions();
            let columns = Microkernel::of(instructions).columns;
            tasks.par_iter().for_each(|task| {
                // SAFETY: ranges have queries of their own, and tasks of a range differ in their queries or their heads.
                let own = unsafe { target.part(task.queries.clone(), task.heads.clone()) };
                self.scratch.with(|scratch| match task.rows() < columns {
                    true => few::attend(task, shape, q, instructions, scratch, own),
                    false => panels::attend(task, shape, q, instructions, scratch, own),
                });
            });
        });
    }
}

impl CpuBackend {
    /// The attention weights of these positions, summed over the queries: a row for each head.
    #[expect(
        clippy::too_many_arguments,
        reason = "where the sums go, and what an attention is of"
    )]
    pub(crate) fn salience(
        &self,
        sums: &mut Activation,
        cache: &KvCache,
        layer: usize,
        q: &Activation,
        queries: Range<usize>,
        shape: AttentionShape,
        places: &[Range<usize>],
    ) {
        let source = CacheSource::new(cache, layer).rounded;
        let (dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        let scale = shape.score_scale();
        let instructions = self.instructions();
        self.run(|| {
            // One query at a time, with a full row of scores: this happens once a block.
            sums.par_rows_mut().enumerate().for_each(|(head, sums)| {
                self.scratch.with(|scratch| {
                    // The maximum is taken over all keys before the first exponential, so the sums need no rescaling
                    // from tile to tile.
                    let (scores, tile) = scratch.split_at_mut(sums.len());
                    sums.fill(0.0);
                    for query in queries.clone() {
                        let query = &q.row(query)[head * dim..][..dim];
                        let mut rotated = [0.0; HEAD_DIM_MAX];
                        let query = match source.shape.is_rotated() {
                            true => {
                                rotated[..dim].copy_from_slice(query);
                                rotate(&mut rotated[..dim]);
                                &rotated[..dim]
                            }
                            false => query,
                        };
                        let mut before = 0;
                        let step = tile_keys(&source.shape);
                        for place in places.iter().flat_map(|place| tiles(place, step)) {
                            let count = place.len();
                            let (keys, stride) = source.tile(0, head / group, place, tile);
                            for (index, score) in scores[before..][..count].iter_mut().enumerate() {
                                let key = &keys[index * stride..][..dim];
                                let dot: f32 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                                *score = dot * scale;
                            }
                            before += count;
                        }
                        let most = exp::max(instructions, scores);
                        let inverse = 1.0 / exp::exp_sum(instructions, scores, most);
                        for (sum, score) in sums.iter_mut().zip(&*scores) {
                            *sum += score * inverse;
                        }
                    }
                });
            });
        });
    }
}

/// Splits a range into pieces of at most `step`.
fn tiles(range: &Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    let starts = range.clone().step_by(step);
    starts.map(move |start| start..end.min(start + step))
}

/// Where a layer of a cache lies.
struct CacheSource<'a> {
    cache: &'a KvCache,
    rounded: RowSource<'a>,
    /// What is kept in more bits.
    recent: RowSource<'a>,
}

impl<'a> CacheSource<'a> {
    fn new(cache: &'a KvCache, layer: usize) -> Self {
        Self {
            cache,
            rounded: RowSource {
                rows: [0, 1].map(|which| cache.rows(layer, which)),
                shape: cache.shape(),
                rotates: false,
            },
            recent: RowSource {
                rows: [0, 1].map(|which| cache.recent_rows(layer, which)),
                shape: cache.shape().recent(),
                rotates: cache.shape().is_rotated(),
            },
        }
    }
}

/// Queries that see the same but for the end, and what they see.
struct RangeKeys<'a> {
    queries: Range<usize>,
    segments: Vec<SourceSegment<'a>>,
    seen: Option<Vec<Range<usize>>>,
    shape: KvCacheShape,
}

impl<'a> RangeKeys<'a> {
    /// A range; where the latest positions of a cache are kept in more bits, one for each block of them.
    fn of(
        range: &AttentionRange,
        pass: Option<RowSource<'a>>,
        caches: &[CacheSource<'a>],
    ) -> Vec<Self> {
        let of = |source: RowSource<'a>, segments: &[KeySegment]| {
            let segments = segments.iter().cloned();
            segments
                .map(|rows| SourceSegment {
                    source,
                    rows,
                    position: 0,
                })
                .collect()
        };
        let (segments, shape) = match &range.keys {
            AttentionKeys::Pass(segments) => {
                let pass = pass.expect("rows were checked");
                (of(pass, segments), pass.shape)
            }
            AttentionKeys::PassWindow { rows, window } => {
                let pass = pass.expect("rows were checked");
                let positions: Vec<usize> = (0..rows.len()).collect();
                let runs = |own: Range<usize>| [rows.start + own.start..rows.start + own.end, 0..0];
                return windowed(pass, runs, *window, range.queries.start, &positions);
            }
            AttentionKeys::Cached {
                cache,
                segments,
                own,
            } => {
                let cache = caches[*cache].rounded;
                let segments = match pass {
                    // What isn't rounded is the same in both.
                    Some(pass) if cache.shape.format != Format::F32 => {
                        from_both(cache, pass, segments, own)
                    }
                    _ => of(cache, segments),
                };
                (segments, cache.shape)
            }
            AttentionKeys::Causal {
                cache,
                positions,
                own,
            } => {
                let (cache, own) = (&caches[*cache], own.as_ref().zip(pass));
                if let Some(window) = cache.cache.shape().window {
                    let runs = |own| cache.cache.runs(own);
                    return windowed(cache.rounded, runs, window, range.queries.start, positions);
                }
                let mut start = range.queries.start;
                let alike = |a: &usize, b: &usize| {
                    !cache.cache.shape().keeps_recent || a / RECENT_BLOCK == b / RECENT_BLOCK
                };
                let parts = positions.chunk_by(alike).map(|positions| {
                    let queries = start..start + positions.len();
                    start = queries.end;
                    Self {
                        queries,
                        segments: causal(cache, own, positions),
                        seen: Some(positions.iter().map(|position| 0..position + 1).collect()),
                        shape: cache.rounded.shape,
                    }
                });
                return parts.collect();
            }
        };
        vec![Self {
            queries: range.queries.clone(),
            segments,
            seen: None,
            shape,
        }]
    }

    /// The range's tasks, with `step` of the heads that share keys in each.
    fn tasks(&self, shape: AttentionShape, step: usize) -> impl Iterator<Item = HeadTask<'_>> {
        let group = shape.heads / shape.kv_heads;
        let Range { start, end } = self.queries;
        let tile = tile_queries(shape);
        let tiles = (start..end).step_by(tile);
        // Heads that share a KV head are one task where possible, so that a tile is dequantized and packed once for all
        // of them.
        tiles.flat_map(move |from| {
            let queries = from..end.min(from + tile);
            let heads = (0..shape.kv_heads).flat_map(move |kv_head| {
                let all = kv_head * group..(kv_head + 1) * group;
                let end = all.end;
                all.step_by(step)
                    .map(move |head| (kv_head, head..end.min(head + step)))
            });
            heads.map(move |(kv_head, heads)| HeadTask {
                queries: queries.clone(),
                kv_head,
                heads,
                segments: &self.segments,
                seen: (self.seen.as_deref())
                    .map(|seen| &seen[queries.start - start..queries.end - start]),
                shape: self.shape,
                score_scale: shape.score_scale(),
            })
        })
    }
}

/// Queries at these positions, each of which sees the latest positions up to its own, by blocks of them. `runs` tells
/// where consecutive positions lie in the source.
fn windowed<'a>(
    source: RowSource<'a>,
    runs: impl Fn(Range<usize>) -> [Range<usize>; 2],
    window: usize,
    start: usize,
    positions: &[usize],
) -> Vec<RangeKeys<'a>> {
    let mut start = start;
    let alike = |a: &usize, b: &usize| a / WINDOW_QUERIES == b / WINDOW_QUERIES && a < b;
    let parts = positions.chunk_by(alike).map(|positions| {
        let queries = start..start + positions.len();
        start = queries.end;
        // Of rising positions the first sees the first key, and the last the last.
        let first = (positions[0] + 1).saturating_sub(window);
        let seen = |&position: &usize| {
            let from = (position + 1).saturating_sub(window);
            from - first..position + 1 - first
        };
        let end = positions.last().map_or(0, |last| last + 1);
        let mut position = first;
        let segments = runs(first..end).into_iter().filter_map(|places| {
            let segment = SourceSegment::new(source, places)?;
            let from = position;
            position += segment.rows.len;
            Some(SourceSegment {
                position: from,
                ..segment
            })
        });
        RangeKeys {
            queries,
            segments: segments.collect(),
            seen: Some(positions.iter().map(seen).collect()),
            shape: source.shape,
        }
    });
    parts.collect()
}

/// All positions of a cache up to the last of these queries' own. Rows of this pass come from the pass where the cache
/// keeps the latest positions in more bits: there it has them only once the pass has read what was there.
fn causal<'a>(
    cache: &CacheSource<'a>,
    own: Option<(&PassRun, RowSource<'a>)>,
    positions: &[usize],
) -> Vec<SourceSegment<'a>> {
    // The segments reach to the longest query; `seen` cuts them for the others.
    let end = positions.iter().copied().max().map_or(0, |last| last + 1);
    let query = positions.first().copied().unwrap_or(0);
    let shape = cache.rounded.shape;
    let mut all = Vec::new();
    let mut add = |source, rows| all.extend(SourceSegment::new(source, rows));
    let own = own.filter(|_| shape.keeps_recent);
    // Positions from here on are rows of this pass.
    let own_start = own.as_ref().map_or(end, |(run, _)| run.start.min(end));
    for rows in cache.cache.places(query, own_start) {
        match rows {
            KeptRows::Rounded(positions) => add(cache.rounded, positions),
            KeptRows::Recent(places) => add(cache.recent, places),
        }
    }
    if let Some((run, pass)) = own {
        let pass = RowSource {
            rotates: shape.is_rotated(),
            ..pass
        };
        let at = |position: usize| run.rows.start + position - run.start;
        // Of a long pass, too, only the first block and the latest are read in more bits.
        let first = own_start.max(RECENT_BLOCK.min(end));
        let latest = first.max(recent_start(query).min(end));
        if own_start < first {
            add(pass, at(own_start)..at(first));
        }
        add(cache.rounded, first..latest);
        if latest < end {
            add(pass, at(latest)..at(end));
        }
    }
    all
}

/// Positions of a cache, but where rows of this pass were written, these rows: they are not rounded.
fn from_both<'a>(
    cache: RowSource<'a>,
    pass: RowSource<'a>,
    segments: &[KeySegment],
    own: &[PassRun],
) -> Vec<SourceSegment<'a>> {
    let pass = RowSource {
        rotates: cache.shape.is_rotated(),
        ..pass
    };
    let mut own: Vec<_> = own.iter().collect();
    own.sort_by_key(|run| run.start);
    let mut all = Vec::new();
    let mut add = |source, rows| all.extend(SourceSegment::new(source, rows));
    for segment in segments {
        let (mut place, end) = (segment.start, segment.start + segment.len);
        for PassRun { rows, start } in &own {
            let from = (*start).clamp(place, end);
            let to = (start + rows.len()).clamp(from, end);
            if from < to {
                add(cache, place..from);
                let first = rows.start + from - start;
                add(pass, first..first + to - from);
                place = to;
            }
        }
        add(cache, place..end);
    }
    all
}

/// Most queries of a task.
fn tile_queries(shape: AttentionShape) -> usize {
    TILE_QUERIES.min(TASK_LEN / shape.head_dim)
}

/// How many of the heads that share keys go into a task: all of them, unless that leaves threads without work.
fn heads_step(shape: AttentionShape, ranges: &[RangeKeys<'_>], threads: usize) -> usize {
    let group = shape.heads / shape.kv_heads;
    let tile = tile_queries(shape);
    let queries = ranges.iter().map(|range| range.queries.len());
    let tasks = queries
        .clone()
        .map(|count| count.div_ceil(tile))
        .sum::<usize>()
        * shape.kv_heads;
    let parts = (TASKS * threads).div_ceil(tasks.max(1));
    let most = queries.map(|count| count.min(tile)).max().unwrap_or(1);
    // The packed queries of a task must fit its part of the scratch, whatever the threads would like.
    let fitting = TASK_ROWS.min(TASK_LEN / shape.head_dim) / most;
    group.div_ceil(parts).clamp(1, fitting)
}

fn store_row(shape: &KvCacheShape, values: &[f32], out: &mut [u8]) {
    let (dim, stored) = (shape.head_dim, shape.stored_dim());
    if dim == stored && !shape.is_rotated() {
        return shape.format.quantize(values, out);
    }
    // Heads that are no whole blocks of the format are padded with zeros, which no attention score reads.
    // Only the first `dim` elements are written below, so the padding stays zero from head to head.
    let mut padded = [0.0; HEAD_DIM_MAX];
    let heads = values.chunks_exact(dim);
    for (values, room) in heads.zip(out.chunks_exact_mut(shape.head_bytes())) {
        padded[..dim].copy_from_slice(values);
        if shape.is_rotated() {
            rotate(&mut padded[..dim]);
        }
        Format::quantize(shape.format, &padded[..stored], room);
    }
}
