//! Memory of the device: of this process, or of a GPU.

use sluice_cuda::{CudaError, GpuMemory, GpuSpan};
use sluice_machine::{
    MemoryKind,
    page::{PAGE_BYTES, Page},
};
use sluice_weights::decompressed::BYTES_MAX;

use super::Device;
use crate::{
    OpsError,
    ledger::{HostBuffer, Ledger, LedgerEntry},
};

/// Memory of the device, in elements of `T`, that stands in the ledger for as long as it lives. In a dry run it is
/// counted, and empty.
#[derive(Debug)]
pub enum DeviceBuffer<T> {
    /// In this process, zeroed.
    Host(HostBuffer<T>),
    /// On a GPU, uninitialized.
    Gpu(GpuBuffer),
}

/// Memory on a GPU.
#[derive(Debug)]
pub struct GpuBuffer {
    // Dropped in this order: the memory is freed before its ledger entry goes, so that the ledger never shows too
    // little.
    memory: GpuMemory,
    entry: LedgerEntry,
}

impl<T: bytemuck::Zeroable> DeviceBuffer<T> {
    /// Memory for `len` elements.
    ///
    /// # Errors
    /// [`OpsError::OutOfMemory`] when the ledger's limit, the system or the GPU's driver refuses.
    pub fn new(
        device: &Device,
        ledger: &Ledger,
        kind: MemoryKind,
        len: usize,
    ) -> Result<Self, OpsError> {
        let Some(gpu) = device.gpu() else {
            return Ok(Self::Host(ledger.buffer(kind, len)?));
        };
        let bytes = len.saturating_mul(size_of::<T>());
        // The ledger first: what its limit refuses is never asked of the driver.
        let entry = ledger.reserve(kind, bytes as u64)?;
        // What lives long and changes with plans is suballocated: the driver rounds each allocation up to 2 MiB.
        let allocated = match kind {
            MemoryKind::Weights | MemoryKind::StagingBuffers => gpu.allocate_part(bytes),
            _ => gpu.allocate(bytes),
        };
        match allocated {
            Ok(memory) => Ok(Self::Gpu(GpuBuffer { memory, entry })),
            Err(CudaError::OutOfMemory { free_bytes, .. }) => {
                drop(entry);
                Err(OpsError::OutOfMemory {
                    purpose: kind.name(),
                    needed_bytes: bytes as u64,
                    used_bytes: ledger.used_bytes(),
                    // The limit did not refuse: the driver has less free than the limit allows.
                    limit_bytes: None,
                    free_bytes,
                })
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl<T: bytemuck::Pod> DeviceBuffer<T> {
    /// Memory for `len` elements, filled by `fill`, which is given an empty slice in a dry run.
    ///
    /// # Errors
    /// As [`DeviceBuffer::new`].
    pub fn filled(
        device: &Device,
        ledger: &Ledger,
        kind: MemoryKind,
        len: usize,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Self, OpsError> {
        let mut buffer = Self::new(device, ledger, kind, len)?;
        match (&mut buffer, device.gpu()) {
            (Self::Gpu(buffer), Some(gpu)) => {
                // Not in the ledger, which counts the GPU's memory here; freed once the copy is made.
                let mut values = vec![T::zeroed(); len];
                fill(&mut values);
                gpu.upload(buffer.memory.span(), bytemuck::cast_slice(&values))?;
            }
            (buffer, _) => fill(buffer.host_mut()),
        }
        Ok(buffer)
    }
}

impl<T> DeviceBuffer<T> {
    /// Bytes it stands for in the ledger.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Host(buffer) => buffer.bytes(),
            Self::Gpu(buffer) => buffer.entry.bytes(),
        }
    }

    /// The elements.
    ///
    /// # Panics
    /// When they are on a GPU.
    #[must_use]
    pub fn host(&self) -> &[T] {
        match self {
            Self::Host(buffer) => buffer,
            Self::Gpu(_) => not_on_host(),
        }
    }

    /// The elements, to be written.
    ///
    /// # Panics
    /// When they are on a GPU.
    pub fn host_mut(&mut self) -> &mut [T] {
        match self {
            Self::Host(buffer) => buffer,
            Self::Gpu(_) => not_on_host(),
        }
    }

    /// Where it lies on the GPU.
    ///
    /// # Panics
    /// When it lies in this process.
    #[must_use]
    pub fn span(&self) -> GpuSpan {
        match self {
            Self::Host(_) => unreachable!("kernels of a GPU are given its own memory"),
            Self::Gpu(buffer) => buffer.memory.span(),
        }
    }
}

impl DeviceBuffer<Page> {
    /// Memory into which a GPU decompresses weights of any shape, as much as a plan allows at most; none on the CPU,
    /// which has its scratch.
    ///
    /// # Errors
    /// As [`DeviceBuffer::new`].
    pub fn for_decompression(device: &Device, ledger: &Ledger) -> Result<Self, OpsError> {
        // By the device, not by what is decompressed: a dry run must come to the same bytes.
        let bytes = if device.is_gpu() { BYTES_MAX } else { 0 };
        Self::new(device, ledger, MemoryKind::Scratch, bytes / PAGE_BYTES)
    }

    /// Where it lies on a GPU; the empty span if there is none.
    pub fn on_gpu(&self) -> GpuSpan {
        match self {
            Self::Host(_) => GpuSpan::default(),
            Self::Gpu(_) => self.span(),
        }
    }
}

fn not_on_host() -> ! {
    unreachable!("the CPU's operations are given the process's own memory")
}
