//! What examples share: how far another checkpoint of a model is from it, and checkpoints with other weights.

pub mod checkpoints;
pub mod fidelity;

/// Whatever goes wrong ends an example.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
