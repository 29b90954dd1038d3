//! Copies to the card that run beside its work: a stream of their own, and marks by which the two wait for each other.
//!
//! Nothing is ordered but by marks. A copy begins when the copies before it have ended and the marks that its stream was
//! told to wait for have passed; the card's work begins likewise. The host waits for neither.

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

/// A moment in the card's work, or in a stream of copies: it has passed when all that was sent there before has ended.
#[derive(Debug)]
pub struct StreamMark {
    event: Event,
    // Last: events end before their context.
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

    /// Has the host wait for it.
    ///
    /// # Errors
    /// When what was sent before has failed.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.gpu.current()?;
        self.event.wait()
    }

    /// The time from an earlier mark to this one, by the card's clock; `None` before both have passed.
    ///
    /// # Errors
    /// When what was sent before has failed.
    pub fn since(&self, earlier: &Self) -> Result<Option<Duration>, CudaError> {
        self.gpu.current()?;
        self.event.since(&earlier.event)
    }
}

impl Gpu {
    /// Marks what has been sent to the card so far.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn mark(&self) -> Result<StreamMark, CudaError> {
        StreamMark::in_stream(self, self.stream())
    }

    /// Has work that is sent from now on begin after the mark, wherever that is.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn begin_after(&self, mark: &StreamMark) -> Result<(), CudaError> {
        self.current()?;
        self.stream().begin_after(&mark.event)
    }
}

/// Copies to the card in the order in which they are sent.
#[derive(Debug)]
pub struct CopyStream {
    stream: Stream,
    gpu: Gpu,
}

impl CopyStream {
    /// One more stream of a card.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self {
            stream: Stream::create(gpu.current()?)?,
            gpu: gpu.clone(),
        })
    }

    /// Has copies that are sent from now on begin after the mark, wherever that is.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn begin_after(&self, mark: &StreamMark) -> Result<(), CudaError> {
        self.gpu.current()?;
        self.stream.begin_after(&mark.event)
    }

    /// Marks what has been sent so far.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn mark(&self) -> Result<StreamMark, CudaError> {
        StreamMark::in_stream(&self.gpu, &self.stream)
    }

    /// Sends copies from `from`, each of some of its bytes to somewhere on the card. Whoever owns `from` is kept from writing
    /// to it until they have ended.
    ///
    /// # Errors
    /// When the driver fails.
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
        let sent = sent.and_then(|()| from.copies_end.record(&self.stream));
        if sent.is_err() {
            // Those before the one that failed are on their way, and no mark stands behind them.
            drop(self.stream.wait());
        }
        from.is_read.store(true, Ordering::Release);
        sent
    }

    /// Has the host wait until all copies have ended.
    ///
    /// # Errors
    /// When one of them failed.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.stream.wait()
    }
}

/// Memory of the host that copies to the card are made from: it isn't written, and not given back, before they have ended.
/// Zeros at first.
#[derive(Debug)]
pub struct HostMemory {
    memory: Memory,
    /// After the last copy from it.
    copies_end: Event,
    /// Whether there was a copy since the host waited for one.
    is_read: AtomicBool,
    // Last: all of it ends before the context.
    gpu: Gpu,
}

#[derive(Debug)]
enum Memory {
    Pinned(PinnedMemory),
    /// The driver copies such memory aside, piece by piece, before the card reads it.
    Pageable(Box<[Page]>),
}

/// As both kinds are aligned.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

impl HostMemory {
    /// Memory that the card reads at the full rate of the bus, and that the system can't page out: exactly so many bytes.
    ///
    /// # Errors
    /// [`CudaError::OutOfPinnedMemory`] when the system gives none.
    pub fn pinned(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
        let pinned = PinnedMemory::allocate(gpu.current()?, bytes)?;
        Self::new(gpu, Memory::Pinned(pinned))
    }

    /// Memory as any other, for where the system pins none.
    ///
    /// # Errors
    /// [`CudaError::OutOfPinnedMemory`] when the system gives none of that either.
    pub fn pageable(gpu: &Gpu, bytes: usize) -> Result<Self, CudaError> {
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

    /// Whether the system keeps it where it is.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self.memory, Memory::Pinned(_))
    }

    /// The bytes, which begin with a page, to be written once no copy reads them any more.
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
        // If that fails the context has failed, and nothing is copied in it any more.
        drop(self.wait_for_copies());
    }
}
