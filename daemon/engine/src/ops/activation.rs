//! Rows of numbers on their way through a model, and the pool their memory comes from.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

use super::arena::{Arena, Part};
use crate::{
    error::EngineError,
    ledger::{Buffer, Kind, Ledger},
};

/// A matrix of activations, row after row. Its memory goes back to the pool on drop.
pub struct Activation {
    memory: Memory,
    rows: usize,
    width: usize,
}

enum Memory {
    /// A part of the pool's arena.
    Arena(Part),
    /// Outside of it: nothing was reserved, or more is taken than was.
    Own(Buffer<f32>),
}

impl Activation {
    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Numbers in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// All numbers.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        match &self.memory {
            Memory::Arena(part) => part.values(),
            Memory::Own(buffer) => buffer,
        }
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        match &mut self.memory {
            Memory::Arena(part) => part.values_mut(),
            Memory::Own(buffer) => buffer,
        }
    }

    /// One row.
    ///
    /// # Panics
    /// When there is no such row.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values()[index * self.width..(index + 1) * self.width]
    }

    /// Puts the rows of `other` in the place of those from `start` on.
    ///
    /// # Panics
    /// When they don't fit.
    pub fn set_rows(&mut self, start: usize, other: &Self) {
        assert_eq!(self.width, other.width);
        let values = &mut self.values_mut()[start * other.width..];
        values[..other.values().len()].copy_from_slice(other.values());
    }

    pub(super) fn row_mut(&mut self, index: usize) -> &mut [f32] {
        let width = self.width;
        &mut self.values_mut()[index * width..(index + 1) * width]
    }

    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let width = self.width;
        self.values_mut().chunks_exact_mut(width)
    }

    pub(super) fn par_rows_mut(&mut self) -> impl IndexedParallelIterator<Item = &mut [f32]> {
        let width = self.width;
        self.values_mut().par_chunks_exact_mut(width)
    }
}

/// Where activations get their memory: an arena reserved for a request, of the size that a rehearsal of its passes found.
pub(super) struct Pool {
    arena: Mutex<Option<Arc<Arena>>>,
    ledger: Ledger,
}

impl Pool {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self {
            arena: Mutex::default(),
            ledger,
        }
    }

    /// Takes an arena of `len` numbers, in the place of the one before.
    pub(super) fn reserve(&self, len: usize) -> Result<(), EngineError> {
        let mut arena = self.arena();
        // First given back, then taken: both at once may be more than there is.
        *arena = None;
        *arena = Some(Arc::new(Arena::new(&self.ledger, len)?));
        Ok(())
    }

    /// A matrix whose numbers are whatever they are.
    pub(super) fn take(&self, rows: usize, width: usize) -> Result<Activation, EngineError> {
        let len = rows * width;
        let part = self.arena().as_ref().and_then(|arena| arena.take(len));
        let memory = match part {
            Some(part) => Memory::Arena(part),
            None => Memory::Own(self.ledger.buffer(Kind::Activations, len)?),
        };
        Ok(Activation {
            memory,
            rows,
            width,
        })
    }

    /// A matrix outside of the arena, which may outlive it.
    pub(super) fn take_own(&self, rows: usize, width: usize) -> Result<Activation, EngineError> {
        Ok(Activation {
            memory: Memory::Own(self.ledger.buffer(Kind::Activations, rows * width)?),
            rows,
            width,
        })
    }

    /// Gives the arena back, once the last activation in it is dropped.
    pub(super) fn clear(&self) {
        *self.arena() = None;
    }

    /// Most numbers that the arena held at once.
    pub(super) fn high_water(&self) -> usize {
        self.arena().as_ref().map_or(0, |arena| arena.high_water())
    }

    fn arena(&self) -> MutexGuard<'_, Option<Arc<Arena>>> {
        // It is there or not, whatever its holder was doing when it panicked.
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
