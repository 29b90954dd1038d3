//! What a compression is asked for.

use sluice_codec::{Lossless, TrellisTarget, container::TensorFilter};
use sluice_shared::mix::MixId;

/// Options of a compression.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressOptions {
    /// The compression method.
    pub method: CompressionMethod,
    /// Elements of a tile: 128, 256 or 512.
    pub tile: usize,
    /// Which tensors may be compressed.
    pub tensors: TensorFilter,
    /// Whether embeddings are compressed too, and the LM head is trellis-quantized where the layers are.
    pub all: bool,
    /// Number of threads that compress; 0 for one per core.
    pub threads: usize,
    /// Whether an existing target is replaced.
    pub replace: bool,
}

/// How tensors are compressed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CompressionMethod {
    /// Losslessly, with this scheme.
    Lossless(Lossless),
    /// Trellis-quantized, each tensor to the same target.
    Trellis(TrellisTarget),
    /// Those of a mix as they are in it, which lies in the folder where comparisons are remembered; others losslessly.
    Mix(MixId),
}
