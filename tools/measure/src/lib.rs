//! What examples and benches share: models in memory, how far another checkpoint is from one, checkpoints with other weights,
//! and what the processor can do at most.

pub mod checkpoints;
pub mod fidelity;
pub mod loaded;
pub mod peaks;

use sluice_engine::EngineOptions;
use sluice_formats::DType;
use sluice_machine::{InstructionSet, Instructions};
use sluice_ops::device::DeviceChoice;

/// Whatever goes wrong ends an example or a bench.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The engine's options, with the [`device`] and the [`instructions`] that are asked for, and in bf16 where
/// [`computes_in_bf16`].
///
/// # Errors
/// When this CPU lacks the instructions, or the device has no such name.
pub fn engine_options() -> Result<EngineOptions> {
    Ok(EngineOptions {
        device: device()?,
        instructions: instructions()?,
        compute_dtype: computes_in_bf16().then_some(DType::Bf16),
        ..EngineOptions::default()
    })
}

/// The device that `SLUICE_DEVICE` names, as for the daemon: `cuda:N`, or `cpu`, which is the default.
///
/// # Errors
/// When it is neither.
pub fn device() -> Result<DeviceChoice> {
    let Ok(name) = std::env::var("SLUICE_DEVICE") else {
        return Ok(DeviceChoice::Cpu);
    };
    match name.strip_prefix("cuda:") {
        Some(ordinal) => Ok(DeviceChoice::Cuda(ordinal.parse()?)),
        None if name == "cpu" => Ok(DeviceChoice::Cpu),
        None => Err(format!("no device {name:?}: cuda:N or cpu").into()),
    }
}

/// Whether `SLUICE_COMPUTE_DTYPE`, as for the daemon, is `bf16`.
#[must_use]
pub fn computes_in_bf16() -> bool {
    std::env::var("SLUICE_COMPUTE_DTYPE").is_ok_and(|name| name == "bf16")
}

/// The instructions that `SLUICE_INSTRUCTIONS` names, or the best.
///
/// # Errors
/// When this CPU lacks them.
pub fn instructions() -> Result<Instructions> {
    let Ok(name) = std::env::var("SLUICE_INSTRUCTIONS") else {
        return Ok(Instructions::best());
    };
    let mut sets = InstructionSet::ALL.into_iter();
    let set = sets.find(|set| set.name() == name);
    Ok(set
        .and_then(Instructions::of)
        .ok_or_else(|| format!("no instructions {name:?} here"))?)
}
