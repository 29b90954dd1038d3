//! GPU memory and pinned host memory, as the driver allocates them. Neither keeps its context alive.

use std::{
    ffi::c_void,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    slice,
};

use crate::{
    context::Context,
    error::{CudaError, code},
    span::GpuSpan,
};

/// An allocation on the GPU, freed when dropped.
#[derive(Debug)]
pub(crate) struct DeviceAllocation {
    pub(crate) span: GpuSpan,
    context: Context,
}

impl DeviceAllocation {
    /// Allocates GPU memory. The context must be current.
    pub(crate) fn allocate(context: Context, bytes: usize) -> Result<Self, CudaError> {
        let mut address = 0;
        // The driver refuses 0 bytes.
        if bytes > 0 {
            // SAFETY: `address` outlives the call.
            match unsafe { (context.driver.api.memory_allocate)(&raw mut address, bytes) } {
                code::OUT_OF_MEMORY => {
                    return Err(CudaError::OutOfMemory {
                        needed_bytes: bytes as u64,
                        free_bytes: context.memory().ok().map(|memory| memory.free_bytes),
                    });
                }
                code => context.check("allocate GPU memory", code)?,
            }
        }
        Ok(Self {
            span: GpuSpan::new(address, bytes),
            context,
        })
    }
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        if self.span.bytes() > 0 && self.context.make_current().is_ok() {
            // SAFETY: allocated by this driver and freed once. The driver waits for work that uses it. It fails only when
            // the context has failed before, which is remembered and takes the memory along.
            self.context
                .note(unsafe { (self.context.driver.api.memory_free)(self.span.address()) });
        }
    }
}

/// Alignment of pinned memory.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Pinned host memory, which the GPU copies from and to at the full rate of the bus. It is page-aligned, as direct I/O
/// needs, and freed when dropped; it doesn't keep its context alive.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    start: NonNull<u8>,
    bytes: usize,
    /// The address that the driver returned, which it must be freed by.
    given: *mut c_void,
    context: Context,
}

// SAFETY: it is plain memory with one owner.
unsafe impl Send for PinnedMemory {}
// SAFETY: shared, it can only be read.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates pinned memory, zeroed. The context must be current.
    pub(crate) fn allocate(context: Context, bytes: usize) -> Result<Self, CudaError> {
        let mut given: *mut c_void = ptr::null_mut();
        let mut start = given;
        if bytes > 0 {
            // One page more, because the driver doesn't promise page alignment.
            let with_page = bytes.saturating_add(PAGE_BYTES);
            // Not write-combined, which the CPU would read very slowly.
            // SAFETY: `given` outlives the call.
            let code = unsafe { (context.driver.api.host_allocate)(&raw mut given, with_page, 0) };
            // Systems limit pinned memory in various ways, which drivers report by several codes. Whatever the reason,
            // the caller can do without, unless the context has ended.
            if code != 0 && !code::ends_context(code) {
                return Err(CudaError::OutOfPinnedMemory {
                    needed_bytes: bytes as u64,
                });
            }
            context.check("allocate pinned memory", code)?;
            start = given.wrapping_byte_add(given.align_offset(PAGE_BYTES));
            // SAFETY: the driver gave `bytes` bytes and a page. A slice of them may be made only once they have values.
            unsafe { ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
        }
        Ok(Self {
            start: NonNull::new(start.cast()).unwrap_or(NonNull::dangling()),
            bytes,
            given,
            context,
        })
    }
}

impl Deref for PinnedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes from `start` on are ours and have values; none may start anywhere.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for PinnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else holds a slice of them.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.bytes > 0 && self.context.make_current().is_ok() {
            // SAFETY: allocated by this driver and freed once. Every copy from or to it has been waited for.
            unsafe { (self.context.driver.api.host_free)(self.given) };
        }
    }
}
