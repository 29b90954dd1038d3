//! Weights coded without loss or to a chosen rate, and the container they are kept in.
//!
//! A matrix is coded in tiles of a few hundred numbers, each decodable alone. Whatever reads coded bytes takes them as
//! anybody's: they may be refused, or mean other numbers; nothing panics, reads elsewhere, or takes memory that the bytes
//! themselves don't account for.

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

pub use decompress::{CompressedMatrix, DecompressError};
pub use encode::{EncodeError, Encoded, Lossless, encode};
pub use layout::{LayoutError, MatrixLayout, Scheme};
pub use trellis::{QuantizedMatrix, Quantizer, TrellisTarget, quantize};
