//! What can go wrong on a device, with the figures that a reader needs.

use std::io;

use sluice_cuda::{CudaError, GpuUnavailable};

/// Why a device refused an operation or an allocation, or failed.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// The device has no room.
    #[error(
        "cannot allocate {needed_bytes} bytes for {purpose}; {used_bytes} {limit}are in use{free}",
        limit = limit_bytes.map_or_else(String::new, |limit| format!("of {limit} ")),
        free = free_bytes.map_or_else(String::new, |free| format!(", and {free} are free on the GPU"))
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
    NoGpu(GpuUnavailable),
    /// A card refused something, or failed. After a failed kernel this process can't use it any more.
    #[error("the GPU failed: {0}")]
    Gpu(#[from] CudaError),
    /// A row of logits without a largest one, or without a finite sum.
    #[error("cannot choose a token at position {position}: the logits are NaN")]
    NotANumber {
        /// In the canvas, prompt included.
        position: usize,
    },
    /// The engine's threads could not be started.
    #[error("cannot start the engine's threads: {0}")]
    Threads(String),
    /// The probe that measures copying could not be made.
    #[error("cannot measure page cache reads: {0}")]
    Probe(io::Error),
}
