//! What an autoregressive model keeps of a sequence between passes: a KV cache, or a state, or latents with a KV cache
//! with a window.

use sluice_formats::Format;
use sluice_machine::page::PAGE_BYTES;
use sluice_ops::{
    KvCache, KvCacheShape, Ops, OpsError, RecurrentState, StateShape, WINDOW_PASS_ROWS,
};
use sluice_weights::{LayerKind, Shape};

use super::network::VisibleKeys;

/// The sizes of a sequence's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceShape {
    /// Of a KV cache, which grows with the sequence.
    KvCache(KvCacheShape),
    /// Of a state, which does not.
    State(StateShape),
    /// Of a KV cache with a window, and of latents.
    Latent(LatentMemoryShape),
}

/// The sizes of what a latent thought model keeps of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentMemoryShape {
    /// The KV cache of the tokens.
    window: KvCacheShape,
    /// Latents of a layer.
    latents: usize,
    /// Elements of a latent.
    hidden_size: usize,
}

impl LatentMemoryShape {
    /// The cache of the latents' keys and values.
    fn latent_cache(self) -> KvCacheShape {
        KvCacheShape {
            window: None,
            ..self.window
        }
    }

    /// Elements of all latents.
    fn elements(self) -> usize {
        self.window.layers * self.latents * self.hidden_size
    }
}

impl SequenceShape {
    /// The memory of a model of this shape, with its KV cache in this format if it has one.
    #[must_use]
    pub fn of(shape: &Shape, format: Format) -> Self {
        let cache = KvCacheShape::of(shape, format);
        match (StateShape::of(shape), shape.layer_kind) {
            (Some(state), _) => Self::State(state),
            (None, LayerKind::LatentThought(sizes)) => Self::Latent(LatentMemoryShape {
                window: cache,
                latents: sizes.latents,
                hidden_size: shape.hidden_size,
            }),
            (None, _) => Self::KvCache(cache),
        }
    }

    /// The format of its KV cache, if it has one.
    #[must_use]
    pub fn format(self) -> Option<Format> {
        match self {
            Self::KvCache(shape) => Some(shape.format),
            Self::Latent(shape) => Some(shape.window.format),
            Self::State(_) => None,
        }
    }

    /// Most rows of a pass, where `mlp_rows` go through an MLP together.
    #[must_use]
    pub fn pass_rows(self, mlp_rows: usize) -> usize {
        match self {
            Self::Latent(_) => mlp_rows.min(WINDOW_PASS_ROWS),
            Self::KvCache(_) | Self::State(_) => mlp_rows,
        }
    }

    /// What messages call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::KvCache(_) | Self::Latent(_) => "KV cache",
            Self::State(_) => "state",
        }
    }

    /// Bytes of the memory of a sequence with so many positions.
    #[must_use]
    pub fn bytes(self, positions: usize) -> usize {
        match self {
            Self::KvCache(shape) => shape.bytes(positions),
            Self::State(shape) => shape.bytes(),
            Self::Latent(shape) => {
                shape.window.bytes(positions) + shape.latent_cache().bytes(shape.latents)
            }
        }
    }

    /// Bytes that sequences with so many positions together may take beyond what as many of equal length take.
    pub(super) fn uneven_bytes(self, sequences: usize) -> usize {
        match self {
            // Each cache is rounded up to a page. With different lengths only their sum is known, so a page is added
            // for each.
            Self::KvCache(_) | Self::Latent(_) => (sequences - 1) * PAGE_BYTES,
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
    /// Keys and values of the latest positions, and latents.
    Latent(Box<LatentMemory>),
}

/// What a latent thought model keeps of a sequence.
pub struct LatentMemory {
    shape: LatentMemoryShape,
    window: KvCache,
    latents: KvCache,
    z: Vec<f32>,
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
            SequenceShape::Latent(shape) => Self::Latent(Box::new(LatentMemory {
                window: ops.kv_cache(shape.window, capacity)?,
                latents: ops.kv_cache(shape.latent_cache(), shape.latents)?,
                z: vec![0.0; shape.elements()],
                shape,
            })),
        })
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> SequenceShape {
        match self {
            Self::KvCache(cache) => SequenceShape::KvCache(cache.shape()),
            Self::State(state) => SequenceShape::State(state.shape()),
            Self::Latent(memory) => SequenceShape::Latent(memory.shape),
        }
    }

    /// How many positions were read.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::KvCache(cache) => cache.len(),
            Self::State(state) => state.len(),
            Self::Latent(memory) => memory.window.len(),
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
            Self::Latent(memory) => memory.window.bytes() + memory.latents.bytes(),
        }
    }

    /// Drops the `rows` positions that the last pass has read.
    pub fn take_back(&mut self, rows: usize) {
        match self {
            Self::KvCache(cache) => cache.take_back(rows),
            Self::State(state) => state.take_back(rows),
            Self::Latent(memory) => memory.window.take_back(rows),
        }
    }

    /// From how many of its positions another sequence can go on, of which `same` are the same: from any number with a
    /// KV cache, from all or none with a state, from none with latents, which belong to one prompt.
    #[must_use]
    pub fn usable(&self, same: usize) -> usize {
        match self {
            Self::KvCache(_) => same,
            Self::State(state) if state.len() == same => same,
            Self::State(_) | Self::Latent(_) => 0,
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

    /// Makes an empty sequence go on from a state, if it has one: these elements, as [`Ops::read_state`] gives them. It
    /// stays empty, since positions are counted from there.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When there are not as many elements as the state has.
    pub fn begin_with(&mut self, ops: &Ops, values: &[f32]) -> Result<(), OpsError> {
        match self {
            Self::State(state) => ops.write_state(state, values, 0),
            Self::KvCache(_) | Self::Latent(_) => Ok(()),
        }
    }

    /// Gives back what only passes need, before it is kept.
    pub fn settle(&mut self) {
        if let Self::State(state) = self {
            state.settle();
        }
    }

    /// Elements of the sequence's latents; 0 where it has none.
    #[must_use]
    pub fn latent_elements(&self) -> usize {
        match self {
            Self::Latent(memory) => memory.shape.elements(),
            Self::KvCache(_) | Self::State(_) => 0,
        }
    }

    /// Sets the latents of a sequence that has read nothing, if it has some: for each layer its rows of the hidden size.
    ///
    /// # Panics
    /// When it has read tokens, or there are not as many elements as the model's latents have.
    pub fn set_latents(&mut self, z: Vec<f32>) {
        if let Self::Latent(memory) = self {
            assert!(memory.latents.is_empty() && z.len() == memory.shape.elements());
            memory.z = z;
        }
    }

    /// Whether another sequence may go on from it.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        !matches!(self, Self::Latent(_))
    }

    /// What rows that follow those read so far see.
    pub fn sees(&mut self) -> VisibleKeys<'_> {
        match self {
            Self::KvCache(cache) => VisibleKeys::Before { cache },
            Self::State(state) => VisibleKeys::State { state, fork: None },
            Self::Latent(memory) => VisibleKeys::Latent {
                cache: &mut memory.window,
                latents: &mut memory.latents,
                z: &memory.z,
            },
        }
    }
}
