//! How matrices are compressed losslessly for computing, and what that would save.

use std::sync::Arc;

use sluice_codec::{EncodeError, Encoded, Lossless, Scheme, encode};
use sluice_formats::DType;

use super::{CompressedTensor, CompressionShares, SourceTensor};

/// Elements of a tile.
pub const TILE: usize = 512;
/// A matrix is compressed only if that saves at least this share of its bytes.
const LEAST_SAVING: f64 = 1.0 / 16.0;
/// The scheme for a dtype: dictionary coding, which is the fastest to compute with, unless it saves next to nothing.
pub fn coder(dtype: DType) -> (Lossless, Scheme) {
    match dtype {
        // 12 % more bytes than Huffman codes, but single rows multiply three times as fast, so that no level is a trap.
        DType::Bf16 | DType::F32 => (Lossless::Dictionary, Scheme::Dictionary),
        // Symbols of f16 include two bits of mantissa: fifteen of them cover too few elements.
        DType::F16 => (Lossless::Huffman, Scheme::Huffman),
    }
}

/// Compresses rows of a matrix as the converted-weight cache stores them.
///
/// # Errors
/// When `bytes` isn't as long as the shape requires.
pub fn compress(
    dtype: DType,
    rows: usize,
    width: usize,
    bytes: &[u8],
) -> Result<Encoded, EncodeError> {
    let (lossless, _) = coder(dtype);
    encode(dtype, rows, width, bytes, lossless, TILE)
}

/// Estimates for each tensor how a lossless copy of it would be compressed, without reading any weights: from the
/// exponents of a typical language model.
pub fn with_assumed_compression(mut sources: Vec<SourceTensor>) -> Vec<SourceTensor> {
    // 0.7 bytes of codes give f16's 13.6 of 16 bits. bf16 and f32 are dictionary-coded, with escapes for a few in ten
    // thousand.
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

/// The dtype of a tensor that may be compressed; `None` for vectors, blocks, and tables, whose rows are read one by one.
pub fn compressible_dtype(source: &SourceTensor) -> Option<DType> {
    let (rows, _) = source.spec.size();
    let is_compressed = rows > 1 && !source.spec.part.is_table();
    source.format.dtype().filter(|_| is_compressed)
}

/// The estimated compression of a tensor; `None` if it doesn't save enough.
pub fn estimate_compressed(
    source: &SourceTensor,
    dtype: DType,
    shares: CompressionShares,
) -> Option<Arc<CompressedTensor>> {
    let (size, format) = (source.spec.size(), source.format);
    let (_, scheme) = coder(dtype);
    let compressed =
        CompressedTensor::estimated(&source.spec.name, size, format, scheme, TILE, shares)?;
    let plain_bytes = (size.0 * format.bytes(size.1)) as f64;
    // Decompressing takes time in every pass, so a small saving isn't worth it.
    let saves = compressed.file_bytes() as f64 <= (1.0 - LEAST_SAVING) * plain_bytes;
    saves.then(|| compressed.into())
}
