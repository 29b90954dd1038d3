//! The device that computes, for now the CPU as one pool of threads, and what is known of
//! it: its memory and its rates.

mod facts;
mod memory;

pub use self::{
    facts::{Facts, LinearRate, Rates, measure},
    memory::{MemoryFacts, default_budget},
};
use crate::error::EngineError;

/// A device.
pub struct Device {
    pool: rayon::ThreadPool,
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
        Ok(Self { pool })
    }

    /// Threads that compute.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs `work` on the device's threads.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }
}
