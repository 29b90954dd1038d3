//! Keys and values of a causal model's earlier positions, kept from pass to pass, and attention to them.

use std::ops::Range;

use sluice_cuda::Number;
use sluice_shared::level::Kv;

use super::{Activation, AttentionShape, Body, Ops, activation::Indices, attention::CardTasks};
use crate::{
    device::{DeviceBuffer, Profile},
    error::EngineError,
    format::Format,
    ledger::Kind,
    page::{PAGE_BYTES, Page},
    plan::PlanError,
};

/// What rows of a cache are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Layers.
    pub layers: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// How they are stored; on a card only as it computes.
    pub format: Format,
}

impl CacheShape {
    /// Numbers that are stored for a head: whole blocks.
    pub(super) fn stored_dim(&self) -> usize {
        self.head_dim.next_multiple_of(self.format.block_len())
    }

    /// Bytes of a head of one position.
    pub(super) fn head_bytes(&self) -> usize {
        self.format.bytes(self.stored_dim())
    }

    /// Bytes of the keys, or of the values, of one position in one layer.
    fn row_bytes(&self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Bytes of the keys and values of so many positions in all layers.
    #[must_use]
    pub fn bytes(&self, positions: usize) -> usize {
        2 * self.layers * positions * self.row_bytes()
    }
}

/// Keys and values of a sequence's first positions, in all layers.
pub struct KvCache {
    /// For each layer the keys of all positions, then their values.
    memory: DeviceBuffer<Page>,
    shape: CacheShape,
    capacity: usize,
    len: usize,
}

impl KvCache {
    /// Positions it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What its rows are like.
    #[must_use]
    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Bytes it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Counts in `rows` more positions, whose keys and values have been put into all layers.
    ///
    /// # Panics
    /// When it has no room for them.
    pub fn advance(&mut self, rows: usize) {
        self.len += rows;
        assert!(self.len <= self.capacity);
    }

    /// Forgets the last positions.
    ///
    /// # Panics
    /// When it holds fewer.
    pub fn take_back(&mut self, rows: usize) {
        assert!(rows <= self.len);
        self.len -= rows;
    }

    /// Where the keys (0) or values (1) of a layer begin, in bytes.
    fn start(&self, layer: usize, which: usize) -> usize {
        (2 * layer + which) * self.capacity * self.shape.row_bytes()
    }

    /// The keys (0) or values (1) of a layer's first `rows` positions, on the CPU.
    pub(super) fn rows(&self, layer: usize, which: usize, rows: usize) -> &[u8] {
        let start = self.start(layer, which);
        let bytes: &[u8] = bytemuck::cast_slice(self.memory.host());
        &bytes[start..start + rows * self.shape.row_bytes()]
    }

    /// Room for `rows` positions from the end of those held on, on the CPU.
    pub(super) fn room_mut(&mut self, layer: usize, which: usize, rows: usize) -> &mut [u8] {
        let start = self.start(layer, which) + self.len * self.shape.row_bytes();
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(self.memory.host_mut());
        &mut bytes[start..start + rows * self.shape.row_bytes()]
    }
}

/// Queries of several sequences, one sequence after another, by the positions that they stand at: each sees its own and all
/// before it.
pub struct CausalTasks {
    pub(super) positions: Vec<usize>,
    /// The queries of each sequence.
    pub(super) sequences: Vec<Range<usize>>,
    on_card: Option<CardTasks>,
}

impl Ops {
    /// Room for the keys and values of `capacity` positions.
    ///
    /// # Errors
    /// When it can't be had.
    ///
    /// # Panics
    /// On a card, when the format is not what it computes in.
    pub fn cache(&self, shape: CacheShape, capacity: usize) -> Result<KvCache, EngineError> {
        if self.device.is_card() {
            assert_eq!(shape.format, format_of(self.device.number()));
        }
        let pages = shape.bytes(capacity).div_ceil(PAGE_BYTES);
        Ok(KvCache {
            memory: DeviceBuffer::new(&self.device, &self.ledger, Kind::Cache, pages)?,
            shape,
            capacity,
            len: 0,
        })
    }

    /// Fills an empty cache with the first `rows` positions of another of the same shape.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When shapes differ, or either is too small.
    pub fn copy_cache(
        &self,
        to: &mut KvCache,
        from: &KvCache,
        rows: usize,
    ) -> Result<(), EngineError> {
        assert!(to.is_empty() && rows <= from.len && to.shape == from.shape);
        for layer in 0..to.shape.layers {
            for which in 0..2 {
                match &self.body {
                    Body::Cpu(_) => to
                        .room_mut(layer, which, rows)
                        .copy_from_slice(from.rows(layer, which, rows)),
                    Body::Card(card) => {
                        let bytes = rows * to.shape.row_bytes();
                        let span = |cache: &KvCache| {
                            cache.memory.span().part(cache.start(layer, which), bytes)
                        };
                        card.copy(span(to), span(from))?;
                    }
                    Body::Rehearsal => {}
                }
            }
        }
        to.advance(rows);
        Ok(())
    }

    /// Puts these rows of keys and values behind the positions held, in one layer; [`KvCache::advance`] counts them in.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When there is no room for them.
    pub fn append(
        &self,
        cache: &mut KvCache,
        layer: usize,
        keys: &Activation,
        values: &Activation,
        rows: Range<usize>,
    ) -> Result<(), EngineError> {
        assert!(cache.len + rows.len() <= cache.capacity);
        assert!(rows.end <= keys.len().min(values.len()));
        for (which, x) in [keys, values].into_iter().enumerate() {
            match &self.body {
                Body::Cpu(cpu) => cpu.store_rows(cache, layer, which, x, rows.clone()),
                Body::Card(card) => {
                    let row = cache.shape.row_bytes();
                    let start = cache.start(layer, which) + cache.len * row;
                    let room = cache.memory.span().part(start, rows.len() * row);
                    card.copy(room, x.rows_span(rows.start, rows.len()))?;
                }
                Body::Rehearsal => {}
            }
        }
        Ok(())
    }

    /// Makes queries at these positions ready for [`Ops::attend_causal`]; `counts` says how many are each sequence's.
    ///
    /// # Errors
    /// When memory can't be had.
    ///
    /// # Panics
    /// When there are more or fewer queries than that.
    pub fn causal_tasks(
        &self,
        positions: &Indices,
        counts: impl IntoIterator<Item = usize>,
    ) -> Result<CausalTasks, EngineError> {
        let positions: Vec<usize> = positions.iter().collect();
        let mut end = 0;
        let sequences = counts.into_iter().map(|count| {
            let start = end;
            end += count;
            start..end
        });
        let sequences = sequences.collect();
        assert_eq!(end, positions.len());
        // Queries of a task see the same keys, so on a card each is a task of its own.
        let on_card = match self.device.is_card() {
            true => Some(CardTasks {
                tasks: self.indices((0..positions.len()).flat_map(|query| [query, 1, query, 1]))?,
                segments: self.indices(positions.iter().flat_map(|position| [0, position + 1]))?,
            }),
            false => None,
        };
        Ok(CausalTasks {
            positions,
            sequences,
            on_card,
        })
    }

    /// `softmax(q · kᵀ / √head_dim) · v` over a layer's keys and values in the cache of each query's sequence, up to its
    /// own position; those of the positions of this pass must have been appended.
    ///
    /// # Errors
    /// When memory can't be had.
    ///
    /// # Panics
    /// When there is not a cache for each sequence, or a query stands beyond what its cache has room for.
    pub fn attend_causal(
        &self,
        q: &Activation,
        caches: &[&KvCache],
        layer: usize,
        shape: AttentionShape,
        tasks: &CausalTasks,
    ) -> Result<Activation, EngineError> {
        assert_eq!(q.width(), shape.heads * shape.head_dim);
        assert_eq!(q.len(), tasks.positions.len());
        assert_eq!(caches.len(), tasks.sequences.len());
        for (cache, queries) in caches.iter().zip(&tasks.sequences) {
            let inside = |position: &usize| *position < cache.capacity;
            assert!(tasks.positions[queries.clone()].iter().all(inside));
        }
        let mut out = self.pool.take(q.len(), q.width(), q.number())?;
        match &self.body {
            Body::Cpu(cpu) => cpu.attend_causal(&mut out, q, caches, layer, shape, tasks),
            Body::Card(card) => {
                let on_card = tasks.on_card.as_ref();
                let on_card = on_card.expect("made for a card's operations");
                for (cache, queries) in caches.iter().zip(&tasks.sequences) {
                    let bytes = cache.capacity * cache.shape.row_bytes();
                    let memory = |which| cache.memory.span().part(cache.start(layer, which), bytes);
                    let keys = [memory(0), memory(1)];
                    card.attend_spans(&out, q, keys, shape, on_card, queries.clone())?;
                }
            }
            Body::Rehearsal => {}
        }
        Ok(out)
    }
}

/// What keys and values are kept in on such a device: on the CPU what was asked for, and where nothing was, bf16, which
/// models compute them in when they are trained; on a card what it computes in.
///
/// # Errors
/// A card is asked for anything else.
pub fn cache_format(kv: Kv, profile: &Profile) -> Result<Format, PlanError> {
    let asked = match kv {
        Kv::Auto => None,
        Kv::F32 => Some(Format::F32),
        Kv::Bf16 => Some(Format::Bf16),
        Kv::Q8_0 => Some(Format::Q8_0),
    };
    let Some(card) = &profile.card else {
        return Ok(asked.unwrap_or(Format::Bf16));
    };
    let own = format_of(card.number);
    match asked.is_none_or(|asked| asked == own) {
        true => Ok(own),
        false => Err(PlanError::CacheFormat {
            asked: kv,
            number: own.name(),
        }),
    }
}

/// The format that keys and values are computed in.
#[must_use]
pub fn computed_format(profile: &Profile) -> Format {
    match &profile.card {
        Some(card) => format_of(card.number),
        None => Format::F32,
    }
}

/// The format that numbers of a card are.
fn format_of(number: Number) -> Format {
    match number {
        Number::F32 => Format::F32,
        Number::F16 => Format::F16,
        Number::Bf16 => Format::Bf16,
    }
}

#[cfg(test)]
mod tests;
