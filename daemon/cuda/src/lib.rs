//! NVIDIA cards for Sluice: what computes on them, and nothing of what is computed.
//!
//! One program serves machines with a card and without. Nothing of CUDA is needed to build it or to start it: the driver
//! (`libcuda.so.1`), and where they are found cuBLAS and NVML, are opened when the program runs, and a missing one is a value
//! that says what is missing and what to do. The kernels are Sluice's own (`kernels/`), compiled to PTX, which the driver
//! compiles for its card.
//!
//! - [`Gpu`] is one card: memory on it, copies, kernels, in one stream of work;
//! - [`CopyStream`] brings bytes to it beside that work, in an order that [`Mark`]s make;
//! - [`Facts`], [`Live`] and [`LinkRates`] say what is known of it;
//! - [`Blas`] is cuBLAS, where found;
//! - [`Unavailable`] says why there is no card to use, [`CudaError`] what failed on one.

mod arena;
mod blas;
mod context;
mod copies;
mod driver;
mod error;
mod facts;
mod gpu;
mod gpu_memory;
mod kernels;
mod launch;
mod library;
mod memory;
mod modules;
mod number;
mod nvml;
mod rates;
mod span;

pub use arena::ArenaUse;
pub use blas::{Blas, Product};
pub use copies::{CopyStream, HostMemory, Mark};
pub use driver::CUDA_NEEDED;
pub use error::{CudaError, Unavailable};
pub use facts::{DeviceName, Facts, devices};
pub use gpu::{CAPABILITY_NEEDED, Gpu, LAPS_MAX, Laps, Timer};
pub use gpu_memory::GpuMemory;
pub use kernels::{
    ATTEND_QUERIES, Attend, CodedChunk, CodedMatrix, Coding, CompareState, HEAD_DIM_MAX,
    HEAD_TOKENS, HeadChoice, HeadRow, HeadState, NO_TOKEN, PaletteIndexError, PaletteProduct,
    Salience, SalienceScratch, Segment, Task, Turned, palette_index, palette_index_bytes,
};
pub use number::{Format, Number};
pub use nvml::{Bus, Clocks, Live, Utilization};
pub use rates::{LinkRates, PROBE_BYTES};
pub use span::{MemoryInfo, Span};
