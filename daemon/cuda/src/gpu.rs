//! One card: its context, its stream of work, and the kernels on it.

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

/// The least compute capability that the kernels are made for.
pub const CAPABILITY_NEEDED: (u32, u32) = (7, 5);

/// Uploads up to this size are put aside, so that nobody waits for them. Larger ones are waited for, which is short beside
/// the copy itself.
const STAGING_BYTES: usize = 1 << 20;

/// One card. Cheap to clone and of use in any thread. What it is told runs later, in the order in which it was told; what goes
/// wrong then is the error of the next call that waits.
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

/// The fields are dropped in this order: first the work ends, last the context.
struct Inner {
    blas: Result<Blas, String>,
    stream: Stream,
    /// For copies to memory that nothing in the other one uses.
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
    /// Opens a card, by its number among those that this process may see.
    ///
    /// # Errors
    /// Why it can't be used.
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
        // Its handle takes memory on the card, which belongs to what the context took.
        let blas = Blas::open(context.0, &stream, &facts);
        // What it tried has ended by now. If that failed, so will all that comes.
        stream.wait()?;
        let workspace_bytes = blas
            .as_ref()
            .map_or(0, |blas| blas.workspace_bytes() as u64);
        let arena = Arena::open(context.0, device);
        let context_bytes = free_before
            .zip(free_bytes())
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

    /// The card's name, as its maker calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.properties.name
    }

    /// The card's compute capability: the generation of its instructions.
    #[must_use]
    pub fn capability(&self) -> (u32, u32) {
        self.0.properties.capability
    }

    /// What is known of the card and stays so.
    #[must_use]
    pub fn properties(&self) -> &DeviceProperties {
        &self.0.properties
    }

    /// What the context took on the card when it was opened, with cuBLAS in it but without the memory that
    /// [cuBLAS works in](Blas::workspace_bytes); unknown without NVML, since the driver tells nothing before there is a
    /// context. A neighbour's allocation in that moment counts with it.
    #[must_use]
    pub fn context_bytes(&self) -> Option<u64> {
        self.0.context_bytes
    }

    /// How much memory the card has, and how much of it is free now.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn memory(&self) -> Result<MemoryInfo, CudaError> {
        self.0.context.0.memory()
    }

    /// What changes from moment to moment.
    #[must_use]
    pub fn live_stats(&self) -> LiveStats {
        let free_bytes = self.memory().ok().map(|memory| memory.free_bytes);
        LiveStats::read(self.0.nvml.as_ref(), free_bytes)
    }

    /// What this process holds of the card's memory, its context among it, by NVML's count; unknown where that doesn't tell.
    #[must_use]
    pub fn held_bytes(&self) -> Option<u64> {
        self.0.nvml.as_ref()?.held_bytes()
    }

    /// What the arena has; none where the card can't have one.
    #[must_use]
    pub fn arena(&self) -> Option<ArenaUse> {
        self.0.arena.as_ref().map(Arena::in_use)
    }

    /// A part of the arena; none where there is no arena, or nothing is asked for.
    pub(crate) fn take_part(&self, bytes: usize) -> Result<Option<GpuSpan>, CudaError> {
        match &self.0.arena {
            Some(arena) if bytes > 0 => {
                self.current()?;
                arena.take(bytes).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Gives back what [`Self::take_part`] gave.
    pub(crate) fn give_back_part(&self, part: GpuSpan) {
        if let Some(arena) = &self.0.arena {
            arena.give_back(part);
        }
    }

    /// Copies to the card. When this returns, `from` may change.
    ///
    /// # Errors
    /// When the driver fails.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn upload(&self, to: GpuSpan, from: &[u8]) -> Result<(), CudaError> {
        assert_eq!(to.bytes(), from.len(), "upload: lengths differ");
        if from.is_empty() {
            return Ok(());
        }
        if from.len() > STAGING_BYTES {
            self.0.stream.start_upload(self.current()?, to, from)?;
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
        self.0.stream.start_upload(self.current()?, to, aside)?;
        staging.used += from.len();
        Ok(())
    }

    /// Copies to memory on the card that nothing that was sent reads or writes, beside that work, and waits for it.
    ///
    /// # Errors
    /// When the driver fails.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn upload_beside(&self, to: GpuSpan, from: &[u8]) -> Result<(), CudaError> {
        assert_eq!(to.bytes(), from.len(), "upload: lengths differ");
        if from.is_empty() {
            return Ok(());
        }
        self.0.copies.start_upload(self.current()?, to, from)?;
        self.0.copies.wait()
    }

    /// Copies from the card, after all that was sent before.
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

    /// Copies on the card. The two must not overlap.
    ///
    /// # Errors
    /// When the driver fails.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy(&self, to: GpuSpan, from: GpuSpan) -> Result<(), CudaError> {
        assert_eq!(to.bytes(), from.bytes(), "copy: lengths differ");
        if to.bytes() == 0 {
            return Ok(());
        }
        let context = self.current()?;
        // SAFETY: addresses on the card only; it checks them.
        context.check("copy within GPU memory", unsafe {
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
    pub fn fill(&self, to: GpuSpan, byte: u8) -> Result<(), CudaError> {
        self.0.stream.fill(to, byte)
    }

    /// Waits until all that was sent is done.
    ///
    /// # Errors
    /// When some of it failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.0.stream.wait()
    }

    /// Whether this process can't use the card any more: some of its work has failed so that the driver refuses all that
    /// comes after.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.0.context.0.has_failed()
    }

    /// cuBLAS, where it is found and can compute.
    #[must_use]
    pub fn blas(&self) -> Option<&Blas> {
        self.0.blas.as_ref().ok()
    }

    /// Why there is no cuBLAS, if there is none.
    #[must_use]
    pub fn blas_absence(&self) -> Option<&str> {
        self.0.blas.as_ref().err().map(String::as_str)
    }

    /// Begins to measure the time that the card takes for what is sent from now on.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn start_timer(&self) -> Result<GpuTimer, CudaError> {
        let context = self.current()?;
        let timer = GpuTimer {
            start: Event::create(context)?,
            end: Event::create(context)?,
            gpu: self.clone(),
        };
        timer.start.record(&self.0.stream)?;
        Ok(timer)
    }

    /// Moments in this card's work, none so far.
    #[must_use]
    pub fn laps(&self) -> GpuLaps {
        GpuLaps {
            events: Vec::new(),
            used: 0,
            gpu: self.clone(),
        }
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
                // All that kernels share lies in arrays of their own.
                0,
                self.0.stream.handle,
                addresses.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        match code {
            0 => Ok(()),
            code => context.check(&format!("launch {kernel}"), code),
        }
    }

    /// Makes the context this thread's.
    pub(crate) fn current(&self) -> Result<Context, CudaError> {
        let context = self.0.context.0;
        context.make_current()?;
        Ok(context)
    }

    /// Where its work is sent.
    pub(crate) fn stream(&self) -> &Stream {
        &self.0.stream
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.name()).finish()
    }
}

/// The time that the card takes for what is sent while it runs.
#[derive(Debug)]
pub struct GpuTimer {
    start: Event,
    end: Event,
    // Last: events end before their context.
    gpu: Gpu,
}

impl GpuTimer {
    /// Waits until all that was sent is done, and tells how long the card took. It counts in steps of half a microsecond.
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

/// Most moments that [`GpuLaps`] has at once.
pub const LAPS_MAX: usize = 8192;

/// Moments in a card's work, and the time between them. The driver's events for them are made once and used again.
#[derive(Debug)]
pub struct GpuLaps {
    events: Vec<Event>,
    used: usize,
    // Last: events end before their context.
    gpu: Gpu,
}

impl GpuLaps {
    /// Notes the moment at which all that was sent so far is done; false where there are [`LAPS_MAX`] already. Nothing is
    /// waited for.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn mark(&mut self) -> Result<bool, CudaError> {
        if self.used == LAPS_MAX {
            return Ok(false);
        }
        let context = self.gpu.current()?;
        if self.used == self.events.len() {
            self.events.push(Event::create(context)?);
        }
        self.events[self.used].record(&self.gpu.0.stream)?;
        self.used += 1;
        Ok(true)
    }

    /// Forgets all moments.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// The times from each moment to the next, once the last one has come, which is waited for; then forgets them.
    ///
    /// # Errors
    /// When some of the work failed.
    pub fn take_intervals(&mut self) -> Result<Vec<Duration>, CudaError> {
        let marks = &self.events[..std::mem::take(&mut self.used)];
        let Some(last) = marks.last() else {
            return Ok(Vec::new());
        };
        self.gpu.current()?;
        last.wait()?;
        let interval = |pair: &[Event]| {
            let time = pair[1].since(&pair[0])?;
            Ok(time.expect("the last one was waited for"))
        };
        marks.windows(2).map(interval).collect()
    }
}

/// Small uploads on their way.
struct Staging {
    memory: PinnedMemory,
    used: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
