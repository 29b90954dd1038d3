//! Scratch memory, reserved once: of each thread, and of all of them together.

use std::sync::{Mutex, PoisonError, TryLockError};

use sluice_machine::MemoryKind;

use super::microkernel::LINE;
use crate::{
    OpsError,
    ledger::{HostBuffer, Ledger},
};

/// Words of rows that are packed at a time: 1 MiB, so that they stay in a core's own cache while weights stream past.
pub(super) const PACKED_LEN: usize = 1 << 18;

/// Elements of a thread's scratch, 3 MiB: a panel of weights, and some rows of the widest projection where compressed
/// weights are decompressed; what attention packs.
pub(in crate::cpu) const SCRATCH_LEN: usize = 3 << 18;

/// Elements that rows of `x` are packed in, by all threads for all of them; so many from a cache line on.
const COMMON_LEN: usize = PACKED_LEN + LINE;

/// Bytes of the scratch memory of so many threads.
pub(crate) fn scratch_bytes(threads: usize) -> u64 {
    ((threads * SCRATCH_LEN + COMMON_LEN) * size_of::<f32>()) as u64
}

/// The scratch memory of all threads.
pub(crate) struct Scratch {
    threads: Vec<Mutex<HostBuffer<f32>>>,
    packed: Mutex<HostBuffer<f32>>,
}

impl Scratch {
    pub(crate) fn new(threads: usize, ledger: &Ledger) -> Result<Self, OpsError> {
        let buffer = |len| ledger.buffer(MemoryKind::Scratch, len).map(Mutex::new);
        let threads = (0..threads).map(|_| buffer(SCRATCH_LEN));
        Ok(Self {
            threads: threads.collect::<Result<_, _>>()?,
            packed: buffer(COMMON_LEN)?,
        })
    }

    /// Bytes of all threads.
    pub(crate) fn bytes(&self) -> u64 {
        scratch_bytes(self.threads.len())
    }

    /// Gives the pages back until somebody computes again.
    pub(super) fn forget(&self) {
        for scratch in self.threads.iter().chain([&self.packed]) {
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

    /// Lends the memory for packed rows to a matmul, which may hand parts of itself to other threads.
    ///
    /// Matmuls with the same scratch come one after another, since models take turns. Should two ever meet, the second has
    /// memory of its own for as long as it takes. It mustn't wait: a thread that waits for parts of the first takes up
    /// whatever else is to be done, this second one too, and would wait for itself.
    pub(super) fn with_packed<R>(&self, work: impl FnOnce(&mut [f32]) -> R) -> R {
        let aligned = |memory: &mut [f32]| {
            let line = memory.as_ptr().align_offset(LINE * size_of::<f32>());
            work(&mut memory[line..][..PACKED_LEN])
        };
        match self.packed.try_lock() {
            Ok(mut packed) => aligned(&mut packed),
            Err(TryLockError::Poisoned(packed)) => aligned(&mut packed.into_inner()),
            Err(TryLockError::WouldBlock) => aligned(&mut vec![0.0; COMMON_LEN]),
        }
    }
}
