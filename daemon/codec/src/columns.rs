//! Trellis-coded quantization down the columns of a chunk, so that an encoder can feed errors back.
//!
//! What one input's weights lose, the weights of inputs that resemble it can make up for, if they are quantized later
//! (GPTQ, arXiv 2210.17323; WaterSIC, arXiv 2603.04956). So the trellis (Ungerboeck 1982; Marcellin and Fischer 1990;
//! see `trellis`) goes down a column here: the elements of a column are chosen together, and columns one after the
//! other, in any order. Loss is least when each column has a step of its own, inversely proportional to what its error
//! costs, which makes the symbols of columns spread differently: a column names a class of spread, and each class has a
//! fixed code (`classes`).
//!
//! An element is `row factor · column step · level`, where the level is the symbol's in its class. A tile is eight
//! columns, one bit stream: of each column its header (`header`), the low bits of a wide one (`wide`) and its codes
//! (`encode`), without gaps. Lengths and checks of single columns would take 0.09 bits a weight.

mod bits;
mod classes;
mod decode;
mod encode;
mod encoder;
mod header;
#[cfg(test)]
mod kernel_tables;
mod matrix;
mod spreads;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod training;
mod wide;

pub use encoder::ColumnsEncoder;
pub(crate) use matrix::ColumnMatrix;
