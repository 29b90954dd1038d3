//! Weights coded without loss or to a chosen rate, and the container they are kept in.
//!
//! A matrix is coded in tiles of a few hundred numbers, each decodable alone. Whatever reads coded bytes takes them as
//! anybody's: they may be refused, or mean other numbers; nothing panics, reads elsewhere, or takes memory that the bytes
//! themselves don't account for.

pub mod coded;
pub mod container;
pub mod encode;
pub mod layout;
pub mod number;
pub mod rate;

#[cfg(test)]
mod hostile;
mod huffman;
mod palette;
mod path;
mod symbols;

pub use coded::{Coded, DecodeError};
pub use encode::{EncodeError, Encoded, Lossless, encode};
pub use layout::{Layout, LayoutError, Scheme};
pub use number::Number;
pub use rate::{Quantized, Quantizer, Target, quantize};
