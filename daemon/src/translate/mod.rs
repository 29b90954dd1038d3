//! From the engine's types to the wire's, and back.

pub mod card;
pub mod coded;
pub mod plan;
