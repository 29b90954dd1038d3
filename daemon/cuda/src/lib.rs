//! NVIDIA cards for Sluice: what computes on them, and nothing of what is computed.
//!
//! One program serves machines with a card and without. Nothing of CUDA is needed to build it or to start it: the driver
//! (`libcuda.so.1`), and where they are found cuBLAS and NVML, are opened when the program runs, and a missing one is a value
//! that says what is missing and what to do. The kernels are Sluice's own (`kernels/`), compiled to PTX, which the driver
//! compiles for its card.
//!
//! - [`Gpu`] is one card: memory on it, copies, kernels, in one stream of work;
//! - [`CopyStream`] brings bytes to it beside that work, in an order that [`StreamMark`]s make;
//! - [`DeviceProperties`], [`LiveStats`] and [`LinkBandwidth`] say what is known of it;
//! - [`Blas`] is cuBLAS, where found;
//! - [`GpuUnavailable`] says why there is no card to use, [`CudaError`] what failed on one.

mod arena;
mod bandwidth;
mod blas;
mod context;
mod copies;
mod driver;
mod error;
mod gpu;
mod gpu_memory;
mod kernels;
mod launch;
mod library;
mod memory;
mod modules;
mod nvml;
mod properties;
mod span;

pub use arena::ArenaUse;
pub use bandwidth::{LinkBandwidth, PROBE_BYTES};
pub use blas::{Blas, Matmul};
pub use copies::{CopyStream, HostMemory, StreamMark};
pub use driver::CUDA_NEEDED;
pub use error::{CudaError, GpuUnavailable};
pub use gpu::{CAPABILITY_NEEDED, Gpu, GpuLaps, GpuTimer, LAPS_MAX};
pub use gpu_memory::GpuMemory;
pub use kernels::{
    ATTEND_QUERIES, AttentionArgs, AttentionSegment, AttentionTask, CompareState, CompressedChunk,
    CompressedGpuMatrix, Compression, DictionaryIndexError, DictionaryMatmul, HEAD_DIM_MAX,
    LM_HEAD_TOKENS, LmHeadRow, LmHeadSampling, LmHeadState, NO_TOKEN, RopeRows, SalienceArgs,
    SalienceScratch, dictionary_index, dictionary_index_bytes,
};
pub use nvml::{GpuClocks, GpuUtilization, LiveStats, PcieLink};
pub use properties::{DeviceName, DeviceProperties, devices};
pub use span::{GpuSpan, MemoryInfo};
