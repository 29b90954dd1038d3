//! What examples share: models in memory, how far another checkpoint is from one, and checkpoints with other weights.

pub mod checkpoints;
pub mod fidelity;
pub mod loaded;

use sluice_engine::EngineOptions;
use sluice_machine::{InstructionSet, Instructions};

/// Whatever goes wrong ends an example.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The engine's options, with the instructions that `SLUICE_INSTRUCTIONS` names, as for the daemon.
///
/// # Errors
/// When this CPU lacks them.
pub fn engine_options() -> Result<EngineOptions> {
    let instructions = match std::env::var("SLUICE_INSTRUCTIONS") {
        Ok(name) => {
            let mut sets = InstructionSet::ALL.into_iter();
            let set = sets.find(|set| set.name() == name);
            set.and_then(Instructions::of)
                .ok_or_else(|| format!("no instructions {name:?} here"))?
        }
        Err(_) => Instructions::best(),
    };
    Ok(EngineOptions {
        instructions,
        ..EngineOptions::default()
    })
}
