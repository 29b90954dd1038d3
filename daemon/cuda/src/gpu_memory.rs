//! Memory on the GPU that keeps its GPU open.

use crate::{error::CudaError, gpu::Gpu, memory::DeviceAllocation, span::GpuSpan};

/// Memory on the card, freed when dropped. Its contents are whatever lay there.
#[derive(Debug)]
pub struct GpuMemory {
    // Before the card, which it needs when it is freed.
    placement: MemoryPlacement,
    gpu: Gpu,
}

#[derive(Debug)]
enum MemoryPlacement {
    /// An allocation of its own.
    Allocation(DeviceAllocation),
    /// A part of the card's arena.
    ArenaPart(GpuSpan),
}

impl Gpu {
    /// Memory on the card, with whatever lay there. None at all is fine.
    ///
    /// # Errors
    /// When there is no room, with what is free.
    pub fn allocate(&self, bytes: usize) -> Result<GpuMemory, CudaError> {
        let memory = DeviceAllocation::allocate(self.current()?, bytes)?;
        Ok(GpuMemory::new(self, MemoryPlacement::Allocation(memory)))
    }

    /// Memory on the card for what is large and comes and goes: where the card can, a part of an arena, which has no more
    /// of the driver's memory than is in use, to a [piece](crate::ArenaUse::piece_bytes).
    ///
    /// # Errors
    /// When there is no room, with what is free.
    pub fn allocate_part(&self, bytes: usize) -> Result<GpuMemory, CudaError> {
        match self.take_part(bytes)? {
            Some(part) => Ok(GpuMemory::new(self, MemoryPlacement::ArenaPart(part))),
            None => self.allocate(bytes),
        }
    }
}

impl GpuMemory {
    fn new(gpu: &Gpu, place: MemoryPlacement) -> Self {
        Self {
            placement: place,
            gpu: gpu.clone(),
        }
    }

    /// Where it lies.
    #[must_use]
    pub fn span(&self) -> GpuSpan {
        match &self.placement {
            MemoryPlacement::Allocation(memory) => memory.span,
            MemoryPlacement::ArenaPart(part) => *part,
        }
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        if let MemoryPlacement::ArenaPart(part) = self.placement {
            self.gpu.give_back_part(part);
        }
    }
}
