//! What plans and devices know of the machine, as data: how much memory it has and for what, how fast it is, its
//! threads and its instructions.

mod caches;
mod instructions;
pub mod mapped;
mod memory;
pub mod page;
mod rates;
pub mod tiles;
mod workers;

use sluice_formats::DType;

pub use self::{
    caches::last_level_cache_bytes,
    instructions::{InstructionSet, Instructions},
    memory::{MemoryStats, SwapStats, default_budget, default_pinned_memory_limit},
    rates::{BUSY_SHARE, DiskBandwidth, LinearRate, POINTS, Rates},
    workers::{BusyTime, ComputingGuard, SHARE, WaitingGuard, Workers},
};

/// Device properties that plans and kernels depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Threads of the machine.
    pub threads: usize,
    /// The vector instructions that the CPU's kernels use.
    pub instructions: Instructions,
    /// What rows and plain weights are rounded to where the CPU multiplies them: `f32`, which rounds nothing, or `bf16`.
    pub product_dtype: DType,
    /// The GPU that computes; `None` on the CPU.
    pub gpu: Option<GpuProfile>,
}

/// GPU properties that determine a pass's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuProfile {
    /// Bytes of the GPU's memory, free or not.
    pub total_bytes: u64,
    /// The dtype of activations; sums are `f32` whatever it is.
    pub dtype: DType,
    /// Bytes that the driver takes for its context.
    pub context_bytes: u64,
    /// Bytes of the cuBLAS workspace; 0 without cuBLAS.
    pub workspace_bytes: usize,
}

impl Profile {
    /// The CPU with so many threads, and its best instructions.
    #[must_use]
    pub fn cpu(threads: usize) -> Self {
        Self {
            threads,
            instructions: Instructions::best(),
            product_dtype: DType::F32,
            gpu: None,
        }
    }
}

/// The purpose of a reservation of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory that a GPU's driver takes before anything is computed.
    Context,
    /// The model's tensors that stay on the device.
    Weights,
    /// Buffers that streamed weights pass through.
    StagingBuffers,
    /// Activations on their way through the layers.
    Activations,
    /// Keys and values that outlive a pass.
    KvCache,
    /// What models without attention remember of their sequences.
    State,
    /// Logits of one piece of the vocabulary.
    Logits,
    /// Tiles that threads dequantize weights into, and scores of one tile of queries.
    Scratch,
}

impl MemoryKind {
    /// All kinds, in the order in which they are shown.
    pub const ALL: [Self; 8] = [
        Self::Context,
        Self::Weights,
        Self::StagingBuffers,
        Self::Activations,
        Self::KvCache,
        Self::State,
        Self::Logits,
        Self::Scratch,
    ];

    /// The name that logs and screens use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Weights => "weights",
            Self::StagingBuffers => "staging_buffers",
            Self::Activations => "activations",
            Self::KvCache => "kv_cache",
            Self::State => "state",
            Self::Logits => "logits",
            Self::Scratch => "scratch",
        }
    }
}
