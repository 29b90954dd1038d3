//! How matrices are compressed without loss, and what that would save.

use std::sync::Arc;

use sluice_codec::{EncodeError, Encoded, Lossless, Number, Scheme, encode};

use super::{CodeShares, CodedTensor, Part, SourceTensor, coded::number_of};

/// Numbers of a tile.
pub const TILE: usize = 512;
/// A matrix is coded where that saves at least this share of its bytes.
const LEAST_SAVING: f64 = 1.0 / 16.0;
/// How numbers are coded for speed.
pub fn coder(number: Number) -> (Lossless, Scheme) {
    match number {
        Number::Bf16 | Number::F32 => (Lossless::Palette, Scheme::Palette),
        Number::F16 => (Lossless::Huffman, Scheme::Huffman),
    }
}

/// Codes rows of a matrix as copies have them.
///
/// # Errors
/// When `bytes` are not so many numbers.
pub fn code(
    number: Number,
    rows: usize,
    width: usize,
    bytes: &[u8],
) -> Result<Encoded, EncodeError> {
    let (lossless, _) = coder(number);
    encode(number, rows, width, bytes, lossless, TILE)
}

/// The same tensors, each with about how a lossless copy of it would be compressed, where nobody has read a number of them:
/// with the exponents of a language model.
pub fn assumed(mut sources: Vec<SourceTensor>) -> Vec<SourceTensor> {
    const SHARES: CodeShares = CodeShares {
        codes: 0.7,
        escapes: 0.0005,
    };
    for source in &mut sources {
        let number = may_be_coded(source);
        source.copy = number.and_then(|number| estimate(source, number, SHARES));
    }
    sources
}

/// What the numbers of a matrix are that may be coded. An embedding's rows are read one by one, from where they lie.
pub fn may_be_coded(source: &SourceTensor) -> Option<Number> {
    let (rows, _) = source.spec.size();
    let is_coded = rows > 1 && source.spec.part != Part::Embedding;
    number_of(source.format).filter(|_| is_coded)
}

/// How it would be coded, where that saves enough.
pub fn estimate(
    source: &SourceTensor,
    number: Number,
    shares: CodeShares,
) -> Option<Arc<CodedTensor>> {
    let (size, format) = (source.spec.size(), source.format);
    let (_, scheme) = coder(number);
    let coded = CodedTensor::estimated(&source.spec.name, size, format, scheme, TILE, shares)?;
    let plain_bytes = (size.0 * format.bytes(size.1)) as f64;
    let saves = coded.file_bytes() as f64 <= (1.0 - LEAST_SAVING) * plain_bytes;
    saves.then(|| coded.into())
}
