//! What can go wrong on a device, with the figures that a reader needs.

use std::io;

use sluice_cuda::{CudaError, Unavailable};

/// Why a device refused an operation or an allocation, or failed.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// The device has no room.
    #[error(
        "{needed_bytes} bytes for {purpose} can't be had; {used_bytes} {limit}are in use{free}",
        limit = limit_bytes.map_or_else(String::new, |limit| format!("of {limit} ")),
        free = free_bytes.map_or_else(String::new, |free| format!(", and {free} are free on the card"))
    )]
    OutOfMemory {
        /// What they were for.
        purpose: &'static str,
        /// Bytes asked for.
        needed_bytes: u64,
        /// Bytes that Sluice holds on the device.
        used_bytes: u64,
        /// Bytes that it may hold there, if somebody set a limit.
        limit_bytes: Option<u64>,
        /// Bytes that the driver of a card calls free, where it is what refused.
        free_bytes: Option<u64>,
    },
    /// The card that was asked for can't be used.
    #[error(transparent)]
    NoCard(Unavailable),
    /// A card refused something, or failed. After a failed kernel this process can't use it any more.
    #[error("the card failed: {0}")]
    Card(#[from] CudaError),
    /// A row of logits without a largest one, or without a finite sum.
    #[error("no token can be chosen at position {position}: the logits are not numbers")]
    NotANumber {
        /// In the canvas, prompt included.
        position: usize,
    },
    /// The engine's threads could not be started.
    #[error("can't start the engine's threads: {0}")]
    Threads(String),
    /// The probe that measures copying could not be made.
    #[error("can't read a file in memory: {0}")]
    Probe(io::Error),
}
