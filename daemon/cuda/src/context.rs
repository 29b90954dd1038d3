//! The driver's objects that work needs: a context, streams and events, each let go when dropped.

use std::{
    cell::Cell,
    fmt, ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    CudaError, Unavailable,
    driver::{Device, Driver, Handle},
    error::code,
};

/// The driver's state for one card in this process. Copies don't keep it alive: what holds one is dropped before
/// [`OwnedContext`].
#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    handle: Handle,
    /// No two have the same, though the driver uses addresses again.
    id: u64,
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
            self.driver.check("use the card in this thread", unsafe {
                (self.driver.api.context_set_current)(self.handle)
            })?;
            CURRENT.set(self.id);
        }
        Ok(())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.id).finish()
    }
}

/// The card's primary context, which others in the process may hold too, let go when dropped.
pub(crate) struct OwnedContext(pub(crate) Context, Device);

impl OwnedContext {
    pub(crate) fn retain(
        driver: &'static Driver,
        device: Device,
        name: &str,
        free_bytes: Option<u64>,
    ) -> Result<Self, Unavailable> {
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
            code::OUT_OF_MEMORY => Err(Unavailable::TooLittleMemory {
                name: name.to_owned(),
                free_bytes,
                needed_bytes: CONTEXT_BYTES,
            }),
            code::DEVICE_UNAVAILABLE => Err(Unavailable::Busy {
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
        context.driver.check("make a stream", unsafe {
            (context.driver.api.stream_create)(&raw mut handle, NON_BLOCKING)
        })?;
        Ok(Self { handle, context })
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
        context.driver.check("make an event", unsafe {
            (context.driver.api.event_create)(&raw mut handle, BLOCKING_SYNC)
        })?;
        Ok(Self { handle, context })
    }

    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live, in the same context, which is the current one.
        self.context.driver.check("record an event", unsafe {
            (self.context.driver.api.event_record)(self.handle, stream.handle)
        })
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
