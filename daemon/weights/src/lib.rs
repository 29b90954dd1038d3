//! The vocabulary of everything that has to do with weights: which tensors a model has, in which groups they live, stream and
//! change, and the numbers that they are described by.

mod compressed;
pub mod compression;
pub mod decompressed;
mod group;
pub mod layout;
mod limits;
mod rope;
mod shape;
mod storage;
mod view;

pub use self::{
    compressed::{
        CompressedTensor, CompressionShares, DamagedTensor, OpenRows, chunk_at, gpu_compression,
        open_rows,
    },
    group::{TensorPart, TensorSpec, WeightGroup},
    limits::{CONTEXT_LENGTH_MAX, END_TOKENS_MAX, HEAD_DIM_MAX, HIDDEN_SIZE_MAX},
    rope::{Llama3Scaling, Rope},
    shape::{Shape, TensorNaming},
    storage::{
        CompressedRange, SourceTensor, Storage, TensorPlan, Tier, WeightFormat, WeightGroupPlan,
        weight_groups,
    },
    view::{CompressedRows, GpuCompressedRows, GpuWeight, Weight, WeightData},
};
