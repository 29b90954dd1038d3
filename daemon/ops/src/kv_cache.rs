//! KV caches: an autoregressive model's keys and values of all earlier positions, and those of canvas positions that a
//! pass does not compute anew.

use std::ops::Range;

use sluice_cuda::{GpuSpan, SalienceArgs as Salient, SalienceScratch};
use sluice_formats::DType;
use sluice_machine::{
    MemoryKind,
    page::{PAGE_BYTES, Page},
};

use super::{Activation, AttentionShape, Backend, KvCacheShape, Ops, Phase};
use crate::{OpsError, device::DeviceBuffer, shapes::RECENT_BLOCK};

/// Keys and values of a sequence's first positions, in all layers.
pub struct KvCache {
    /// For each layer the keys of all positions, then their values: a layer's attention reads two contiguous matrices.
    memory: DeviceBuffer<Page>,
    shape: KvCacheShape,
    capacity: usize,
    len: usize,
    recent: RecentPositions,
    /// By what [`Ops::keep_salient`] chooses the positions that stay, once the pass has ended.
    salience: Option<KeySalience>,
}

/// Which positions [`KvCacheShape::keeps_recent`] has in `q8_0`. A sequence that goes on from the middle of another, or
/// after a pass that failed, lacks some of the latest for a while.
#[derive(Debug, Clone, Copy, Default)]
struct RecentPositions {
    /// So many of the first block.
    first: usize,
    /// The latest, from this one to the end of what is filled.
    latest_from: usize,
    /// Whether a pass has written rows that are not counted in.
    is_written: bool,
}

/// How much attention the queries of a pass pay to each key.
struct KeySalience {
    /// Attention summed by position, a row for each layer: four bytes of each, where keys and values take hundreds.
    sums: Activation,
    positions: Vec<Range<usize>>,
    /// How many positions are to stay.
    count: usize,
}

impl KvCache {
    /// How many positions are filled.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is filled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Layers, heads and format of its rows.
    #[must_use]
    pub fn shape(&self) -> KvCacheShape {
        self.shape
    }

    /// Bytes it holds on the device.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Counts in `rows` more positions, whose keys and values have been written to all layers.
    ///
    /// # Panics
    /// When they exceed its capacity.
    pub fn advance(&mut self, rows: usize) {
        let before = self.len;
        self.len += rows;
        assert!(self.shape.window.is_some() || self.len <= self.capacity);
        let recent = &mut self.recent;
        if std::mem::take(&mut recent.is_written) {
            if recent.first == before.min(RECENT_BLOCK) {
                recent.first = self.len.min(RECENT_BLOCK);
            }
            recent.latest_from = recent.latest_from.max(kept_from(self.len));
        } else {
            recent.latest_from = self.len;
        }
    }

    /// Drops the last `rows` positions.
    ///
    /// # Panics
    /// When it holds fewer.
    pub fn take_back(&mut self, rows: usize) {
        assert!(rows <= self.len);
        self.len -= rows;
        self.recent.first = self.recent.first.min(self.len);
        self.recent.latest_from = self.recent.latest_from.min(self.len);
    }

    /// From which position on the latest ones are there in more bits.
    fn latest_from(&self) -> usize {
        match self.recent.is_written {
            // A pass has failed or was cancelled, after it had put its rows, in some layers, where these were.
            true => self.len,
            false => self.recent.latest_from,
        }
    }

    /// Where consecutive positions are, in their order: with a window they take turns, and may be in two parts.
    #[must_use]
    pub fn runs(&self, positions: Range<usize>) -> [Range<usize>; 2] {
        if self.shape.window.is_none() || positions.is_empty() {
            return [positions, 0..0];
        }
        let start = positions.start % self.capacity;
        let end = start + positions.len();
        match end.checked_sub(self.capacity) {
            Some(over) if over > 0 => [start..self.capacity, 0..over],
            _ => [start..end, 0..0],
        }
    }

    /// Positions for which memory was allocated.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Where the keys (0) or values (1) of a layer begin, in bytes.
    fn start(&self, layer: usize, which: usize) -> usize {
        (2 * layer + which) * self.capacity * self.shape.row_bytes()
    }

    /// All keys (0) or values (1) of a layer, on the CPU.
    pub(super) fn rows(&self, layer: usize, which: usize) -> &[u8] {
        let start = self.start(layer, which);
        let bytes: &[u8] = bytemuck::cast_slice(self.memory.host());
        &bytes[start..start + self.capacity * self.shape.row_bytes()]
    }

    /// The keys (0) or values (1) of a layer that are kept in `q8_0`.
    pub(super) fn recent_rows(&self, layer: usize, which: usize) -> &[u8] {
        let bytes: &[u8] = bytemuck::cast_slice(self.memory.host());
        &bytes[self.recent_bytes(layer, which)]
    }

    fn recent_bytes(&self, layer: usize, which: usize) -> Range<usize> {
        let bytes = self.shape.recent_rows(self.capacity) * self.shape.recent().row_bytes();
        let start = self.start(self.shape.layers, 0) + (2 * layer + which) * bytes;
        start..start + bytes
    }

    /// Where a query of this position, or one of those up to the block's end, reads positions before `end`.
    pub(super) fn places(&self, query: usize, end: usize) -> Vec<KeptRows> {
        if !self.shape.keeps_recent {
            return vec![KeptRows::Rounded(0..end)];
        }
        let mut all: Vec<KeptRows> = Vec::new();
        for start in (0..end).step_by(RECENT_BLOCK) {
            let positions = start..end.min(start + RECENT_BLOCK);
            // How many are kept in more bits, and from which one on.
            let kept = match start {
                0 => 0..positions.end.min(self.recent.first),
                _ if start >= recent_start(query) => {
                    self.recent.latest_from.clamp(start, positions.end)..positions.end
                }
                _ => positions.end..positions.end,
            };
            let rounded = [positions.start..kept.start, kept.end..positions.end];
            let [before, after] = rounded.map(KeptRows::Rounded);
            let first = recent_place(start);
            let kept = KeptRows::Recent(first + kept.start - start..first + kept.end - start);
            for rows in [before, kept, after] {
                match (all.last_mut(), rows) {
                    (_, KeptRows::Rounded(rows) | KeptRows::Recent(rows)) if rows.is_empty() => {}
                    (Some(KeptRows::Rounded(last)), KeptRows::Rounded(rows)) => last.end = rows.end,
                    (_, rows) => all.push(rows),
                }
            }
        }
        all
    }

    /// The keys (0) or values (1) of a layer at these positions, to be written, on the CPU.
    pub(super) fn rows_mut(
        &mut self,
        layer: usize,
        which: usize,
        places: Range<usize>,
    ) -> &mut [u8] {
        let row = self.shape.row_bytes();
        let start = self.start(layer, which) + places.start * row;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(self.memory.host_mut());
        &mut bytes[start..start + places.len() * row]
    }

    /// Where the keys (0) or values (1) of a layer at these positions are on a GPU.
    fn span(&self, layer: usize, which: usize, places: Range<usize>) -> GpuSpan {
        let row = self.shape.row_bytes();
        let start = self.start(layer, which) + places.start * row;
        self.memory.span().part(start, places.len() * row)
    }

    /// Where all keys and all values of a layer are on a GPU.
    pub(super) fn spans(&self, layer: usize) -> [GpuSpan; 2] {
        [0, 1].map(|which| self.span(layer, which, 0..self.capacity))
    }
}

/// Where consecutive positions are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeptRows {
    /// In the cache's own format, at these positions.
    Rounded(Range<usize>),
    /// In `q8_0`, at these places.
    Recent(Range<usize>),
}

/// The first of the latest positions that a query of this position reads in more bits.
pub(super) fn recent_start(query: usize) -> usize {
    (query / RECENT_BLOCK * RECENT_BLOCK).saturating_sub(RECENT_BLOCK)
}

/// The first of the latest positions that are there in more bits, once so many are filled: those that the query of the
/// last of them has read, too, since a prompt that is asked again is computed anew from its last position on.
fn kept_from(len: usize) -> usize {
    recent_start(len.saturating_sub(1))
}

/// The place of a position in `q8_0`: the first block has its own, the others take turns.
fn recent_place(position: usize) -> usize {
    match position.checked_sub(RECENT_BLOCK) {
        None => position,
        Some(after) => RECENT_BLOCK + after % (2 * RECENT_BLOCK),
    }
}

impl Ops {
    /// Allocates a KV cache for `capacity` positions.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// On a GPU, when the format is not the dtype it computes in.
    pub fn kv_cache(&self, shape: KvCacheShape, capacity: usize) -> Result<KvCache, OpsError> {
        if self.device.is_gpu() {
            // The GPU's attention kernel reads nothing else.
            assert_eq!(shape.format, self.device.dtype().into());
        }
        let capacity = shape.places(capacity);
        let pages = shape.bytes(capacity).div_ceil(PAGE_BYTES);
        Ok(KvCache {
            memory: DeviceBuffer::new(&self.device, &self.ledger, MemoryKind::KvCache, pages)?,
            shape,
            capacity,
            len: 0,
            recent: RecentPositions::default(),
            salience: None,
        })
    }

    /// Fills an empty cache with the first `rows` positions of another of the same shape.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When shapes differ, or either is too small.
    pub fn copy_kv_cache(
        &self,
        to: &mut KvCache,
        from: &KvCache,
        rows: usize,
    ) -> Result<(), OpsError> {
        assert!(to.is_empty() && rows <= from.len && to.shape == from.shape);
        // Capacities may differ, and with them where a layer begins: matrices are copied one by one.
        for layer in 0..to.shape.layers {
            for which in 0..2 {
                match &self.backend {
                    Backend::Cpu(_) => {
                        let bytes = rows * from.shape.row_bytes();
                        to.rows_mut(layer, which, 0..rows)
                            .copy_from_slice(&from.rows(layer, which)[..bytes]);
                    }
                    Backend::Gpu(gpu) => {
                        let span = |cache: &KvCache| cache.span(layer, which, 0..rows);
                        gpu.copy(span(to), span(from))?;
                    }
                    Backend::DryRun => {}
                }
            }
        }
        if let Backend::Cpu(_) = &self.backend {
            for layer in 0..to.shape.layers {
                for which in 0..2 {
                    let [to_bytes, from_bytes] =
                        [&*to, from].map(|cache| cache.recent_bytes(layer, which));
                    let all: &mut [u8] = bytemuck::cast_slice_mut(to.memory.host_mut());
                    let other: &[u8] = bytemuck::cast_slice(from.memory.host());
                    let count = to_bytes.len().min(from_bytes.len());
                    all[to_bytes][..count].copy_from_slice(&other[from_bytes][..count]);
                }
            }
        }
        to.advance(rows);
        to.recent = RecentPositions {
            first: from.recent.first.min(rows),
            latest_from: from.latest_from().min(rows),
            is_written: false,
        };
        Ok(())
    }

    /// Writes these rows of keys and values to the positions of a layer from `start` on. Those of an autoregressive
    /// sequence go behind the filled positions, and [`KvCache::advance`] counts them in.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When they exceed the cache's capacity.
    pub fn put_kv(
        &self,
        cache: &mut KvCache,
        layer: usize,
        [keys, values]: [&Activation; 2],
        rows: Range<usize>,
        start: usize,
    ) -> Result<(), OpsError> {
        let runs = cache.runs(start..start + rows.len());
        // Not `len`: a layer's rows are written before the pass counts them in, and a canvas overwrites positions
        // anywhere.
        assert!(runs.iter().all(|places| places.end <= cache.capacity));
        assert!(rows.end <= keys.len().min(values.len()));
        let _timed = self.timed(Phase::Attention);
        if layer == 0 {
            cache.recent.latest_from = cache.latest_from();
            cache.recent.is_written = false;
        }
        match &self.backend {
            Backend::Cpu(cpu) => {
                let shape = cache.shape;
                for (which, x) in [keys, values].into_iter().enumerate() {
                    let mut from = rows.start;
                    for places in &runs {
                        let room = cache.rows_mut(layer, which, places.clone());
                        cpu.store_rows(&shape, x, from..from + places.len(), room);
                        from += places.len();
                    }
                }
            }
            Backend::Gpu(gpu) => {
                let mut from = rows.start;
                for places in runs {
                    gpu.put_rows(
                        [0, 1].map(|which| cache.span(layer, which, places.clone())),
                        [keys, values].map(|x| x.rows_span(from, places.len())),
                    )?;
                    from += places.len();
                }
            }
            Backend::DryRun => {}
        }
        Ok(())
    }
}

impl Ops {
    /// Rounds keys or values of a pass to `q8_0`, as later passes will read them: the same for each query of a pass,
    /// however a prompt is cut.
    pub fn round_recent(&self, shape: &KvCacheShape, x: &mut Activation, rows: Range<usize>) {
        if let Backend::Cpu(cpu) = &self.backend {
            cpu.round_rows(&shape.recent(), x, rows);
        }
    }

    /// Keeps rows of a pass in `q8_0`, as far as the next queries read them so, once those of this pass have read the
    /// ones that were there. Does nothing in a cache without such rows.
    pub fn put_recent(
        &self,
        cache: &mut KvCache,
        layer: usize,
        [keys, values]: [&Activation; 2],
        rows: Range<usize>,
        start: usize,
    ) {
        let end = start + rows.len();
        if !cache.shape.keeps_recent || rows.is_empty() {
            return;
        }
        cache.recent.is_written = true;
        let Backend::Cpu(cpu) = &self.backend else {
            return;
        };
        let shape = cache.shape.recent();
        let row = shape.row_bytes();
        let first = start..end.min(RECENT_BLOCK);
        let latest = start.max(kept_from(end)).max(RECENT_BLOCK)..end;
        for (which, x) in [keys, values].into_iter().enumerate() {
            let bytes = cache.recent_bytes(layer, which);
            let all: &mut [u8] = bytemuck::cast_slice_mut(cache.memory.host_mut());
            let all = &mut all[bytes];
            for position in first.clone().chain(latest.clone()) {
                let from = rows.start + position - start;
                let to = recent_place(position) * row;
                cpu.store_rows(&shape, x, from..from + 1, &mut all[to..to + row]);
            }
        }
    }
}

impl Ops {
    /// Sums how much attention the queries pay to each of these positions of a layer. Once all layers have done so,
    /// [`Ops::keep_salient`] keeps the `count` positions of each layer that get the most, with their neighbours taken
    /// into account.
    ///
    /// Reference: Sparse-dLLM (arXiv 2508.02558): attention of the block's queries, max-pooled over three neighbours.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When positions do not rise, or differ from those of the first layer.
    #[expect(
        clippy::too_many_arguments,
        reason = "they say what to choose from, by what, and how much"
    )]
    pub fn choose_salient(
        &self,
        cache: &mut KvCache,
        layer: usize,
        q: &Activation,
        queries: Range<usize>,
        shape: AttentionShape,
        places: &[Range<usize>],
        count: usize,
    ) -> Result<(), OpsError> {
        assert!(places.is_sorted_by(|a, b| a.end <= b.start));
        let _timed = self.timed(Phase::Attention);
        let all: usize = places.iter().map(Range::len).sum();
        if layer == 0 {
            // A pass that failed may have left one: dropped first, so that the arena never holds both.
            cache.salience = None;
            cache.salience = Some(KeySalience {
                sums: self.pool.take(cache.shape.layers, all, DType::F32)?,
                positions: places.to_vec(),
                count: count.min(all),
            });
        }
        // Taken out, since the kernels below borrow the cache.
        let mut salience = cache.salience.take();
        let found = salience.as_mut().expect("the first layer made room for it");
        assert_eq!(found.positions, places);
        // Allocated in a dry run, too, so that the plan counts them.
        let sizes = SalienceScratch {
            heads: shape.heads,
            queries: queries.len(),
            keys: all,
        };
        let is_gpu = self.device.is_gpu();
        // On the CPU each head sums apart, so that heads are shared out among threads without locks.
        let mut sums = match is_gpu {
            true => None,
            false => Some(self.pool.take(shape.heads, all, DType::F32)?),
        };
        let on_gpu = match is_gpu {
            true => {
                let segments = places.iter().flat_map(|place| [place.start, place.len()]);
                Some((
                    self.indices(segments)?,
                    self.pool.take_bytes(sizes.bytes())?,
                ))
            }
            false => None,
        };
        match (&self.backend, &mut sums, &on_gpu) {
            (Backend::Cpu(cpu), Some(sums), _) => {
                cpu.salience(sums, cache, layer, q, queries, shape, places);
                // Summed over the heads in their order, so that the number of threads changes nothing.
                let own = found.sums.row_mut(layer);
                own.fill(0.0);
                for of_head in sums.values().chunks_exact(all.max(1)) {
                    for (sum, other) in own.iter_mut().zip(of_head) {
                        *sum += other;
                    }
                }
            }
            (Backend::Gpu(gpu), _, Some((segments, scratch))) => {
                gpu.salience(Salient {
                    out: found.sums.rows_span(layer, 1),
                    scratch: scratch.span(),
                    q: q.rows_span(queries.start, queries.len()),
                    k: cache.spans(layer)[0],
                    segments: segments.span(),
                    segment_count: places.len(),
                    sizes,
                    kv_heads: shape.kv_heads,
                    head_dim: shape.head_dim,
                })?;
            }
            _ => {}
        }
        cache.salience = salience;
        Ok(())
    }

    /// Moves keys and values of the chosen positions to the first ones, in their order, once the pass has ended: a pass
    /// that fails is run again with all of them. Does nothing where no pass has chosen.
    ///
    /// # Errors
    /// When the device fails.
    pub fn keep_salient(&self, cache: &mut KvCache) -> Result<(), OpsError> {
        let Some(KeySalience {
            sums,
            positions: places,
            count,
        }) = cache.salience.take()
        else {
            return Ok(());
        };
        // One read for all layers, at the end of the pass: a read for each layer would wait for the GPU as often.
        let values = self.read(&sums)?;
        let (layers, all) = (sums.len(), sums.width());
        let of_layer = |layer: usize| most_salient(&values[layer * all..][..all], &places, count);
        match &self.backend {
            Backend::Cpu(_) => {
                for layer in 0..layers {
                    cache.keep_positions(layer, &of_layer(layer));
                }
            }
            Backend::Gpu(gpu) => {
                let kept: Vec<u32> = (0..layers).flat_map(of_layer).collect();
                // Uploaded over the sums, which have been read and are at least as large: at this point an allocation
                // must not fail.
                let there = sums.span().part(0, size_of_val(&kept[..]));
                gpu.upload(there, &kept)?;
                let row = cache.shape.row_bytes();
                let all = cache
                    .memory
                    .span()
                    .part(0, cache.shape.bytes(cache.capacity));
                gpu.keep_rows(all, layers, row, there, count)?;
            }
            Backend::DryRun => {}
        }
        Ok(())
    }
}

impl KvCache {
    /// Drops what a pass that has failed has summed.
    pub fn forget_salience(&mut self) {
        self.salience = None;
    }

    /// Moves keys and values of these positions, which rise, to the first ones of a layer, on the CPU.
    fn keep_positions(&mut self, layer: usize, places: &[u32]) {
        let row = self.shape.row_bytes();
        for which in 0..2 {
            let all = self.rows_mut(layer, which, 0..self.capacity);
            // Positions rise, so a row never overwrites one that is still to be moved.
            for (to, from) in places.iter().map(|&from| from as usize).enumerate() {
                all.copy_within(from * row..(from + 1) * row, to * row);
            }
        }
    }
}

/// The `count` positions with the most attention, in their order.
fn most_salient(sums: &[f32], places: &[Range<usize>], count: usize) -> Vec<u32> {
    let pooled = |at: usize| {
        let near = &sums[at.saturating_sub(1)..sums.len().min(at + 2)];
        // Sums of softmax weights are not negative, so 0 is a safe beginning.
        near.iter().copied().fold(0.0, f32::max)
    };
    let pooled: Vec<f32> = (0..sums.len()).map(pooled).collect();
    let mut ranked: Vec<usize> = (0..sums.len()).collect();
    // A stable sort: of equals the first stays, on every device.
    ranked.sort_by(|&a, &b| pooled[b].total_cmp(&pooled[a]));
    ranked.truncate(count);
    ranked.sort_unstable();
    let places: Vec<usize> = places.iter().cloned().flatten().collect();
    let kept = ranked.into_iter().map(|index| places[index] as u32);
    kept.collect()
}

#[cfg(test)]
mod tests;
