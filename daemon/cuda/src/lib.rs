//! NVIDIA GPUs for Sluice: drivers, memory, streams and kernels, but nothing about models.
//!
//! One program serves machines with and without a GPU. Building and starting it needs nothing of CUDA: the driver
//! (`libcuda.so.1`), and cuBLAS and NVML where they are found, are opened at run time. A missing library is a value
//! that says what is missing and what to do. The kernels are Sluice's own (`kernels/`), compiled to PTX, which the
//! driver compiles for its GPU.
//!
//! - [`Gpu`] is one GPU: its memory, copies and kernels, all in one stream of work;
//! - [`CopyStream`] copies to it beside that work, ordered by [`StreamMark`]s;
//! - [`DeviceProperties`], [`LiveStats`] and [`LinkBandwidth`] say what is known of it;
//! - [`Blas`] is cuBLAS, where found;
//! - [`GpuUnavailable`] says why there is no GPU to use, [`CudaError`] what failed on one.

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
pub use blas::{Blas, Matmul, TransposedMatmul};
pub use copies::{CopyStream, HostMemory, StreamMark};
pub use driver::CUDA_NEEDED;
pub use error::{CudaError, GpuUnavailable};
pub use gpu::{CAPABILITY_NEEDED, Gpu, GpuLaps, GpuTimer, LAPS_MAX};
pub use gpu_memory::GpuMemory;
pub use kernels::{
    ATTEND_BACKWARD_FLOATS, ATTEND_BACKWARD_ROWS, ATTEND_HEAD_DIM_MAX, ATTEND_QUERIES,
    AttentionArgs, AttentionBackwardArgs, AttentionBackwardTask, AttentionSegment, AttentionTask,
    CompareState, CompressedChunk, CompressedGpuMatrix, Compression, CrossEntropyState,
    DictionaryIndexError, DictionaryMatmul, EXPERT_TASK_ROWS, ElementFunction, ExpertTask,
    FEW_ROWS, GroupedMatmul, HEAD_DIM_MAX, LM_HEAD_TOKENS, LmHeadMeans, LmHeadRow, LmHeadSampling,
    LmHeadState, NO_TOKEN, RopeArgs, RopeRows, RoutedRows, RouterRows, RouterRules,
    STACKED_VECTORS, SalienceArgs, SalienceScratch, StateRun, TIME_MIX_HEAD_DIM, TimeMixArgs,
    dictionary_index, dictionary_index_bytes,
};
pub use nvml::{GpuClocks, GpuUtilization, LiveStats, PcieLink};
pub use properties::{DeviceName, DeviceProperties, devices};
pub use span::{GpuSpan, MemoryInfo};
