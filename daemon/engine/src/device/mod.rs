//! The device that computes, for now the CPU as one pool of threads, and what is known of
//! it: its memory and its rates.

mod facts;
mod memory;

pub use self::{
    facts::{LinearRate, Rates, measure},
    memory::{MemoryFacts, default_budget},
};
use crate::error::EngineError;

/// A device and what is known of it.
pub struct Device {
    /// None in a rehearsal.
    pool: Option<rayon::ThreadPool>,
    threads: usize,
}

impl Device {
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
            threads: pool.current_num_threads(),
            pool: Some(pool),
        })
    }

    /// A device of as many threads that does no work: with a ledger of the same kind, a pass over it tells what memory a
    /// real one takes.
    #[must_use]
    pub fn rehearsal(threads: usize) -> Self {
        Self {
            pool: None,
            threads,
        }
    }

    /// Threads that compute.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` on the device's threads; not at all in a rehearsal.
    pub fn run(&self, work: impl FnOnce() + Send) {
        if let Some(pool) = &self.pool {
            pool.install(work);
        }
    }
}
