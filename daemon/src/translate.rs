//! From the engine's types to the wire's, and back.

pub mod container;
pub mod format;
pub mod gpu;
pub mod memory;
pub mod plan;
