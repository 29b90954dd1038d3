//! One card: its context, its stream of work, and the kernels on it.

use std::{
    cell::Cell,
    collections::HashMap,
    ffi::{CString, c_void},
    fmt, ptr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    Blas, CudaError, Facts, GpuMemory, MemoryInfo, PinnedMemory, Span, Unavailable,
    driver::{Device, Driver, Handle},
    error::code,
    facts::NvmlDevice,
    kernels::module_of,
    memory::Pinned,
};

/// The least compute capability that the kernels are made for.
pub const CAPABILITY_NEEDED: (u32, u32) = (7, 5);

/// From this capability on, modules are used as compiled for it.
const CAPABILITY_OF_PTX_80: (u32, u32) = (8, 0);

/// Uploads up to this size are put aside, so that nobody waits for them. Larger ones are waited for, which is short beside
/// the copy itself.
const STAGING_BYTES: usize = 1 << 20;

/// One card. Cheap to clone and of use in any thread. What it is told runs later, in the order in which it was told; what goes
/// wrong then is the error of the next call that waits.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

/// The fields are dropped in this order: first the work ends, last the context.
struct Inner {
    blas: OnceLock<Result<Blas, String>>,
    stream: Stream,
    kernels: Mutex<Kernels>,
    staging: Mutex<Staging>,
    facts: Facts,
    nvml: Option<NvmlDevice>,
    context_bytes: Option<u64>,
    context: OwnedContext,
}

impl Gpu {
    /// Opens a card, by its number among those that this process may see.
    ///
    /// # Errors
    /// Why it can't be used.
    pub fn open(ordinal: usize) -> Result<Self, Unavailable> {
        let driver = Driver::get()?;
        let device = driver.device(ordinal)?;
        let facts = Facts::read(driver, device)?;
        if facts.capability < CAPABILITY_NEEDED {
            return Err(Unavailable::TooOld {
                name: facts.name,
                capability: facts.capability,
                needed: CAPABILITY_NEEDED,
            });
        }
        let nvml = NvmlDevice::find(&facts.pci_bus_id);
        let free_bytes = || nvml.as_ref().and_then(NvmlDevice::free_bytes);
        let free_before = free_bytes();
        let context = OwnedContext::retain(driver, device, &facts.name, free_before)?;
        context.0.make_current()?;
        let stream = Stream::create(context.0)?;
        let staging = Staging {
            memory: Pinned::allocate(context.0, STAGING_BYTES)?,
            used: 0,
        };
        let context_bytes = free_before
            .zip(free_bytes())
            .map(|(before, after)| before.saturating_sub(after));
        Ok(Self(Arc::new(Inner {
            blas: OnceLock::new(),
            stream,
            kernels: Mutex::new(Kernels::new(context.0)),
            staging: Mutex::new(staging),
            facts,
            nvml,
            context_bytes,
            context,
        })))
    }

    /// The card's name, as its maker calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.facts.name
    }

    /// The card's compute capability: the generation of its instructions.
    #[must_use]
    pub fn capability(&self) -> (u32, u32) {
        self.0.facts.capability
    }

    /// What is known of the card and stays so.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// What the context took on the card when it was opened; unknown without NVML, since the driver tells nothing before
    /// there is a context. A neighbour's allocation in that moment counts with it.
    #[must_use]
    pub fn context_bytes(&self) -> Option<u64> {
        self.0.context_bytes
    }

    /// How much memory the card has, and how much of it is free now.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn memory(&self) -> Result<MemoryInfo, CudaError> {
        let (mut free, mut total) = (0, 0);
        let context = self.current()?;
        // SAFETY: both outlive the call.
        context.driver.check("ask for free memory", unsafe {
            (context.driver.api.memory_info)(&raw mut free, &raw mut total)
        })?;
        Ok(MemoryInfo {
            free_bytes: free as u64,
            total_bytes: total as u64,
        })
    }

    /// Memory on the card, with whatever lay there. None at all is fine.
    ///
    /// # Errors
    /// When there is no room, with what is free.
    pub fn allocate(&self, bytes: usize) -> Result<GpuMemory, CudaError> {
        GpuMemory::allocate(self, bytes)
    }

    /// Memory of the host that the card copies at the full rate of the bus, filled with zeros.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn allocate_pinned(&self, bytes: usize) -> Result<PinnedMemory, CudaError> {
        PinnedMemory::allocate(self, bytes)
    }

    /// Copies to the card. When this returns, `from` may change.
    ///
    /// # Errors
    /// When the driver fails.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn upload(&self, to: Span, from: &[u8]) -> Result<(), CudaError> {
        assert_eq!(to.bytes(), from.len(), "upload: lengths differ");
        if from.is_empty() {
            return Ok(());
        }
        if from.len() > STAGING_BYTES {
            self.start_upload(to, from)?;
            return self.synchronize();
        }
        let mut staging = lock(&self.0.staging);
        if staging.used + from.len() > STAGING_BYTES {
            self.synchronize()?;
            staging.used = 0;
        }
        let start = staging.used;
        let aside = &mut staging.memory[start..start + from.len()];
        aside.copy_from_slice(from);
        self.start_upload(to, aside)?;
        staging.used += from.len();
        Ok(())
    }

    /// `from` must not change until the stream has been waited for.
    fn start_upload(&self, to: Span, from: &[u8]) -> Result<(), CudaError> {
        let context = self.current()?;
        // SAFETY: `from` is readable for its length; the callers keep it until the copy is done.
        context.driver.check("copy to the card", unsafe {
            (context.driver.api.copy_to_device)(
                to.address(),
                from.as_ptr().cast(),
                from.len(),
                self.0.stream.handle,
            )
        })
    }

    /// Copies from the card, after all that was sent before.
    ///
    /// # Errors
    /// When the driver fails, or what was sent before did.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn download(&self, from: Span, to: &mut [u8]) -> Result<(), CudaError> {
        assert_eq!(from.bytes(), to.len(), "download: lengths differ");
        if to.is_empty() {
            return Ok(());
        }
        let context = self.current()?;
        // SAFETY: `to` is writable for its length, and nobody else's until the copy is done, which is waited for.
        context.driver.check("copy from the card", unsafe {
            (context.driver.api.copy_to_host)(
                to.as_mut_ptr().cast(),
                from.address(),
                to.len(),
                self.0.stream.handle,
            )
        })?;
        self.synchronize()
    }

    /// Copies on the card. The two must not overlap.
    ///
    /// # Errors
    /// When the driver fails.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy(&self, to: Span, from: Span) -> Result<(), CudaError> {
        assert_eq!(to.bytes(), from.bytes(), "copy: lengths differ");
        if to.bytes() == 0 {
            return Ok(());
        }
        let context = self.current()?;
        // SAFETY: addresses on the card only; it checks them.
        context.driver.check("copy on the card", unsafe {
            (context.driver.api.copy_on_device)(
                to.address(),
                from.address(),
                to.bytes(),
                self.0.stream.handle,
            )
        })
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn fill(&self, to: Span, byte: u8) -> Result<(), CudaError> {
        if to.bytes() == 0 {
            return Ok(());
        }
        let context = self.current()?;
        // SAFETY: an address on the card only; it checks it.
        context.driver.check("fill memory on the card", unsafe {
            (context.driver.api.fill)(to.address(), byte, to.bytes(), self.0.stream.handle)
        })
    }

    /// Waits until all that was sent is done.
    ///
    /// # Errors
    /// When some of it failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let context = self.current()?;
        // SAFETY: the stream lives as long as the card.
        context.driver.check("finish the work on the card", unsafe {
            (context.driver.api.stream_wait)(self.0.stream.handle)
        })
    }

    /// cuBLAS, opened by the first call, where it is found.
    #[must_use]
    pub fn blas(&self) -> Option<&Blas> {
        self.open_blas().as_ref().ok()
    }

    /// Why there is no cuBLAS, if there is none.
    #[must_use]
    pub fn blas_absence(&self) -> Option<&str> {
        self.open_blas().as_ref().err().map(String::as_str)
    }

    fn open_blas(&self) -> &Result<Blas, String> {
        self.0.blas.get_or_init(|| {
            let context = self.current().map_err(|cause| cause.to_string())?;
            Blas::open(context, self.0.stream.handle)
        })
    }

    /// Begins to measure the time that the card takes for what is sent from now on.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn start_timer(&self) -> Result<Timer, CudaError> {
        let context = self.current()?;
        let timer = Timer {
            start: Event::create(context)?,
            end: Event::create(context)?,
            gpu: self.clone(),
        };
        timer.start.record(&self.0.stream)?;
        Ok(timer)
    }

    /// Runs a kernel after all that was sent before.
    ///
    /// # Errors
    /// When the kernel can't be made or started. What goes wrong in it comes later.
    ///
    /// # Panics
    /// When there is no such kernel, or it takes other arguments.
    pub(crate) fn launch(
        &self,
        kernel: &str,
        grid: [u32; 3],
        block: u32,
        shared_bytes: u32,
        arguments: &[Argument<'_>],
    ) -> Result<(), CudaError> {
        let context = self.current()?;
        let function = lock(&self.0.kernels).function(
            kernel,
            shared_bytes,
            arguments,
            self.0.facts.capability,
        )?;
        let mut addresses: Vec<*mut c_void> = arguments.iter().map(Argument::address).collect();
        // SAFETY: the kernel takes as many arguments of these sizes, and each address is readable for its size during the
        // call, which copies them.
        let code = unsafe {
            (context.driver.api.launch)(
                function,
                grid[0],
                grid[1],
                grid[2],
                block,
                1,
                1,
                shared_bytes,
                self.0.stream.handle,
                addresses.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        match code {
            0 => Ok(()),
            code => context.driver.check(&format!("launch {kernel}"), code),
        }
    }

    /// Makes the context this thread's.
    pub(crate) fn current(&self) -> Result<Context, CudaError> {
        let context = self.0.context.0;
        context.make_current()?;
        Ok(context)
    }

    pub(crate) fn nvml(&self) -> Option<&NvmlDevice> {
        self.0.nvml.as_ref()
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.name()).finish()
    }
}

/// The time that the card takes for what is sent while it runs.
#[derive(Debug)]
pub struct Timer {
    start: Event,
    end: Event,
    // Last: events end before their context.
    gpu: Gpu,
}

impl Timer {
    /// Waits until all that was sent is done, and tells how long the card took. It counts in steps of half a microsecond.
    ///
    /// # Errors
    /// When some of it failed.
    pub fn stop(self) -> Result<Duration, CudaError> {
        let driver = self.gpu.current()?.driver;
        self.end.record(&self.gpu.0.stream)?;
        // SAFETY: the event lives until the end of the function.
        driver.check("finish the work on the card", unsafe {
            (driver.api.event_wait)(self.end.handle)
        })?;
        let mut milliseconds = 0.0;
        // SAFETY: both events have been recorded, and `milliseconds` outlives the call.
        driver.check("measure time on the card", unsafe {
            (driver.api.event_elapsed)(&raw mut milliseconds, self.start.handle, self.end.handle)
        })?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1000.0))
    }
}

/// What a kernel is given.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument<'a> {
    Address(u64),
    U32(u32),
    F32(f32),
    U64(u64),
    /// A structure by value.
    Bytes(&'a [u8]),
}

impl Argument<'_> {
    fn address(&self) -> *mut c_void {
        match self {
            Self::Address(value) | Self::U64(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::U32(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::F32(value) => ptr::from_ref(value).cast_mut().cast(),
            Self::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Address(_) | Self::U64(_) => 8,
            Self::U32(_) | Self::F32(_) => 4,
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// The kernels that have been used, in the modules that hold them.
struct Kernels {
    modules: HashMap<&'static str, Handle>,
    functions: HashMap<String, Function>,
    context: Context,
}

struct Function {
    handle: Handle,
    /// Sizes of what it takes.
    parameters: Vec<usize>,
    /// Dynamic shared memory that it may be launched with.
    shared_bytes: u32,
}

// SAFETY: the driver's handles are of use in any thread.
unsafe impl Send for Kernels {}

impl Kernels {
    fn new(context: Context) -> Self {
        Self {
            modules: HashMap::new(),
            functions: HashMap::new(),
            context,
        }
    }

    fn function(
        &mut self,
        kernel: &str,
        shared_bytes: u32,
        arguments: &[Argument<'_>],
        capability: (u32, u32),
    ) -> Result<Handle, CudaError> {
        if !self.functions.contains_key(kernel) {
            let function = self.find(kernel, capability)?;
            self.functions.insert(kernel.to_owned(), function);
        }
        let function = self
            .functions
            .get_mut(kernel)
            .expect("it was inserted if it was not there");
        // The driver can't know how many addresses it is given.
        assert!(
            arguments
                .iter()
                .map(Argument::bytes)
                .eq(function.parameters.iter().copied()),
            "{kernel} takes arguments of {:?} bytes, not {arguments:?}",
            function.parameters
        );
        if shared_bytes > function.shared_bytes {
            const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
            let bytes = i32::try_from(shared_bytes).unwrap_or(i32::MAX);
            // SAFETY: the handle is a function's.
            let code = unsafe {
                (self.context.driver.api.function_attribute)(
                    function.handle,
                    MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    bytes,
                )
            };
            self.context
                .driver
                .check("give a kernel more shared memory", code)?;
            function.shared_bytes = shared_bytes;
        }
        Ok(function.handle)
    }

    fn find(&mut self, kernel: &str, capability: (u32, u32)) -> Result<Function, CudaError> {
        /// What a kernel may have without being asked for more.
        const SHARED_BYTES: u32 = 48 << 10;
        let module =
            module_of(kernel).unwrap_or_else(|| panic!("there is no kernel named {kernel}"));
        let ptx = match module.ptx_75 {
            Some(ptx) if capability < CAPABILITY_OF_PTX_80 => ptx,
            _ => module.ptx_80,
        };
        let parameters = parameters(ptx, kernel).unwrap_or_else(|| {
            panic!("{} has no {kernel} for this card", module.name);
        });
        let loaded = match self.modules.get(module.name) {
            Some(&loaded) => loaded,
            None => {
                let loaded = self.load(module.name, ptx)?;
                self.modules.insert(module.name, loaded);
                loaded
            }
        };
        let name = CString::new(kernel).expect("names have no NUL");
        let mut handle = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a NUL, and `handle` outlives the call.
        let code = unsafe {
            (self.context.driver.api.module_function)(&raw mut handle, loaded, name.as_ptr())
        };
        match code {
            0 => Ok(Function {
                handle,
                parameters,
                shared_bytes: SHARED_BYTES,
            }),
            code => Err(self.failed(module.name, code, "")),
        }
    }

    /// Has the driver compile a module for its card, or find it among what it compiled before.
    fn load(&self, module: &'static str, ptx: &str) -> Result<Handle, CudaError> {
        const ERROR_LOG_BUFFER: i32 = 5;
        const ERROR_LOG_BUFFER_BYTES: i32 = 6;
        let text = CString::new(ptx).expect("PTX has no NUL");
        let mut log = vec![0_u8; 8 << 10];
        let mut options = [ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_BYTES];
        let mut values = [
            log.as_mut_ptr().cast(),
            ptr::without_provenance_mut::<c_void>(log.len()),
        ];
        let mut handle = ptr::null_mut();
        // SAFETY: the text ends with a NUL; there are as many values as options, of the types that these want; all outlive
        // the call.
        let code = unsafe {
            (self.context.driver.api.module_load)(
                &raw mut handle,
                text.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if code == 0 {
            return Ok(handle);
        }
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        Err(self.failed(module, code, &String::from_utf8_lossy(&log[..end])))
    }

    fn failed(&self, module: &'static str, code: i32, log: &str) -> CudaError {
        let (name, text) = self.context.driver.words(code);
        CudaError::Kernels {
            module,
            name,
            text,
            log: log.trim().to_owned(),
        }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            for &module in self.modules.values() {
                // SAFETY: loaded once, unloaded once, after the work has ended.
                unsafe { (self.context.driver.api.module_unload)(module) };
            }
        }
    }
}

/// The sizes of a kernel's parameters, from `.visible .entry name(.param .u64 a, .param .align 8 .b8 b[32])`.
fn parameters(ptx: &str, kernel: &str) -> Option<Vec<usize>> {
    let list = ptx.match_indices(".entry").find_map(|(at, entry)| {
        let rest = ptx[at + entry.len()..].trim_start().strip_prefix(kernel)?;
        rest.trim_start().strip_prefix('(')?.split(')').next()
    })?;
    list.split(',')
        .filter(|parameter| !parameter.trim().is_empty())
        .map(|parameter| {
            let number = parameter.split_whitespace().find_map(|word| {
                let (kind, bits) = word.strip_prefix('.')?.split_at_checked(1)?;
                "usbf".contains(kind).then(|| bits.parse::<usize>().ok())?
            })?;
            let count = match parameter.split_once('[') {
                Some((_, count)) => count.split(']').next()?.trim().parse().ok()?,
                None => 1,
            };
            Some(number / 8 * count)
        })
        .collect()
}

/// Small uploads on their way.
struct Staging {
    memory: Pinned,
    used: usize,
}

/// Where work is sent to, to run in that order.
struct Stream {
    handle: Handle,
    context: Context,
}

// SAFETY: the driver's handles are of use in any thread, and at once in several.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    fn create(context: Context) -> Result<Self, CudaError> {
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
struct Event {
    handle: Handle,
    context: Context,
}

// SAFETY: the driver's handles are of use in any thread, and at once in several.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// The context must be the current one.
    fn create(context: Context) -> Result<Self, CudaError> {
        /// Waiting sleeps.
        const BLOCKING_SYNC: u32 = 1;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` outlives the call.
        context.driver.check("make an event", unsafe {
            (context.driver.api.event_create)(&raw mut handle, BLOCKING_SYNC)
        })?;
        Ok(Self { handle, context })
    }

    fn record(&self, stream: &Stream) -> Result<(), CudaError> {
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
struct OwnedContext(Context, Device);

impl OwnedContext {
    fn retain(
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
