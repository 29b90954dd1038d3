//! State that the engine's handle, its thread and the thread of a load share.

use std::sync::{Arc, atomic::AtomicBool};

use sluice_machine::{Profile, Rates};
use sluice_ops::ledger::Ledger;
use sluice_plan::Machine;

use super::{group::EngineGroup, load_step::LoadStep, state::EngineState};
use crate::{heartbeat::Heartbeat, schedule::Queue};

/// State that the handle and the thread share.
pub(super) struct Shared {
    pub(super) queue: Queue<LoadStep>,
    pub(super) ledger: Ledger,
    pub(super) state: EngineState,
    pub(super) alive: AtomicBool,
    pub(super) heartbeat: Heartbeat,
    /// What it shares with other engines.
    pub(super) group: Arc<EngineGroup>,
}

impl Shared {
    /// The machine's properties now, within the engine's limits. The present model's memory counts as free: a new model
    /// takes its place, and gets the memory once that has gone. What other engines hold does not.
    pub(super) fn machine(&self, device: Profile, rates: Option<Rates>) -> Machine {
        // What the engine holds of a GPU's memory is not the host's.
        let held_bytes = match device.gpu {
            Some(_) => self.ledger.pinned_bytes(),
            None => self.ledger.used_bytes(),
        };
        let here = Machine::here(device, rates, held_bytes);
        let (group, options) = (&self.group, &self.group.options);
        let others_bytes = group.budget.pinned_bytes() - self.ledger.pinned_bytes();
        Machine {
            disk_read_limit_bytes_per_s: options.disk_read_limit_bytes_per_s,
            // What others have pinned is not free either, which the default has left out.
            pinned_memory_limit_bytes: (options.pinned_memory_limit_bytes)
                .map_or(here.pinned_memory_limit_bytes, |limit| {
                    limit.saturating_sub(others_bytes)
                }),
            corrections: group.corrections.clone(),
            ..here
        }
    }
}
