//! The vocabulary of everything that deals with weights: which tensors a model has, in which weight groups they live,
//! stream and change, and how they are stored.

mod compressed;
pub mod compression;
pub mod decompressed;
mod group;
mod input;
mod kept;
mod latent;
pub mod layout;
mod limits;
mod pruned;
mod rope;
mod router;
mod rwkv7;
mod shape;
mod storage;
mod view;

pub use self::{
    compressed::{
        CompressedTensor, CompressionShares, DamagedTensor, OpenRows, chunk_at, gpu_compression,
        open_rows,
    },
    group::{TensorPart, TensorSpec, WeightGroup},
    input::MatrixInput,
    kept::KeptKvHeads,
    latent::LatentShape,
    limits::{
        CONTEXT_LENGTH_MAX, END_TOKENS_MAX, HEAD_DIM_MAX, HIDDEN_SIZE_MAX, RECURRENT_CONTEXT_LENGTH,
    },
    pruned::KeptSizes,
    rope::{Llama3Scaling, QueryScale, Rope, RopePairs, YarnScaling},
    router::Router,
    rwkv7::{RWKV7_HEAD_DIM, Rwkv7Part, Rwkv7Ranks},
    shape::{
        ATTENTION_PARTS, EncoderShape, ExpertShape, FUSED_ATTENTION, GemmaShape, LayerHeads,
        LayerKind, Shape, TensorNaming,
    },
    storage::{
        CompressedRange, MixedTensor, SourceTensor, Storage, TensorPlan, Tier, WeightFormat,
        WeightGroupPlan, weight_groups,
    },
    view::{
        CompressedRows, GpuCompressedRows, GpuWeight, InterleavedRows, PIECE, PieceBuffer, Weight,
        WeightData,
    },
};
