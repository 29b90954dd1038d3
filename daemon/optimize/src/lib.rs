//! The optimizer's mathematics, pure functions on matrices: statistics of a layer's inputs, quantization that minimizes
//! the error of its outputs, structured pruning with compensation, and the allocation of bits to weight groups.
//!
//! Conventions: W is `m × n` (outputs × inputs), row-major; a layer computes y = W x; H = E\[x xᵀ\] is `n × n`. The
//! error of a replacement Ŵ is tr(E H Eᵀ) with E = W - Ŵ, the mean squared error of the outputs. Results don't depend
//! on the number of threads.

pub mod allocate;
pub mod blocks;
pub mod columns;
pub mod factor;
pub mod feedback;
pub mod moments;
pub mod prune;

mod matmul;
#[cfg(test)]
mod testing;
