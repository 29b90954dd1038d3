//! Memory that operations on a device take once, however many models compute there one after another.

use std::sync::{Arc, OnceLock};

use sluice_machine::MemoryKind;

use crate::{
    OpsError,
    cpu::scratch::{Scratch, scratch_bytes},
    device::Device,
    ledger::{Ledger, SharedBudget},
};

/// Of a GPU, the driver's context and cuBLAS's workspace; of the CPU, scratch memory of its threads.
pub struct CommonMemory {
    /// Of the CPU.
    pub(super) scratch: Option<Arc<Scratch>>,
    /// Of the CPU beside a GPU.
    pub(super) beside_gpu: HostMemory,
}

/// What the CPU takes of the host's memory beside a GPU; clones are the same.
#[derive(Clone)]
pub(super) struct HostMemory {
    ledger: Ledger,
    /// Taken when the CPU first computes.
    scratch: Arc<OnceLock<Arc<Scratch>>>,
}

impl HostMemory {
    pub(super) fn new() -> Self {
        Self {
            ledger: Ledger::beside_gpu(),
            scratch: Arc::default(),
        }
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The scratch memory of so many threads.
    pub(super) fn scratch(&self, threads: usize) -> Result<&Arc<Scratch>, OpsError> {
        if let Some(scratch) = self.scratch.get() {
            return Ok(scratch);
        }
        let scratch = Scratch::new(threads, &self.ledger)?;
        Ok(self.scratch.get_or_init(|| Arc::new(scratch)))
    }
}

impl CommonMemory {
    /// Its bytes on a device: each model's plan counts them.
    #[must_use]
    pub fn bytes_on(device: &Device) -> u64 {
        match device.is_gpu() {
            true => device.context_bytes() + device.workspace_bytes(),
            false => scratch_bytes(device.threads()),
        }
    }

    /// Takes it, and counts it in the budget of all models.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn new(device: &Device, budget: &SharedBudget) -> Result<Self, OpsError> {
        if device.is_gpu() {
            budget.hold(MemoryKind::Context, device.context_bytes());
            budget.hold(MemoryKind::Scratch, device.workspace_bytes());
            return Ok(Self {
                scratch: None,
                beside_gpu: HostMemory::new(),
            });
        }
        // In no model's ledger: each counts it as the device's own.
        let scratch = Scratch::new(device.threads(), &Ledger::default())?;
        budget.hold(MemoryKind::Scratch, scratch.bytes());
        Ok(Self {
            scratch: Some(Arc::new(scratch)),
            beside_gpu: HostMemory::new(),
        })
    }

    /// The ledger of the host's memory in which the CPU computes beside a GPU, for whichever model.
    #[must_use]
    pub fn ledger_beside_gpu(&self) -> &Ledger {
        self.beside_gpu.ledger()
    }
}
