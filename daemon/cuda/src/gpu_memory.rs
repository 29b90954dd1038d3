//! GPU memory that keeps its GPU open.

use crate::{error::CudaError, gpu::Gpu, memory::DeviceAllocation, span::GpuSpan};

/// GPU memory, freed when dropped. Its initial contents are arbitrary.
#[derive(Debug)]
pub struct GpuMemory {
    // Dropped before the GPU, which is needed to free it.
    placement: MemoryPlacement,
    gpu: Gpu,
}

#[derive(Debug)]
enum MemoryPlacement {
    /// An allocation by the driver.
    Allocation(DeviceAllocation),
    /// A part of the GPU's arena.
    ArenaPart(GpuSpan),
}

impl Gpu {
    /// Allocates GPU memory with arbitrary contents. 0 bytes are allowed.
    ///
    /// # Errors
    /// When the GPU has too little free memory.
    pub fn allocate(&self, bytes: usize) -> Result<GpuMemory, CudaError> {
        let memory = DeviceAllocation::allocate(self.current()?, bytes)?;
        Ok(GpuMemory::new(self, MemoryPlacement::Allocation(memory)))
    }

    /// Allocates memory for large buffers that come and go: a part of the arena where the GPU has one, which holds no
    /// more of the driver's memory than is in use, up to a [piece](crate::ArenaUse::piece_bytes).
    ///
    /// # Errors
    /// When the GPU has too little free memory.
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

    /// The memory's span.
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
