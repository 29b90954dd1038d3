//! What examples share: models in memory, how far another checkpoint is from one, and checkpoints with other weights.

pub mod checkpoints;
pub mod fidelity;
pub mod loaded;

/// Whatever goes wrong ends an example.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
