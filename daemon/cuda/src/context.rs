//! The driver's objects that work needs: a context, streams and events, each let go when dropped.

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

/// The driver's state for one card in this process. Copies don't keep it alive: what holds one is dropped before
/// [`OwnedContext`].
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    handle: Handle,
    /// No two have the same, though the driver uses addresses again.
    id: u64,
    /// Whether work in it has failed in a way that nothing more can be done with it.
    has_failed: &'static AtomicBool,
}

// SAFETY: the driver's handles are of use in any thread, and at once in several.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

thread_local! {
    /// The id of the context that this thread has set last. Nothing else in the process sets contexts.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

impl Context {
    /// Makes it this thread's context, which most of the driver's functions go by.
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

    /// What a code means, after the words that say what was tried; one that ends the context is remembered.
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

    /// Whether nothing more can be done with it.
    pub(crate) fn has_failed(self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Waits until all that was sent to any stream is done. It must be the current one.
    pub(crate) fn wait(self) -> Result<(), CudaError> {
        // SAFETY: the context lives.
        self.check("finish all GPU work", unsafe {
            (self.driver.api.context_wait)()
        })
    }

    /// How much memory the card has, and how much of it is free now.
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

/// The card's primary context, which others in the process may hold too, let go when dropped.
pub(crate) struct OwnedContext(pub(crate) Context, DeviceHandle);

impl OwnedContext {
    pub(crate) fn retain(
        driver: &'static Driver,
        device: DeviceHandle,
        name: &str,
        free_bytes: Option<u64>,
    ) -> Result<Self, GpuUnavailable> {
        /// Waiting sleeps, and doesn't keep a processor busy which reads, decodes or serves meanwhile.
        const SCHEDULE_BLOCKING_SYNC: u32 = 4;
        /// About what a context takes.
        const CONTEXT_BYTES: u64 = 512 << 20;
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);

        // SAFETY: the device exists. It matters little if this fails.
        unsafe { (driver.api.context_flags)(device, SCHEDULE_BLOCKING_SYNC) };
        let mut handle = ptr::null_mut();
        // SAFETY: the device exists, and `handle` outlives the call.
        match unsafe { (driver.api.context_retain)(&raw mut handle, device) } {
            code::OUT_OF_MEMORY => Err(GpuUnavailable::TooLittleMemory {
                name: name.to_owned(),
                free_bytes,
                needed_bytes: CONTEXT_BYTES,
            }),
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
                        // A byte for each card that is opened, never freed: copies of a context are everywhere.
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
            // SAFETY: no context is a valid one.
            unsafe { (driver.api.context_set_current)(ptr::null_mut()) };
            CURRENT.set(0);
        }
        // SAFETY: retained once, let go once, and nothing of it is in use.
        unsafe { (driver.api.context_release)(self.1) };
    }
}

/// Where work is sent to, to run in that order.
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
        /// It doesn't wait for the default stream, which others in the process may use.
        const NON_BLOCKING: u32 = 1;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` outlives the call.
        context.check("create a stream", unsafe {
            (context.driver.api.stream_create)(&raw mut handle, NON_BLOCKING)
        })?;
        Ok(Self { handle, context })
    }

    /// Waits until all that was sent is done.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        self.context.make_current()?;
        // SAFETY: the stream lives.
        self.context.check("finish the GPU work", unsafe {
            (self.context.driver.api.stream_wait)(self.handle)
        })
    }

    /// Has what is sent from now on begin after the event, as it is recorded now. The context is the current one.
    pub(crate) fn begin_after(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both live, in the same context.
        self.context.check("wait for an event", unsafe {
            (self.context.driver.api.stream_begin_after)(self.handle, event.handle, 0)
        })
    }

    /// Sends a copy to the card. `from` must not change until the stream has been waited for; the context is the current one.
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

    /// Sets every byte.
    pub(crate) fn fill(&self, to: GpuSpan, byte: u8) -> Result<(), CudaError> {
        if to.bytes() == 0 {
            return Ok(());
        }
        self.context.make_current()?;
        // SAFETY: an address on the card only; it checks it.
        self.context.check("fill GPU memory", unsafe {
            (self.context.driver.api.fill)(to.address(), byte, to.bytes(), self.handle)
        })
    }

    /// Copies from the card, after all that was sent before. The lengths are the same.
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
                (self.context.driver.api.stream_wait)(self.handle);
                (self.context.driver.api.stream_destroy)(self.handle);
            }
        }
    }
}

/// A moment in a stream.
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
    /// The context must be the current one.
    pub(crate) fn create(context: Context) -> Result<Self, CudaError> {
        /// Waiting sleeps.
        const BLOCKING_SYNC: u32 = 1;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` outlives the call.
        context.check("create an event", unsafe {
            (context.driver.api.event_create)(&raw mut handle, BLOCKING_SYNC)
        })?;
        Ok(Self { handle, context })
    }

    /// From now on it stands for what the stream was sent so far. The context must be the current one.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live, in the same context, which is the current one.
        self.context.check("record an event", unsafe {
            (self.context.driver.api.event_record)(self.handle, stream.handle)
        })
    }

    /// Has the host wait for it. The context must be the current one.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        self.context.check("finish the GPU work", unsafe {
            (self.context.driver.api.event_wait)(self.handle)
        })
    }

    /// The time from an earlier event to this one, in steps of half a microsecond; `None` before both have happened. The
    /// context must be the current one.
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
