//! What an autoregressive model keeps of a sequence between passes: a KV cache, or a state.

use sluice_formats::Format;
use sluice_machine::page::PAGE_BYTES;
use sluice_ops::{KvCache, KvCacheShape, Ops, OpsError, RecurrentState, StateShape};
use sluice_weights::Shape;

use super::network::VisibleKeys;

/// The sizes of a sequence's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceShape {
    /// Of a KV cache, which grows with the sequence.
    KvCache(KvCacheShape),
    /// Of a state, which does not.
    State(StateShape),
}

impl SequenceShape {
    /// The memory of a model of this shape, with its KV cache in this format if it has one.
    #[must_use]
    pub fn of(shape: &Shape, format: Format) -> Self {
        match StateShape::of(shape) {
            Some(state) => Self::State(state),
            None => Self::KvCache(KvCacheShape::of(shape, format)),
        }
    }

    /// What messages call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::KvCache(_) => "KV cache",
            Self::State(_) => "state",
        }
    }

    /// Bytes of the memory of a sequence with so many positions.
    #[must_use]
    pub fn bytes(self, positions: usize) -> usize {
        match self {
            Self::KvCache(shape) => shape.bytes(positions),
            Self::State(shape) => shape.bytes(),
        }
    }

    /// Bytes that sequences with so many positions together may take beyond what as many of equal length take.
    pub(super) fn uneven_bytes(self, sequences: usize) -> usize {
        match self {
            // Each cache is rounded up to a page. With different lengths only their sum is known, so a page is added
            // for each.
            Self::KvCache(_) => (sequences - 1) * PAGE_BYTES,
            Self::State(_) => 0,
        }
    }
}

/// What is kept of a sequence.
pub enum SequenceMemory {
    /// Keys and values of all its positions.
    KvCache(KvCache),
    /// A state of fixed size.
    State(RecurrentState),
}

impl SequenceMemory {
    /// The memory of an empty sequence that may have `capacity` positions.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn new(ops: &Ops, shape: SequenceShape, capacity: usize) -> Result<Self, OpsError> {
        Ok(match shape {
            SequenceShape::KvCache(shape) => Self::KvCache(ops.kv_cache(shape, capacity)?),
            SequenceShape::State(shape) => Self::State(ops.recurrent_state(shape)?),
        })
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> SequenceShape {
        match self {
            Self::KvCache(cache) => SequenceShape::KvCache(cache.shape()),
            Self::State(state) => SequenceShape::State(state.shape()),
        }
    }

    /// How many positions were read.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::KvCache(cache) => cache.len(),
            Self::State(state) => state.len(),
        }
    }

    /// Whether no position was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that it holds on the device.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::KvCache(cache) => cache.bytes(),
            Self::State(state) => state.bytes(),
        }
    }

    /// Drops the `rows` positions that the last pass has read.
    pub fn take_back(&mut self, rows: usize) {
        match self {
            Self::KvCache(cache) => cache.take_back(rows),
            Self::State(state) => state.take_back(rows),
        }
    }

    /// From how many of its positions another sequence can go on, of which `same` are the same: from any number with a
    /// KV cache, from all or none with a state.
    #[must_use]
    pub fn usable(&self, same: usize) -> usize {
        match self {
            Self::KvCache(_) => same,
            Self::State(state) if state.len() == same => same,
            Self::State(_) => 0,
        }
    }

    /// Fills an empty memory with the first `rows` positions of another of the same shape, from which it can go on.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When the shapes differ, or it can't go on from so many.
    pub fn copy_from(&mut self, ops: &Ops, other: &Self, rows: usize) -> Result<(), OpsError> {
        assert_eq!(other.usable(rows), rows);
        match (self, other) {
            (Self::KvCache(to), Self::KvCache(from)) => ops.copy_kv_cache(to, from, rows),
            (Self::State(to), Self::State(from)) => ops.copy_state(to, from),
            _ => unreachable!("a model's sequences have one kind of memory"),
        }
    }

    /// Gives back what only passes need, before it is kept.
    pub fn settle(&mut self) {
        if let Self::State(state) = self {
            state.settle();
        }
    }

    /// What rows that follow those read so far see.
    pub fn sees(&mut self) -> VisibleKeys<'_> {
        match self {
            Self::KvCache(cache) => VisibleKeys::Before { cache },
            Self::State(state) => VisibleKeys::State { state, fork: None },
        }
    }
}
