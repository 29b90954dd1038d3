//! Memory that operations on a device take once, however many models compute there one after another.

use std::sync::Arc;

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
            return Ok(Self { scratch: None });
        }
        // In no model's ledger: each counts it as the device's own.
        let scratch = Scratch::new(device.threads(), &Ledger::default())?;
        budget.hold(MemoryKind::Scratch, scratch.bytes());
        Ok(Self {
            scratch: Some(Arc::new(scratch)),
        })
    }
}
