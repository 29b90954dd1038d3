//! Memory on the GPU that keeps its GPU open.

use crate::{error::CudaError, gpu::Gpu, memory::OnCard, span::Span};

/// Memory on the card, freed when dropped. Its contents are whatever lay there.
#[derive(Debug)]
pub struct GpuMemory {
    // Before the card, which it needs when it is freed.
    place: Place,
    gpu: Gpu,
}

#[derive(Debug)]
enum Place {
    /// An allocation of its own.
    Own(OnCard),
    /// A part of the card's arena.
    Part(Span),
}

impl Gpu {
    /// Memory on the card, with whatever lay there. None at all is fine.
    ///
    /// # Errors
    /// When there is no room, with what is free.
    pub fn allocate(&self, bytes: usize) -> Result<GpuMemory, CudaError> {
        let memory = OnCard::allocate(self.current()?, bytes)?;
        Ok(GpuMemory::new(self, Place::Own(memory)))
    }

    /// Memory on the card for what is large and comes and goes: where the card can, a part of an arena, which has no more
    /// of the driver's memory than is in use, to a [piece](crate::ArenaUse::piece_bytes).
    ///
    /// # Errors
    /// When there is no room, with what is free.
    pub fn allocate_part(&self, bytes: usize) -> Result<GpuMemory, CudaError> {
        match self.take_part(bytes)? {
            Some(part) => Ok(GpuMemory::new(self, Place::Part(part))),
            None => self.allocate(bytes),
        }
    }
}

impl GpuMemory {
    fn new(gpu: &Gpu, place: Place) -> Self {
        Self {
            place,
            gpu: gpu.clone(),
        }
    }

    /// Where it lies.
    #[must_use]
    pub fn span(&self) -> Span {
        match &self.place {
            Place::Own(memory) => memory.span,
            Place::Part(part) => *part,
        }
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        if let Place::Part(part) = self.place {
            self.gpu.give_back_part(part);
        }
    }
}
