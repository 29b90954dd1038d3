//! The device that computes, the CPU as one pool of threads or a card beside it, and what is known of it: its memory and
//! its rates.

mod background;
mod buffer;
mod busy;
mod facts;
mod memory;

use std::{fmt, sync::Arc, time::Duration};

use sluice_cuda::{self as cuda, Blas};
pub use sluice_cuda::{CudaError, Gpu, Live, Number, Unavailable};

use self::background::Background;
pub(crate) use self::{
    background::{Busy, Computing, SHARE, Waiting},
    facts::{CodedSample, FILLING, SampleOnCard},
};
pub use self::{
    buffer::DeviceBuffer,
    facts::{BUSY_SHARE, LinearRate, Rates, measure},
    memory::{MemoryFacts, default_budget, default_pin_limit},
};
use crate::error::EngineError;

/// A device and what is known of it; clones are the same one.
#[derive(Clone)]
pub struct Device {
    /// The machine's own threads, which convert weights whatever computes. None in a rehearsal.
    pool: Option<Arc<rayon::ThreadPool>>,
    /// What computes, where it isn't these threads. None in a rehearsal, too.
    gpu: Option<Gpu>,
    profile: Profile,
    background: Arc<Background>,
}

/// Which device is to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// The first card that can be used, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The card of this number among those that the process may see, and nothing else.
    Cuda(usize),
}

/// A device, and why it is no card where one would have been taken.
pub struct Opened {
    /// What computes.
    pub device: Device,
    /// What was wrong with the first one.
    pub no_card: Option<Unavailable>,
}

/// What of a device decides how much memory a pass takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Threads of the machine.
    pub threads: usize,
    /// The card, if one computes.
    pub card: Option<CardProfile>,
}

/// What of a card decides how much memory a pass takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardProfile {
    /// All of its memory.
    pub total_bytes: u64,
    /// What is computed in; sums are `f32` whatever it is.
    pub number: Number,
    /// What the driver takes for itself.
    pub context_bytes: u64,
    /// What cuBLAS works in; 0 where there is none.
    pub workspace_bytes: usize,
}

impl Profile {
    /// The CPU with so many threads.
    #[must_use]
    pub fn cpu(threads: usize) -> Self {
        Self {
            threads,
            card: None,
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.profile).finish()
    }
}

impl Device {
    /// What was chosen, with `threads` threads of the machine (0: one a core). A card computes in `number`; `None`: in
    /// what suits it best.
    ///
    /// # Errors
    /// A card that was named and can't be used, or threads that can't be started.
    pub fn open(
        choice: Choice,
        number: Option<Number>,
        threads: usize,
    ) -> Result<Opened, EngineError> {
        let (opened, is_needed) = match choice {
            Choice::Cpu => {
                let (device, no_card) = (Self::cpu(threads)?, None);
                return Ok(Opened { device, no_card });
            }
            Choice::Auto => (first_card(), false),
            Choice::Cuda(ordinal) => (Gpu::open(ordinal), true),
        };
        Ok(match opened {
            Ok(gpu) => Opened {
                device: Self::card(gpu, number, threads)?,
                no_card: None,
            },
            Err(unavailable) if is_needed => return Err(EngineError::NoCard(unavailable)),
            Err(unavailable) => Opened {
                device: Self::cpu(threads)?,
                no_card: Some(unavailable),
            },
        })
    }

    /// The CPU with `threads` threads, shared by everything that computes; 0: one a core.
    ///
    /// # Errors
    /// When the threads can't be started.
    pub fn cpu(threads: usize) -> Result<Self, EngineError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("sluice-cpu-{index}"))
            .build()
            .map_err(|error| EngineError::Threads(error.to_string()))?;
        Ok(Self {
            profile: Profile::cpu(pool.current_num_threads()),
            pool: Some(Arc::new(pool)),
            gpu: None,
            background: Arc::default(),
        })
    }

    /// A card, with `threads` threads beside it. It computes in `number`, or in what suits it best: `bf16` where it has
    /// that, else `f16`.
    ///
    /// # Errors
    /// When the threads can't be started.
    pub fn card(gpu: Gpu, number: Option<Number>, threads: usize) -> Result<Self, EngineError> {
        let best = match gpu.facts().has_bf16 {
            true => Number::Bf16,
            false => Number::F16,
        };
        let workspace_bytes = gpu.blas().map_or(0, Blas::workspace_bytes);
        let cpu = Self::cpu(threads)?;
        Ok(Self {
            profile: Profile {
                card: Some(CardProfile {
                    total_bytes: gpu.facts().total_bytes,
                    number: number.unwrap_or(best),
                    context_bytes: gpu.context_bytes().unwrap_or(0),
                    workspace_bytes,
                }),
                ..cpu.profile
            },
            gpu: Some(gpu),
            ..cpu
        })
    }

    /// A device like this that does no work: with a ledger of the same kind, a pass over it tells what memory a real one
    /// takes.
    #[must_use]
    pub fn rehearsal(profile: Profile) -> Self {
        Self {
            pool: None,
            gpu: None,
            profile,
            background: Arc::default(),
        }
    }

    /// What decides how much memory a pass takes.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Threads of the machine that compute or convert.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.profile.threads
    }

    /// The card that computes.
    #[must_use]
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// Whether it is a card that this process can't use any more.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.gpu.as_ref().is_some_and(Gpu::has_failed)
    }

    /// Whether a card computes, or would in a rehearsal.
    #[must_use]
    pub fn is_card(&self) -> bool {
        self.profile.card.is_some()
    }

    /// What activations between layers' parts are; the residual stream and all sums are `f32`.
    #[must_use]
    pub fn number(&self) -> Number {
        self.profile.card.map_or(Number::F32, |card| card.number)
    }

    /// What the driver takes for itself.
    pub(crate) fn context_bytes(&self) -> u64 {
        self.profile.card.map_or(0, |card| card.context_bytes)
    }

    /// What cuBLAS works in.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.profile
            .card
            .map_or(0, |card| card.workspace_bytes as u64)
    }

    /// What memory there is where weights and activations live.
    #[must_use]
    pub fn memory(&self) -> MemoryFacts {
        let Some(gpu) = &self.gpu else {
            return MemoryFacts::read();
        };
        let memory = gpu.memory().ok();
        MemoryFacts {
            total_bytes: memory.map(|memory| memory.total_bytes),
            free_bytes: memory.map(|memory| memory.free_bytes),
            cache_bytes: MemoryFacts::read().cache_bytes,
        }
    }

    /// Does `work`, all of which runs operations, on one of the threads that they run on: going there and back for each takes
    /// longer than one of a single row. It must not wait for another thread, which may need this one.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) if self.gpu.is_none() => pool.install(work),
            _ => work(),
        }
    }

    /// A pass begins, and computes until what comes back goes: work beside it gives way. A card leaves the machine's threads
    /// to whoever wants them.
    pub(crate) fn compute(&self) -> Option<Computing> {
        (!self.is_card()).then(|| Computing::new(&self.background))
    }

    /// The pass that computes waits until what comes back goes.
    pub(crate) fn wait(&self) -> Option<Waiting> {
        (!self.is_card()).then(|| Waiting::new(&self.background))
    }

    /// Does a piece of work beside passes, some milliseconds at most, which tells what it took of all cores. While a pass
    /// computes, all such work together has one part in [`SHARE`] of the time, and this returns after a rest.
    pub(crate) fn beside(&self, work: impl FnOnce() -> Duration) {
        self.background.work(work);
    }

    /// The same on the machine's threads, each of which does what it does through [`Busy::during`].
    pub(crate) fn run_beside(&self, work: impl FnOnce(&Busy) + Send) {
        self.beside(|| {
            let busy = Busy::default();
            self.run(|| work(&busy));
            busy.of_all(self.threads())
        });
    }

    /// Runs `work` on the machine's threads; not at all in a rehearsal.
    pub fn run(&self, work: impl FnOnce() + Send) {
        if let Some(pool) = &self.pool {
            pool.install(work);
        }
    }
}

/// The first card that can be used, else why the first of all can't be.
fn first_card() -> Result<Gpu, Unavailable> {
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
