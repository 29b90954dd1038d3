//! One piece of scratch memory a thread, reserved once.

use std::sync::{Mutex, PoisonError};

use sluice_machine::MemoryKind;

use crate::{
    OpsError,
    ledger::{HostBuffer, Ledger},
};

/// Elements of a thread's scratch, 4 MiB: what `linear` packs, and some rows of the widest projection
/// ([`WIDTH_MAX`](sluice_weights::WIDTH_MAX)) where compressed weights are decompressed; what attention packs.
pub(in crate::cpu) const SCRATCH_LEN: usize = 1 << 20;

/// Bytes of the scratch memory of so many threads.
pub(crate) fn scratch_bytes(threads: usize) -> u64 {
    (threads * SCRATCH_LEN * size_of::<f32>()) as u64
}

/// The scratch memory of all threads.
pub(crate) struct Scratch {
    threads: Vec<Mutex<HostBuffer<f32>>>,
}

impl Scratch {
    pub(crate) fn new(threads: usize, ledger: &Ledger) -> Result<Self, OpsError> {
        let threads = (0..threads)
            .map(|_| {
                ledger
                    .buffer(MemoryKind::Scratch, SCRATCH_LEN)
                    .map(Mutex::new)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { threads })
    }

    /// Bytes of all threads.
    pub(crate) fn bytes(&self) -> u64 {
        scratch_bytes(self.threads.len())
    }

    /// Gives the pages back until somebody computes again.
    pub(super) fn forget(&self) {
        for scratch in &self.threads {
            scratch
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .forget();
        }
    }

    /// Lends this thread's scratch to `work`. Never contended: a thread asks for its own,
    /// and `work` does not hand parts of itself to other threads.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut [f32]) -> R) -> R {
        let index = rayon::current_thread_index().expect("scratch is used on the device's threads");
        // A panic in another operation leaves arbitrary values, which scratch always has: it stays usable.
        let mut scratch = self.threads[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        work(&mut scratch)
    }
}
