//! Where bytes lie on the GPU, and how many it has.

/// Bytes on the card: an address and a length. It says nothing about who owns them: one that outlives its
/// [`GpuMemory`](crate::GpuMemory) gives wrong numbers or the driver's error, and never touches the host's memory. The
/// default one is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuSpan {
    address: u64,
    bytes: usize,
}

impl GpuSpan {
    pub(crate) fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// `bytes` of it, from `offset` on.
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

    /// Where it begins.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }

    /// How long it is.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.bytes
    }
}

/// How much memory the card has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free, for this process and others.
    pub free_bytes: u64,
    /// All that programs can have.
    pub total_bytes: u64,
}
