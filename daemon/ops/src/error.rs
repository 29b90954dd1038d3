//! What can go wrong on a device, with the figures that a reader needs.

use std::io;

use sluice_cuda::{CudaError, GpuUnavailable};

/// Why a device refused an operation or an allocation, or failed.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// The ledger's limit, the system or the GPU's driver refused memory.
    #[error(
        "cannot allocate {needed_bytes} bytes for {purpose}; {used_bytes} {limit}are in use{free}",
        limit = limit_bytes.map_or_else(String::new, |limit| format!("of {limit} ")),
        free = free_bytes.map_or_else(String::new, |free| format!(", and {free} are free on the GPU"))
    )]
    OutOfMemory {
        /// What the bytes were for.
        purpose: &'static str,
        /// Bytes asked for.
        needed_bytes: u64,
        /// Bytes that Sluice holds on the device.
        used_bytes: u64,
        /// Limit of the bytes that it may hold there, if one is set.
        limit_bytes: Option<u64>,
        /// Bytes that the GPU's driver reports as free, where the driver refused.
        free_bytes: Option<u64>,
    },
    /// The system refused memory of the host's, in which the CPU computes beside a GPU.
    #[error(
        "cannot allocate {needed_bytes} bytes of host memory for {purpose}; {used_bytes} are in use beside the GPU"
    )]
    OutOfHostMemory {
        /// What the bytes were for.
        purpose: &'static str,
        /// Bytes asked for.
        needed_bytes: u64,
        /// Bytes that the CPU's operations hold beside the GPU.
        used_bytes: u64,
    },
    /// The GPU that was asked for cannot be used.
    #[error(transparent)]
    NoGpu(GpuUnavailable),
    /// A GPU refused something, or failed. After a failed kernel this process cannot use it any more.
    #[error("the GPU failed: {0}")]
    Gpu(#[from] CudaError),
    /// A row of logits without a maximum, or without a finite sum.
    #[error("cannot choose a token at position {position}: the logits are NaN")]
    NotANumber {
        /// In the canvas, prompt included.
        position: usize,
    },
    /// A vector of a text with an element that is infinite or NaN.
    #[error("cannot make a vector of text {text}, counted from 0: the model's rows are not finite")]
    VectorNotFinite {
        /// The text's index.
        text: usize,
    },
    /// The engine's threads cannot be started.
    #[error("cannot start the engine's threads: {0}")]
    Threads(String),
    /// The temporary file for measuring page cache reads cannot be used.
    #[error("cannot measure page cache reads: {0}")]
    Probe(io::Error),
}
