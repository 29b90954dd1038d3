//! Compresses weights losslessly or to a chosen bit rate, and reads and writes the container that they are kept in.
//!
//! A matrix is compressed in tiles of a few hundred elements, each of which can be decompressed alone. Compressed bytes
//! are untrusted: a decoder may refuse them or return other values, but it never panics, never reads outside of them,
//! and never allocates more than their length accounts for.

mod columns;
pub mod container;
pub mod decompress;
pub mod encode;
pub mod layout;
pub mod trellis;

mod dictionary;
#[cfg(test)]
mod hostile;
mod huffman;
mod simd;
mod symbols;

pub use columns::ColumnsEncoder;
pub use decompress::{CompressedMatrix, DecompressError};
pub use encode::{EncodeError, Encoded, Lossless, encode};
pub use layout::{LayoutError, MatrixLayout, Scheme};
pub use trellis::{QuantizedMatrix, Quantizer, TrellisTarget, quantize};
