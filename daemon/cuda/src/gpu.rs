//! One GPU: its context, its stream of work, and its kernels.

use std::{
    ffi::c_void,
    fmt, ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    arena::{Arena, ArenaUse},
    blas::Blas,
    context::{Context, Event, OwnedContext, Stream},
    driver::Driver,
    error::{CudaError, GpuUnavailable},
    launch::{KernelArgument, KernelCache},
    memory::PinnedMemory,
    nvml::{LiveStats, NvmlDevice},
    properties::DeviceProperties,
    span::{GpuSpan, MemoryInfo},
};

/// The lowest compute capability that the kernels support: Turing.
pub const CAPABILITY_NEEDED: (u32, u32) = (7, 5);

/// Uploads up to this size are copied to a staging buffer, so that the caller needn't wait. For larger ones waiting is
/// short compared with the copy itself.
const STAGING_BYTES: usize = 1 << 20;

/// One GPU. Cheap to clone, and usable from any thread. Work runs later, in the order in which it was sent; its errors
/// appear at the next call that waits.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

/// Fields are dropped in this order: first streams, whose work ends, and last the context.
struct Inner {
    blas: Result<Blas, String>,
    stream: Stream,
    /// For copies to memory that no work in `stream` uses.
    copies: Stream,
    kernels: Mutex<KernelCache>,
    staging: Mutex<Staging>,
    arena: Option<Arena>,
    properties: DeviceProperties,
    nvml: Option<NvmlDevice>,
    context_bytes: Option<u64>,
    context: OwnedContext,
}

impl Gpu {
    /// Opens a GPU by its index among those that this process may see.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(ordinal: usize) -> Result<Self, GpuUnavailable> {
        let driver = Driver::get()?;
        let device = driver.device(ordinal)?;
        let facts = DeviceProperties::read(driver, device)?;
        if facts.capability < CAPABILITY_NEEDED {
            return Err(GpuUnavailable::TooOld {
                name: facts.name,
                capability: facts.capability,
                needed: CAPABILITY_NEEDED,
            });
        }
        // Looked at before the context exists: only NVML can tell free memory then.
        let nvml = NvmlDevice::find(&facts.pci_bus_id);
        let free_bytes = || nvml.as_ref().and_then(NvmlDevice::free_bytes);
        let free_before = free_bytes();
        let context = OwnedContext::retain(driver, device, &facts.name, free_before)?;
        context.0.make_current()?;
        let stream = Stream::create(context.0)?;
        let copies = Stream::create(context.0)?;
        let staging = Staging {
            memory: PinnedMemory::allocate(context.0, STAGING_BYTES)?,
            used: 0,
        };
        // cuBLAS's handle allocates GPU memory, which counts as part of the context.
        let blas = Blas::open(context.0, &stream, &facts);
        // The trials of cuBLAS have ended by then. If they broke the context, all that follows fails.
        stream.wait()?;
        let workspace_bytes = blas
            .as_ref()
            .map_or(0, |blas| blas.workspace_bytes() as u64);
        // Opened after cuBLAS and before the second reading of free memory: the arena only reserves addresses, so the
        // difference is the context's memory alone.
        let arena = Arena::open(context.0, device);
        let context_bytes = free_before
            .zip(free_bytes())
            // Saturating, since other processes may have freed memory in between.
            .map(|(before, after)| before.saturating_sub(after + workspace_bytes));
        Ok(Self(Arc::new(Inner {
            blas,
            stream,
            copies,
            kernels: Mutex::new(KernelCache::new(context.0)),
            staging: Mutex::new(staging),
            arena,
            properties: facts,
            nvml,
            context_bytes,
            context,
        })))
    }

    /// The GPU's product name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.properties.name
    }

    /// The GPU's compute capability: major and minor version.
    #[must_use]
    pub fn capability(&self) -> (u32, u32) {
        self.0.properties.capability
    }

    /// The GPU's constant properties.
    #[must_use]
    pub fn properties(&self) -> &DeviceProperties {
        &self.0.properties
    }

    /// Bytes that the context took when the GPU was opened, including cuBLAS but not [its
    /// workspace](Blas::workspace_bytes). `None` without NVML, because the driver reports nothing before there is a
    /// context. An allocation of another process at that moment is counted, too.
    #[must_use]
    pub fn context_bytes(&self) -> Option<u64> {
        self.0.context_bytes
    }

    /// The GPU's total memory, and how much of it is free now.
    ///
    /// # Errors
    /// When a driver call fails.
    pub fn memory(&self) -> Result<MemoryInfo, CudaError> {
        self.0.context.0.memory()
    }

    /// The GPU's current state: memory, clocks, temperature, load.
    #[must_use]
    pub fn live_stats(&self) -> LiveStats {
        let free_bytes = self.memory().ok().map(|memory| memory.free_bytes);
        LiveStats::read(self.0.nvml.as_ref(), free_bytes)
    }

    /// Bytes of GPU memory that this process holds by NVML's count, including its context; `None` if NVML doesn't tell.
    #[must_use]
    pub fn held_bytes(&self) -> Option<u64> {
        self.0.nvml.as_ref()?.held_bytes()
    }

    /// The arena's memory figures; `None` where the GPU has no arena.
    #[must_use]
    pub fn arena(&self) -> Option<ArenaUse> {
        self.0.arena.as_ref().map(Arena::in_use)
    }

    /// Allocates from the arena; `None` if there is no arena, or `bytes` is 0.
    pub(crate) fn take_part(&self, bytes: usize) -> Result<Option<GpuSpan>, CudaError> {
        match &self.0.arena {
            Some(arena) if bytes > 0 => {
                self.current()?;
                arena.take(bytes).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Gives back a span from [`Self::take_part`].
    pub(crate) fn give_back_part(&self, part: GpuSpan) {
        if let Some(arena) = &self.0.arena {
            arena.give_back(part);
        }
    }

    /// Copies to the GPU. When this returns, `from` may change.
    ///
    /// # Errors
    /// When a driver call fails.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn upload(&self, to: GpuSpan, from: &[u8]) -> Result<(), CudaError> {
        assert_eq!(to.bytes(), from.len(), "upload: lengths differ");
        if from.is_empty() {
            return Ok(());
        }
        // The caller may change its memory afterwards, so a copy that reads it directly has to be waited for.
        if from.len() > STAGING_BYTES {
            self.0.stream.start_upload(self.current()?, to, from)?;
            return self.synchronize();
        }
        let mut staging = lock(&self.0.staging);
        // The buffer is used once through, then everything is waited for: no copy can still be reading the part that is
        // overwritten.
        if staging.used + from.len() > STAGING_BYTES {
            self.synchronize()?;
            staging.used = 0;
        }
        let start = staging.used;
        let aside = &mut staging.memory[start..start + from.len()];
        aside.copy_from_slice(from);
        self.0.stream.start_upload(self.current()?, to, aside)?;
        staging.used += from.len();
        Ok(())
    }

    /// Copies in a stream beside the GPU's work, and waits. No work that was sent may use `to`.
    ///
    /// # Errors
    /// When a driver call fails.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn upload_beside(&self, to: GpuSpan, from: &[u8]) -> Result<(), CudaError> {
        assert_eq!(to.bytes(), from.len(), "upload: lengths differ");
        if from.is_empty() {
            return Ok(());
        }
        // A stream of its own, so that a load doesn't wait for the passes that run meanwhile.
        self.0.copies.start_upload(self.current()?, to, from)?;
        self.0.copies.wait()
    }

    /// Copies from the GPU behind all work that was sent before, and waits.
    ///
    /// # Errors
    /// When the driver fails, or what was sent before did.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn download(&self, from: GpuSpan, to: &mut [u8]) -> Result<(), CudaError> {
        assert_eq!(from.bytes(), to.len(), "download: lengths differ");
        self.0.stream.download(from, to)
    }

    /// Copies between two spans on the GPU, which must not overlap.
    ///
    /// # Errors
    /// When a driver call fails.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy(&self, to: GpuSpan, from: GpuSpan) -> Result<(), CudaError> {
        assert_eq!(to.bytes(), from.bytes(), "copy: lengths differ");
        if to.bytes() == 0 {
            return Ok(());
        }
        let context = self.current()?;
        // SAFETY: addresses on the GPU only; it checks them.
        context.check("copy within GPU memory", unsafe {
            (context.driver.api.copy_on_device)(
                to.address(),
                from.address(),
                to.bytes(),
                self.0.stream.handle,
            )
        })
    }

    /// Sets every byte of a span.
    ///
    /// # Errors
    /// When a driver call fails.
    pub fn fill(&self, to: GpuSpan, byte: u8) -> Result<(), CudaError> {
        self.0.stream.fill(to, byte)
    }

    /// Waits until all work in the stream is done.
    ///
    /// # Errors
    /// When some of it failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.0.stream.wait()
    }

    /// Whether this process cannot use the GPU any more: some work has failed such that the driver refuses everything
    /// after it.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.0.context.0.has_failed()
    }

    /// cuBLAS, if it was found and can compute on this GPU.
    #[must_use]
    pub fn blas(&self) -> Option<&Blas> {
        self.0.blas.as_ref().ok()
    }

    /// Why there is no cuBLAS, if there is none.
    #[must_use]
    pub fn blas_absence(&self) -> Option<&str> {
        self.0.blas.as_ref().err().map(String::as_str)
    }

    /// Begins to measure the GPU time of work that is sent from now on.
    ///
    /// # Errors
    /// When a driver call fails.
    pub fn start_timer(&self) -> Result<GpuTimer, CudaError> {
        let context = self.current()?;
        // Both events are created before the first is recorded, so that creating one isn't measured.
        let timer = GpuTimer {
            start: Event::create(context)?,
            end: Event::create(context)?,
            gpu: self.clone(),
        };
        timer.start.record(&self.0.stream)?;
        Ok(timer)
    }

    /// An empty list of time stamps in this GPU's work.
    #[must_use]
    pub fn laps(&self) -> GpuLaps {
        GpuLaps {
            events: Vec::new(),
            used: 0,
            gpu: self.clone(),
        }
    }

    /// Runs a kernel behind all work that was sent before.
    ///
    /// # Errors
    /// When the kernel cannot be made or started. What goes wrong in it comes later.
    ///
    /// # Panics
    /// When there is no such kernel, or it takes other arguments.
    pub(crate) fn launch(
        &self,
        kernel: &str,
        grid: [u32; 3],
        block: u32,
        arguments: &[KernelArgument<'_>],
    ) -> Result<(), CudaError> {
        let context = self.current()?;
        let function = lock(&self.0.kernels).function(kernel, arguments)?;
        let mut addresses: Vec<*mut c_void> =
            arguments.iter().map(KernelArgument::address).collect();
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
                // Dynamic shared memory: kernels declare static arrays instead.
                0,
                self.0.stream.handle,
                addresses.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        // The text is made for failures alone, not for each launch.
        match code {
            0 => Ok(()),
            code => context.check(&format!("launch {kernel}"), code),
        }
    }

    /// Makes the context the thread's current one, and returns it.
    pub(crate) fn current(&self) -> Result<Context, CudaError> {
        let context = self.0.context.0;
        context.make_current()?;
        Ok(context)
    }

    /// The stream that work is sent to.
    pub(crate) fn stream(&self) -> &Stream {
        &self.0.stream
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.name()).finish()
    }
}

/// Measures the GPU time of work that is sent while it runs.
#[derive(Debug)]
pub struct GpuTimer {
    start: Event,
    end: Event,
    // Dropped last: events must be destroyed before their context.
    gpu: Gpu,
}

impl GpuTimer {
    /// Waits until all work is done, and returns its GPU time, with a resolution of half a microsecond.
    ///
    /// # Errors
    /// When some of it failed.
    pub fn stop(self) -> Result<Duration, CudaError> {
        self.gpu.current()?;
        self.end.record(&self.gpu.0.stream)?;
        self.end.wait()?;
        let time = self.end.since(&self.start)?;
        Ok(time.expect("it was waited for"))
    }
}

/// Most time stamps that a [`GpuLaps`] holds.
pub const LAPS_MAX: usize = 8192;

/// Time stamps in a GPU's work, and the intervals between them. The driver's events are created once and used again.
#[derive(Debug)]
pub struct GpuLaps {
    events: Vec<Event>,
    used: usize,
    // Dropped last: events must be destroyed before their context.
    gpu: Gpu,
}

impl GpuLaps {
    /// Records a time stamp behind all work that was sent so far; false if there are [`LAPS_MAX`] already. Doesn't
    /// wait.
    ///
    /// # Errors
    /// When a driver call fails.
    pub fn mark(&mut self) -> Result<bool, CudaError> {
        if self.used == LAPS_MAX {
            return Ok(false);
        }
        let context = self.gpu.current()?;
        // Created on demand, and kept for the next passes.
        if self.used == self.events.len() {
            self.events.push(Event::create(context)?);
        }
        self.events[self.used].record(&self.gpu.0.stream)?;
        self.used += 1;
        Ok(true)
    }

    /// Removes all time stamps.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Waits for the last time stamp, returns the intervals between all of them, and removes them.
    ///
    /// # Errors
    /// When some of the work failed.
    pub fn take_intervals(&mut self) -> Result<Vec<Duration>, CudaError> {
        let marks = &self.events[..std::mem::take(&mut self.used)];
        let Some(last) = marks.last() else {
            return Ok(Vec::new());
        };
        self.gpu.current()?;
        // A stream runs in order, so all time stamps before the last one have passed as well.
        last.wait()?;
        let interval = |pair: &[Event]| {
            let time = pair[1].since(&pair[0])?;
            Ok(time.expect("the last one was waited for"))
        };
        marks.windows(2).map(interval).collect()
    }
}

/// A pinned buffer for small uploads, filled from its start.
struct Staging {
    memory: PinnedMemory,
    used: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
