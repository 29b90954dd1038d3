//! From the engine's types to the wire's, and back.

pub mod container;
pub mod gpu;
pub mod plan;
