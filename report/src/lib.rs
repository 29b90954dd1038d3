//! What both programs say of the same things, written once: `sluice` of what the daemon did, `sluiced` of what it
//! did by itself where no daemon runs.
//!
//! Everything here is a line or a value; the programs print them.

pub mod container;
pub mod findings;
pub mod plan;
pub mod progress;
pub mod renamed_flags;
