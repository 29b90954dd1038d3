//! The device that computes, the CPU as one pool of threads or a GPU beside it, and what is known of it: its memory and
//! its rates.

mod buffer;

use std::fmt;

use sluice_cuda::{self as cuda, Blas};
pub use sluice_cuda::{CudaError, Gpu, GpuUnavailable, LiveStats};
use sluice_formats::DType;
use sluice_machine::{
    ComputingGuard, GpuProfile, Instructions, MemoryStats, Profile, WaitingGuard, Workers,
};

pub use self::buffer::DeviceBuffer;
use crate::OpsError;

/// A device and what is known of it; clones are the same one.
#[derive(Clone)]
pub struct Device {
    /// The machine's own threads, which convert weights whatever device computes.
    workers: Workers,
    /// The GPU that computes, if one does; `None` in a dry run, too.
    gpu: Option<Gpu>,
    profile: Profile,
}

/// Which device is to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first GPU that can be used, else the CPU.
    #[default]
    Auto,
    /// The CPU, whether there is a GPU or not.
    Cpu,
    /// The GPU with this index among those that the process may see, and nothing else.
    Cuda(usize),
}

/// An opened device, and why it is not a GPU if one was tried.
pub struct OpenedDevice {
    /// The device that computes.
    pub device: Device,
    /// Why the first GPU could not be used.
    pub gpu_unavailable: Option<GpuUnavailable>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.profile).finish()
    }
}

impl Device {
    /// The chosen device, with `threads` threads of the machine (0: one a core). A GPU computes in `dtype`; `None`: in
    /// what suits it best. The CPU multiplies in `bf16` if that is asked for, else in `f32`.
    ///
    /// # Errors
    /// When a GPU that was named cannot be used, or threads cannot be started.
    pub fn open(
        choice: DeviceChoice,
        dtype: Option<DType>,
        threads: usize,
    ) -> Result<OpenedDevice, OpsError> {
        let (opened, is_needed) = match choice {
            DeviceChoice::Cpu => {
                return Ok(OpenedDevice {
                    device: Self::cpu_computing_in(dtype, threads)?,
                    gpu_unavailable: None,
                });
            }
            DeviceChoice::Auto => (first_gpu(), false),
            DeviceChoice::Cuda(ordinal) => (Gpu::open(ordinal), true),
        };
        Ok(match opened {
            Ok(gpu) => OpenedDevice {
                device: Self::with_gpu(gpu, dtype, threads)?,
                gpu_unavailable: None,
            },
            // Only `Auto` may fall back: who names a GPU is never served by the CPU unasked.
            Err(unavailable) if is_needed => return Err(OpsError::NoGpu(unavailable)),
            Err(unavailable) => OpenedDevice {
                device: Self::cpu_computing_in(dtype, threads)?,
                gpu_unavailable: Some(unavailable),
            },
        })
    }

    /// The CPU with `threads` threads, shared by everything that computes; 0: one a core.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn cpu(threads: usize) -> Result<Self, OpsError> {
        let workers = Workers::new(threads).map_err(OpsError::Threads)?;
        Ok(Self {
            profile: Profile::cpu(workers.threads()),
            workers,
            gpu: None,
        })
    }

    fn cpu_computing_in(dtype: Option<DType>, threads: usize) -> Result<Self, OpsError> {
        let cpu = Self::cpu(threads)?;
        Ok(match dtype {
            Some(DType::Bf16) => cpu.with_bf16_products(),
            // No CPU multiplies f16 faster than f32.
            _ => cpu,
        })
    }

    /// A GPU, with `threads` threads beside it. It computes in `dtype`, or in what suits it best: `bf16` where it has
    /// that, else `f16`.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn with_gpu(gpu: Gpu, dtype: Option<DType>, threads: usize) -> Result<Self, OpsError> {
        let best = match gpu.properties().has_bf16 {
            true => DType::Bf16,
            false => DType::F16,
        };
        // cuBLAS takes its workspace when it is opened, so it stands beside the context in every plan.
        let workspace_bytes = gpu.blas().map_or(0, Blas::workspace_bytes);
        let cpu = Self::cpu(threads)?;
        Ok(Self {
            profile: Profile {
                gpu: Some(GpuProfile {
                    total_bytes: gpu.properties().total_bytes,
                    dtype: dtype.unwrap_or(best),
                    context_bytes: gpu.context_bytes().unwrap_or(0),
                    workspace_bytes,
                }),
                ..cpu.profile
            },
            gpu: Some(gpu),
            ..cpu
        })
    }

    /// The CPU alone, on the same threads: for what is computed on the host, whatever device computes.
    #[must_use]
    pub fn host(&self) -> Self {
        Self {
            workers: self.workers.clone(),
            gpu: None,
            profile: Profile {
                gpu: None,
                ..self.profile
            },
        }
    }

    /// The same device, whose kernels on the CPU use these instructions instead of the best.
    #[must_use]
    pub fn with_instructions(mut self, instructions: Instructions) -> Self {
        self.profile.instructions = instructions;
        self
    }

    /// The same device, which on the CPU rounds rows and plain weights to bf16 before it multiplies them. Sums, and all else,
    /// stay `f32`.
    #[must_use]
    pub fn with_bf16_products(mut self) -> Self {
        self.profile.product_dtype = DType::Bf16;
        self
    }

    /// A device with the same properties that does no work: with a ledger of the same kind, a pass over it tells what
    /// memory a real one takes.
    #[must_use]
    pub fn dry_run(profile: Profile) -> Self {
        Self {
            workers: Workers::none(profile.threads),
            gpu: None,
            profile,
        }
    }

    /// The properties that plans and kernels depend on.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Threads of the machine that compute or convert.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.profile.threads
    }

    /// The vector instructions that kernels on the CPU use.
    #[must_use]
    pub fn instructions(&self) -> Instructions {
        self.profile.instructions
    }

    /// The machine's own threads, and how work on them gives way to passes.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// The GPU that computes; `None` on the CPU and in a dry run.
    #[must_use]
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// Whether it is a GPU that this process cannot use any more.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.gpu.as_ref().is_some_and(Gpu::has_failed)
    }

    /// Whether a GPU computes, or would in a dry run.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.profile.gpu.is_some()
    }

    /// The dtype of activations between a layer's parts; the residual stream and all sums are `f32`.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.profile.gpu.map_or(DType::F32, |gpu| gpu.dtype)
    }

    /// The dtype that factors of matmuls with plain weights have: a GPU's activations, or what the CPU rounds to.
    #[must_use]
    pub fn product_dtype(&self) -> DType {
        (self.profile.gpu).map_or(self.profile.product_dtype, |gpu| gpu.dtype)
    }

    /// Whether its kernels read weights whose rows lie [beside each other](sluice_formats::interleaved).
    #[must_use]
    pub fn interleaves_weights(&self) -> bool {
        !self.is_gpu() && self.instructions() != Instructions::PORTABLE
    }

    /// Bytes of GPU memory that the driver takes for the context.
    pub fn context_bytes(&self) -> u64 {
        self.profile.gpu.map_or(0, |gpu| gpu.context_bytes)
    }

    /// Bytes of the cuBLAS workspace.
    pub fn workspace_bytes(&self) -> u64 {
        self.profile.gpu.map_or(0, |gpu| gpu.workspace_bytes as u64)
    }

    /// The state of the memory in which weights and activations live.
    #[must_use]
    pub fn memory(&self) -> MemoryStats {
        let Some(gpu) = &self.gpu else {
            return MemoryStats::read();
        };
        // A failed GPU answers nothing; unknown is `None`, never 0.
        let memory = gpu.memory().ok();
        MemoryStats {
            total_bytes: memory.map(|memory| memory.total_bytes),
            // Weights are streamed through the host's page cache, whatever device computes.
            free_bytes: memory.map(|memory| memory.free_bytes),
            page_cache_bytes: MemoryStats::read().page_cache_bytes,
        }
    }

    /// Does `work`, all of which runs operations, on one of the threads that they run on: going there and back for each
    /// operation takes longer than one of a single row. It must not wait for another thread, which may need this one.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self.gpu {
            None => self.workers.within(work),
            // A GPU's operations launch from whichever thread calls them.
            Some(_) => work(),
        }
    }

    /// A pass begins, and computes until the guard is dropped: work beside it gives way. A GPU leaves the machine's threads to
    /// whoever wants them.
    pub fn compute(&self) -> Option<ComputingGuard> {
        (!self.is_gpu()).then(|| self.workers.computing())
    }

    /// The pass that computes waits until the guard is dropped.
    pub fn wait(&self) -> Option<WaitingGuard> {
        (!self.is_gpu()).then(|| self.workers.waiting())
    }

    /// Runs `work` on the machine's threads; not at all in a dry run.
    pub fn run(&self, work: impl FnOnce() + Send) {
        self.workers.run(work);
    }
}

/// The first GPU that can be used, else why GPU 0 cannot be.
fn first_gpu() -> Result<Gpu, GpuUnavailable> {
    let refused = match Gpu::open(0) {
        Ok(gpu) => return Ok(gpu),
        Err(refused) => refused,
    };
    let others = cuda::devices().unwrap_or_default();
    let mut others = others.iter().filter(|card| card.ordinal > 0);
    others
        .find_map(|card| Gpu::open(card.ordinal).ok())
        .ok_or(refused)
}
