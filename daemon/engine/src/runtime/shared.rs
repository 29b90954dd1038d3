//! State that the engine's handle, its thread and the thread of a load share.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64},
};

use sluice_machine::{Profile, Rates};
use sluice_ops::ledger::Ledger;
use sluice_plan::{Machine, TimeCorrections};

use super::{load_step::LoadStep, state::EngineState};
use crate::{heartbeat::Heartbeat, schedule::Queue};

/// State that the handle and the thread share.
pub(super) struct Shared {
    pub(super) queue: Queue<LoadStep>,
    pub(super) ledger: Ledger,
    pub(super) state: EngineState,
    pub(super) disk_read_limit_bytes_per_s: Option<u64>,
    pub(super) pinned_memory_limit_bytes: Option<u64>,
    pub(super) last_model_id: AtomicU64,
    pub(super) alive: AtomicBool,
    /// The program that tokenizers run in; `None`: this process.
    pub(super) tokenizer_program: Option<PathBuf>,
    pub(super) heartbeat: Heartbeat,
    /// Corrections of predicted times, learned from passes of all models.
    pub(super) corrections: TimeCorrections,
}

impl Shared {
    /// The machine's properties now, within the engine's limits. The present model's memory counts as free: a new model
    /// takes its place, and gets the memory once that has gone.
    pub(super) fn machine(&self, device: Profile, rates: Option<Rates>) -> Machine {
        // What the engine holds of a GPU's memory is not the host's.
        let held_bytes = match device.gpu {
            Some(_) => self.ledger.pinned_bytes(),
            None => self.ledger.used_bytes(),
        };
        let here = Machine::here(device, rates, held_bytes);
        Machine {
            disk_read_limit_bytes_per_s: self.disk_read_limit_bytes_per_s,
            pinned_memory_limit_bytes: self
                .pinned_memory_limit_bytes
                .unwrap_or(here.pinned_memory_limit_bytes),
            corrections: self.corrections.clone(),
            ..here
        }
    }
}
