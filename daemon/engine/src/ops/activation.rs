//! Rows of numbers on their way through a model, and the pool their memory comes from.

use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use crate::{
    error::EngineError,
    ledger::{Buffer, Kind, Ledger},
};

/// A matrix of activations, row after row. Its memory goes back to the pool on drop.
pub struct Activation {
    /// At least `rows * width` long.
    data: Option<Buffer<f32>>,
    rows: usize,
    width: usize,
    pool: Pool,
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
        &self.buffer()[..self.rows * self.width]
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        let len = self.rows * self.width;
        let buffer = self.data.as_mut().expect("only drop takes the buffer");
        &mut buffer[..len]
    }

    /// One row.
    ///
    /// # Panics
    /// When there is no such row.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values()[index * self.width..(index + 1) * self.width]
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

    fn buffer(&self) -> &Buffer<f32> {
        self.data.as_ref().expect("only drop takes the buffer")
    }
}

impl Drop for Activation {
    fn drop(&mut self) {
        if let Some(buffer) = self.data.take() {
            self.pool.free().push(buffer);
        }
    }
}

/// Memory of dropped activations, kept for the next ones: fresh memory would be zeroed by
/// the system page by page at every operation.
#[derive(Clone)]
pub(super) struct Pool {
    free: Arc<Mutex<Vec<Buffer<f32>>>>,
    ledger: Ledger,
}

impl Pool {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self {
            free: Arc::default(),
            ledger,
        }
    }

    /// A matrix whose numbers are whatever they are.
    pub(super) fn take(&self, rows: usize, width: usize) -> Result<Activation, EngineError> {
        let len = rows * width;
        let reused = {
            let mut free = self.free();
            // The smallest that fits, unless most of it would lie idle.
            let best = free
                .iter()
                .enumerate()
                .filter(|(_, buffer)| buffer.len() >= len && buffer.len() <= 2 * len)
                .min_by_key(|(_, buffer)| buffer.len())
                .map(|(index, _)| index);
            best.map(|index| free.swap_remove(index))
        };
        let buffer = match reused {
            Some(buffer) => buffer,
            None => self.ledger.buffer(Kind::Activations, len)?,
        };
        Ok(Activation {
            data: Some(buffer),
            rows,
            width,
            pool: self.clone(),
        })
    }

    pub(super) fn clear(&self) {
        self.free().clear();
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Buffer<f32>>> {
        // A list of buffers is whole whatever its holder was doing when it panicked.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
