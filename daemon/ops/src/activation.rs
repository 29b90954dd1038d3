//! Rows of elements on their way through a model, and the pool their memory comes from.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;
use sluice_cuda::GpuSpan;
use sluice_formats::DType;

use super::arena::{Arena, ArenaPart};
use crate::{OpsError, device::Device, ledger::Ledger};

/// A matrix of activations, row after row. Its memory goes back to the pool on drop.
pub struct Activation {
    memory: ArenaPart,
    rows: usize,
    width: usize,
    /// The elements' type; on the CPU always `f32`.
    dtype: DType,
}

impl Activation {
    /// How many rows the matrix has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Elements in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// All elements, on the CPU.
    pub(super) fn values(&self) -> &[f32] {
        self.memory.values()
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        self.memory.values_mut()
    }

    /// One row, on the CPU.
    pub(super) fn row(&self, index: usize) -> &[f32] {
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

    /// Where the whole matrix lies on a GPU.
    pub fn span(&self) -> GpuSpan {
        self.memory.span()
    }

    /// Where `count` rows from `start` on lie on a GPU.
    pub(super) fn rows_span(&self, start: usize, count: usize) -> GpuSpan {
        // Rows lie next to each other without padding, on a GPU too.
        let row = self.width * self.dtype.bytes();
        self.span().part(start * row, count * row)
    }
}

/// Positions in a matrix or a sequence, in the form that operations take.
pub struct Indices {
    values: Vec<u32>,
    /// Their copy on a GPU.
    on_gpu: Option<ArenaPart>,
}

impl Indices {
    pub(super) fn new(values: Vec<u32>, on_card: Option<ArenaPart>) -> Self {
        Self {
            values,
            on_gpu: on_card,
        }
    }

    /// How many positions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no positions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The positions, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = usize> {
        self.values.iter().map(|&value| value as usize)
    }

    pub(super) fn span(&self) -> GpuSpan {
        let part = self.on_gpu.as_ref();
        part.expect("made for operations of a GPU").span()
    }
}

/// The memory of activations: an arena reserved for a request, of the size that a dry run of its passes found.
pub(super) struct ActivationPool {
    arena: Mutex<Option<Arc<Arena>>>,
    device: Device,
    ledger: Ledger,
}

impl ActivationPool {
    pub(super) fn new(device: Device, ledger: Ledger) -> Self {
        Self {
            arena: Mutex::default(),
            device,
            ledger,
        }
    }

    /// Takes an arena of `bytes`, in the place of the one before.
    pub(super) fn reserve(&self, bytes: usize) -> Result<(), OpsError> {
        let mut arena = self.arena();
        // First given back, then taken: both at once may be more than there is.
        *arena = None;
        *arena = Some(self.new_arena(bytes)?);
        Ok(())
    }

    /// Whether it has an arena.
    pub(super) fn has_reserved(&self) -> bool {
        self.arena().is_some()
    }

    /// A matrix with uninitialized contents: elements are whatever the arena held before.
    pub(super) fn take(
        &self,
        // Not zeroed: every operation writes all of its output, and clearing would cost a pass over memory for each.
        rows: usize,
        width: usize,
        dtype: DType,
    ) -> Result<Activation, OpsError> {
        Ok(Activation {
            memory: self.take_bytes(rows * width * dtype.bytes())?,
            rows,
            width,
            dtype,
        })
    }

    /// Bytes with uninitialized contents.
    pub(super) fn take_bytes(&self, bytes: usize) -> Result<ArenaPart, OpsError> {
        let part = self.arena().as_ref().and_then(|arena| arena.take(bytes));
        match part {
            Some(part) => Ok(part),
            // Nothing was reserved, or more is taken than was.
            None => self.take_own(bytes),
        }
    }

    /// A matrix outside of the arena, which may outlive it.
    pub(super) fn persistent(
        &self,
        // Its own small arena, so that it is counted in the ledger and survives the next `reserve` or `clear`.
        rows: usize,
        width: usize,
        dtype: DType,
    ) -> Result<Activation, OpsError> {
        Ok(Activation {
            memory: self.take_own(rows * width * dtype.bytes())?,
            rows,
            width,
            dtype,
        })
    }

    fn take_own(&self, bytes: usize) -> Result<ArenaPart, OpsError> {
        let part = self.new_arena(bytes)?.take(bytes);
        Ok(part.expect("an arena has room for what it was made for"))
    }

    fn new_arena(&self, bytes: usize) -> Result<Arc<Arena>, OpsError> {
        Ok(Arc::new(Arena::new(&self.device, &self.ledger, bytes)?))
    }

    /// Gives the arena back, once the last activation in it is dropped.
    // Parts hold an `Arc` of their arena: a live activation keeps the memory valid and in the ledger.
    pub(super) fn clear(&self) {
        *self.arena() = None;
    }

    /// Most bytes that the arena held at once.
    pub(super) fn high_water(&self) -> usize {
        self.arena().as_ref().map_or(0, |arena| arena.high_water())
    }

    fn arena(&self) -> MutexGuard<'_, Option<Arc<Arena>>> {
        // It is there or not, whatever its holder was doing when it panicked.
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
