//! Processes of their own for work on strangers' files: the libraries that do it bound neither memory nor time.
//!
//! A program starts itself again with an argument ([`Process::start`]), and what it becomes takes its bounds first
//! ([`begin`]). The two speak over a socket, in [`frame`]s or as they like. The side that asks waits only as long as
//! somebody waits for it ([`Patient`]), and kills the process when that ends.

mod bounds;
pub mod frame;
mod patience;
mod process;

pub use bounds::{Bounds, begin, limit, limit_memory};
pub use patience::{Patience, Patient, WaitEnded, is_gone};
pub use process::{How, Process};
