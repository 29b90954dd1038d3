//! Copies to the GPU that run beside its work: a stream of their own, and marks by which the two wait for each other.
//!
//! Only marks order the two. A copy begins when the copies before it have ended and the marks that its stream waits for
//! have passed; the same goes for the GPU's work. The host waits for neither.

use std::{
    ops::{Deref, DerefMut, Range},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{
    context::{Event, Stream},
    error::CudaError,
    gpu::Gpu,
    memory::{PAGE_BYTES, PinnedMemory},
    span::GpuSpan,
};

/// A point in the GPU's work or in a stream of copies. It has passed when all that was sent there before has ended.
#[derive(Debug)]
pub struct StreamMark {
    event: Event,
    // Dropped last: events must be destroyed before their context.
    gpu: Gpu,
}

impl StreamMark {
    fn in_stream(gpu: &Gpu, stream: &Stream) -> Result<Self, CudaError> {
        let event = Event::create(gpu.current()?)?;
        event.record(stream)?;
        Ok(Self {
            event,
            gpu: gpu.clone(),
        })
    }

    /// Waits on the host until the mark has passed.
    ///
    /// # Errors
    /// When what was sent before has failed.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.gpu.current()?;
        self.event.wait()
    }

    /// GPU time from an earlier mark to this one; `None` before both have passed.
    ///
    /// # Errors
    /// When what was sent before has failed.
    pub fn since(&self, earlier: &Self) -> Result<Option<Duration>, CudaError> {
        self.gpu.current()?;
        self.event.since(&earlier.event)
    }
}

impl Gpu {
    /// Marks the end of the work that has been sent to the GPU so far.
    ///
    /// # Errors
    /// When a driver call fails.
    pub fn mark(&self) -> Result<StreamMark, CudaError> {
        StreamMark::in_stream(self, self.stream())
    }

    /// Work that is sent from now on begins after the mark, in whichever stream that is.
    ///
    /// # Errors
    /// When a driver call fails.
    pub fn begin_after(&self, mark: &StreamMark) -> Result<(), CudaError> {
        self.current()?;
        self.stream().begin_after(&mark.event)
    }
}

/// A stream of copies to the GPU, which run in order.
#[derive(Debug)]
pub struct CopyStream {
    stream: Stream,
    gpu: Gpu,
}

impl CopyStream {
    /// Creates one more stream on a GPU.
    ///
    /// # Errors
    /// When a driver call fails.
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self {
            stream: Stream::create(gpu.current()?)?,
            gpu: gpu.clone(),
        })
    }

    /// Copies that are sent from now on begin after the mark, in whichever stream that is.
    ///
    /// # Errors
    /// When a driver call fails.
    pub fn begin_after(&self, mark: &StreamMark) -> Result<(), CudaError> {
        self.gpu.current()?;
        self.stream.begin_after(&mark.event)
    }

    /// Marks the end of the copies that have been sent so far.
    ///
    /// # Errors
    /// When a driver call fails.
    pub fn mark(&self) -> Result<StreamMark, CudaError> {
        StreamMark::in_stream(&self.gpu, &self.stream)
    }

    /// Sends copies of ranges of `from` to spans on the GPU. `from` cannot be written to or freed until they have
    /// ended.
    ///
    /// # Errors
    /// When a driver call fails.
    ///
    /// # Panics
    /// When bytes lie outside, or lengths differ.
    pub fn copy(
        &self,
        from: &HostMemory,
        parts: impl IntoIterator<Item = (GpuSpan, Range<usize>)>,
    ) -> Result<(), CudaError> {
        let context = self.gpu.current()?;
        let sent = parts.into_iter().try_for_each(|(to, bytes)| {
            let bytes = &from[bytes];
            assert_eq!(to.bytes(), bytes.len(), "copy: lengths differ");
            self.stream.start_upload(context, to, bytes)
        });
        // One event for all of these copies: they run in order.
        let sent = sent.and_then(|()| from.copies_end.record(&self.stream));
        if sent.is_err() {
            // The copies before the failed one are on their way, and no event stands behind them, so they are waited
            // for here.
            drop(self.stream.wait());
        }
        // Set even after an error: the event may stand behind copies that were sent.
        from.is_read.store(true, Ordering::Release);
        sent
    }

    /// Waits on the host until all copies have ended.
    ///
    /// # Errors
    /// When one of them failed.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.stream.wait()
    }
}

/// Host memory that copies to the GPU are made from. It isn't written or freed before the copies have ended. Zeroed at
/// first.
#[derive(Debug)]
pub struct HostMemory {
    memory: Memory,
    /// Recorded behind the last copy from this memory.
    copies_end: Event,
    /// Whether copies were sent since the host last waited for them.
    is_read: AtomicBool,
    // Dropped last: all of it must end before the context.
    gpu: Gpu,
}

#[derive(Debug)]
enum Memory {
    Pinned(PinnedMemory),
    /// Pageable memory: the driver copies it to a buffer of its own, piece by piece, before the GPU reads it.
    Pageable(Box<[Page]>),
}

/// Both kinds are page-aligned, as direct I/O into them needs.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

impl HostMemory {
    /// Allocates pinned (page-locked) memory, which the GPU reads at the full rate of the bus: exactly `bytes` bytes.
    ///
    /// # Errors
    /// [`CudaError::OutOfPinnedMemory`] when the system gives none.
    pub fn pinned(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        let pinned = PinnedMemory::allocate(gpu.current()?, bytes)?;
        Self::new(gpu, Memory::Pinned(pinned))
    }

    /// Allocates pageable memory, for systems that pin none.
    ///
    /// # Errors
    /// [`CudaError::OutOfPinnedMemory`] when the system gives none of that either.
    pub fn pageable(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        // Fallible: a buffer of gigabytes must not abort the process.
        let pages = bytemuck::allocation::try_zeroed_slice_box(bytes.div_ceil(PAGE_BYTES));
        let pages = pages.map_err(|()| CudaError::OutOfPinnedMemory {
            needed_bytes: bytes as u64,
        })?;
        Self::new(gpu, Memory::Pageable(pages))
    }

    fn new(gpu: &Gpu, memory: Memory) -> Result<Self, CudaError> {
        Ok(Self {
            memory,
            copies_end: Event::create(gpu.current()?)?,
            is_read: AtomicBool::new(false),
            gpu: gpu.clone(),
        })
    }

    /// Whether it is pinned.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self.memory, Memory::Pinned(_))
    }

    /// The bytes, page-aligned, once no copy reads them any more.
    ///
    /// # Errors
    /// When a copy failed.
    pub fn to_write(&mut self) -> Result<&mut [u8], CudaError> {
        self.wait_for_copies()?;
        Ok(match &mut self.memory {
            Memory::Pinned(pinned) => pinned.deref_mut(),
            Memory::Pageable(pages) => bytemuck::cast_slice_mut(pages),
        })
    }

    fn wait_for_copies(&self) -> Result<(), CudaError> {
        if self.is_read.load(Ordering::Acquire) {
            self.gpu.current()?;
            self.copies_end.wait()?;
            self.is_read.store(false, Ordering::Release);
        }
        Ok(())
    }
}

impl Deref for HostMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Pinned(pinned) => pinned,
            Memory::Pageable(pages) => bytemuck::cast_slice(pages),
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // If waiting fails the context has failed, and none of its copies run any more.
        drop(self.wait_for_copies());
    }
}
