//! Ranges of GPU memory, and how much memory a GPU has.

/// A range of GPU memory: an address and a length. It doesn't own the memory. Use of a span that outlives its
/// [`GpuMemory`](crate::GpuMemory) gives wrong values or a driver error, but never touches host memory. The default
/// span is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuSpan {
    address: u64,
    bytes: usize,
}

impl GpuSpan {
    pub(crate) fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// `bytes` bytes of it, from `offset` on.
    ///
    /// # Panics
    /// When they don't all lie inside.
    #[must_use]
    pub fn part(self, offset: usize, bytes: usize) -> Self {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{bytes} bytes from {offset} on exceed a span of {}",
            self.bytes
        );
        Self {
            address: self.address + offset as u64,
            bytes,
        }
    }

    /// Address of its first byte on the GPU.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.bytes
    }
}

/// A GPU's memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that are free, for this process and others.
    pub free_bytes: u64,
    /// Total bytes that programs can use.
    pub total_bytes: u64,
}
