//! How matrices are compressed without loss, and what that would save.

use std::sync::Arc;

use sluice_codec::{EncodeError, Encoded, Lossless, Scheme, encode};
use sluice_formats::DType;

use super::{CompressedTensor, CompressionShares, SourceTensor, TensorPart};

/// Numbers of a tile.
pub const TILE: usize = 512;
/// A matrix is coded where that saves at least this share of its bytes.
const LEAST_SAVING: f64 = 1.0 / 16.0;
/// How numbers are coded for speed.
pub fn coder(dtype: DType) -> (Lossless, Scheme) {
    match dtype {
        DType::Bf16 | DType::F32 => (Lossless::Dictionary, Scheme::Dictionary),
        DType::F16 => (Lossless::Huffman, Scheme::Huffman),
    }
}

/// Codes rows of a matrix as copies have them.
///
/// # Errors
/// When `bytes` are not so many numbers.
pub fn compress(
    dtype: DType,
    rows: usize,
    width: usize,
    bytes: &[u8],
) -> Result<Encoded, EncodeError> {
    let (lossless, _) = coder(dtype);
    encode(dtype, rows, width, bytes, lossless, TILE)
}

/// The same tensors, each with about how a lossless copy of it would be compressed, where nobody has read a number of them:
/// with the exponents of a language model.
pub fn with_assumed_compression(mut sources: Vec<SourceTensor>) -> Vec<SourceTensor> {
    const SHARES: CompressionShares = CompressionShares {
        codes: 0.7,
        escapes: 0.0005,
    };
    for source in &mut sources {
        let number = compressible_dtype(source);
        source.compressed_copy =
            number.and_then(|number| estimate_compressed(source, number, SHARES));
    }
    sources
}

/// What the numbers of a matrix are that may be coded. An embedding's rows are read one by one, from where they lie.
pub fn compressible_dtype(source: &SourceTensor) -> Option<DType> {
    let (rows, _) = source.spec.size();
    let is_coded = rows > 1 && source.spec.part != TensorPart::Embedding;
    source.format.dtype().filter(|_| is_coded)
}

/// How it would be coded, where that saves enough.
pub fn estimate_compressed(
    source: &SourceTensor,
    dtype: DType,
    shares: CompressionShares,
) -> Option<Arc<CompressedTensor>> {
    let (size, format) = (source.spec.size(), source.format);
    let (_, scheme) = coder(dtype);
    let coded = CompressedTensor::estimated(&source.spec.name, size, format, scheme, TILE, shares)?;
    let plain_bytes = (size.0 * format.bytes(size.1)) as f64;
    let saves = coded.file_bytes() as f64 <= (1.0 - LEAST_SAVING) * plain_bytes;
    saves.then(|| coded.into())
}
