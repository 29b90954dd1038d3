//! Owners of the driver's contexts, streams and events; each is released when dropped.

use std::{
    cell::Cell,
    fmt, ptr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    driver::{DeviceHandle, Driver, Handle},
    error::{CudaError, GpuUnavailable, code},
    library::ErrorCode,
    span::{GpuSpan, MemoryInfo},
};

/// The driver's state for one GPU in this process. Copies don't keep it alive: their holders are dropped before
/// [`OwnedContext`].
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    handle: Handle,
    /// Unique, unlike the driver's addresses, which it uses again.
    id: u64,
    /// Whether work has failed in a way that makes the context unusable.
    has_failed: &'static AtomicBool,
}

// SAFETY: the driver's handles are of use in any thread, and at once in several.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

thread_local! {
    /// The id of the context that this thread has set last. Nothing else in the process sets contexts, so unnecessary
    /// driver calls can be skipped.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

impl Context {
    /// Makes this the thread's current context, which most driver functions use.
    pub(crate) fn make_current(self) -> Result<(), CudaError> {
        if CURRENT.get() != self.id {
            // SAFETY: the context lives.
            self.driver.check("use the GPU in this thread", unsafe {
                (self.driver.api.context_set_current)(self.handle)
            })?;
            CURRENT.set(self.id);
        }
        Ok(())
    }

    /// Turns a code into an error that begins with `what`. A code that ends the context is remembered.
    pub(crate) fn check(self, what: &str, code: ErrorCode) -> Result<(), CudaError> {
        self.note(code);
        self.driver.check(what, code)
    }

    /// Remembers a code that ends the context.
    pub(crate) fn note(self, code: ErrorCode) {
        if code::ends_context(code) {
            self.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the context is unusable.
    pub(crate) fn has_failed(self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Waits until all work in all streams is done. The context must be current.
    pub(crate) fn wait(self) -> Result<(), CudaError> {
        // SAFETY: the context lives.
        self.check("finish all GPU work", unsafe {
            (self.driver.api.context_wait)()
        })
    }

    /// The GPU's total memory, and how much of it is free now.
    pub(crate) fn memory(self) -> Result<MemoryInfo, CudaError> {
        let (mut free, mut total) = (0, 0);
        self.make_current()?;
        // SAFETY: both outlive the call.
        self.check("query free memory", unsafe {
            (self.driver.api.memory_info)(&raw mut free, &raw mut total)
        })?;
        Ok(MemoryInfo {
            free_bytes: free as u64,
            total_bytes: total as u64,
        })
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.id).finish()
    }
}

/// The GPU's primary context, released when dropped. Other users in the process may hold it, too.
pub(crate) struct OwnedContext(pub(crate) Context, DeviceHandle);

impl OwnedContext {
    pub(crate) fn retain(
        driver: &'static Driver,
        device: DeviceHandle,
        name: &str,
        free_bytes: Option<u64>,
    ) -> Result<Self, GpuUnavailable> {
        /// Threads that wait sleep, rather than spin on a core that others read, decompress or serve with.
        const SCHEDULE_BLOCKING_SYNC: u32 = 4;
        /// About what a context takes on the GPU.
        const CONTEXT_BYTES: u64 = 512 << 20;
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);

        // SAFETY: the device exists. Failure only means that waiting spins.
        unsafe { (driver.api.context_flags)(device, SCHEDULE_BLOCKING_SYNC) };
        let mut handle = ptr::null_mut();
        // SAFETY: the device exists, and `handle` outlives the call.
        match unsafe { (driver.api.context_retain)(&raw mut handle, device) } {
            code::OUT_OF_MEMORY => Err(GpuUnavailable::TooLittleMemory {
                name: name.to_owned(),
                free_bytes,
                needed_bytes: CONTEXT_BYTES,
            }),
            // The driver has one code for both: whether another process holds the GPU, or its mode allows no work.
            code::DEVICE_UNAVAILABLE => Err(GpuUnavailable::Busy {
                name: name.to_owned(),
                prohibited: driver.is_prohibited(device),
            }),
            code => {
                driver.check(&format!("open {name}"), code)?;
                Ok(Self(
                    Context {
                        driver,
                        handle,
                        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                        // One byte per opened GPU, never freed, because copies of a context are everywhere.
                        has_failed: Box::leak(Box::new(AtomicBool::new(false))),
                    },
                    device,
                ))
            }
        }
    }
}

impl Drop for OwnedContext {
    fn drop(&mut self) {
        let driver = self.0.driver;
        if CURRENT.get() == self.0.id {
            // The thread-local entry must not match a later context.
            // SAFETY: no context is a valid one.
            unsafe { (driver.api.context_set_current)(ptr::null_mut()) };
            CURRENT.set(0);
        }
        // SAFETY: retained once, let go once, and nothing of it is in use.
        unsafe { (driver.api.context_release)(self.1) };
    }
}

/// A queue of GPU work that runs in order.
pub(crate) struct Stream {
    pub(crate) handle: Handle,
    context: Context,
}

// SAFETY: the driver's handles are of use in any thread, and at once in several.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn create(context: Context) -> Result<Self, CudaError> {
        /// Don't wait for the default stream, which others in the process may use.
        const NON_BLOCKING: u32 = 1;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` outlives the call.
        context.check("create a stream", unsafe {
            (context.driver.api.stream_create)(&raw mut handle, NON_BLOCKING)
        })?;
        Ok(Self { handle, context })
    }

    /// Waits until all work in the stream is done.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        self.context.make_current()?;
        // SAFETY: the stream lives.
        self.context.check("finish the GPU work", unsafe {
            (self.context.driver.api.stream_wait)(self.handle)
        })
    }

    /// Work that is sent from now on begins after the event as it is recorded now. The context must be current.
    pub(crate) fn begin_after(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both live, in the same context.
        self.context.check("wait for an event", unsafe {
            (self.context.driver.api.stream_begin_after)(self.handle, event.handle, 0)
        })
    }

    /// Sends a copy to the GPU. `from` must stay unchanged until the stream has been waited for. The context must be
    /// current.
    pub(crate) fn start_upload(
        &self,
        context: Context,
        to: GpuSpan,
        from: &[u8],
    ) -> Result<(), CudaError> {
        // SAFETY: `from` is readable for its length; the callers keep it until the copy is done.
        context.check("copy to the GPU", unsafe {
            (context.driver.api.copy_to_device)(
                to.address(),
                from.as_ptr().cast(),
                from.len(),
                self.handle,
            )
        })
    }

    /// Sets every byte of a span.
    pub(crate) fn fill(&self, to: GpuSpan, byte: u8) -> Result<(), CudaError> {
        if to.bytes() == 0 {
            return Ok(());
        }
        self.context.make_current()?;
        // SAFETY: an address on the GPU only; it checks it.
        self.context.check("fill GPU memory", unsafe {
            (self.context.driver.api.fill)(to.address(), byte, to.bytes(), self.handle)
        })
    }

    /// Copies from the GPU behind all work that was sent before, and waits. The lengths are equal.
    pub(crate) fn download(&self, from: GpuSpan, to: &mut [u8]) -> Result<(), CudaError> {
        if to.is_empty() {
            return Ok(());
        }
        self.context.make_current()?;
        // SAFETY: `to` is writable for its length, and nobody else's until the copy is done, which is waited for.
        self.context.check("copy from the GPU", unsafe {
            (self.context.driver.api.copy_to_host)(
                to.as_mut_ptr().cast(),
                from.address(),
                to.len(),
                self.handle,
            )
        })?;
        self.wait()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.handle).finish()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: created once, destroyed once, after its work has ended.
            unsafe {
                // Memory that its copies read may be freed next, so none of them may still be running.
                (self.context.driver.api.stream_wait)(self.handle);
                (self.context.driver.api.stream_destroy)(self.handle);
            }
        }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) handle: Handle,
    context: Context,
}

// SAFETY: the driver's handles are of use in any thread, and at once in several.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event. The context must be current.
    pub(crate) fn create(context: Context) -> Result<Self, CudaError> {
        /// Threads that wait for it sleep.
        const BLOCKING_SYNC: u32 = 1;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` outlives the call.
        context.check("create an event", unsafe {
            // Timing stays enabled: marks also tell how long copies took and work waited.
            (context.driver.api.event_create)(&raw mut handle, BLOCKING_SYNC)
        })?;
        Ok(Self { handle, context })
    }

    /// Records the event behind all work that was sent to the stream so far. The context must be current.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live, in the same context, which is the current one.
        self.context.check("record an event", unsafe {
            (self.context.driver.api.event_record)(self.handle, stream.handle)
        })
    }

    /// Waits on the host for the event. The context must be current.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        self.context.check("finish the GPU work", unsafe {
            (self.context.driver.api.event_wait)(self.handle)
        })
    }

    /// GPU time from an earlier event to this one, with a resolution of half a microsecond; `None` before both have
    /// passed. The context must be current.
    pub(crate) fn since(&self, earlier: &Self) -> Result<Option<Duration>, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: both live, in the same context, and `milliseconds` outlives the call.
        let code = unsafe {
            (self.context.driver.api.event_elapsed)(
                &raw mut milliseconds,
                earlier.handle,
                self.handle,
            )
        };
        if code == code::NOT_READY {
            return Ok(None);
        }
        self.context.check("measure GPU time", code)?;
        // `Duration` refuses negative seconds, which the difference of two rounded times might be.
        let seconds = milliseconds.max(0.0) / 1000.0;
        Ok(Some(Duration::from_secs_f32(seconds)))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: created once, destroyed once.
            unsafe { (self.context.driver.api.event_destroy)(self.handle) };
        }
    }
}
