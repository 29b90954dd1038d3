//! Operations on rows of queries, keys and values between the matmuls.

use bytemuck::{Pod, Zeroable};

use super::{
    ELEMENT_THREADS, REDUCE_THREADS, address, holds, holds_weights, size, threads, vector_format,
};
use sluice_formats::{DType, Format};

use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Rows of heads that [`Gpu::rope`] rotates.
#[derive(Debug, Clone, Copy)]
pub struct RopeRows {
    /// The rows: `heads` heads each.
    pub x: GpuSpan,
    /// The position of each row (`u32`).
    pub positions: GpuSpan,
    /// Number of rows.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
}

/// How [`Gpu::rope`] rotates.
#[derive(Debug, Clone, Copy)]
pub struct RopeArgs {
    /// For each position `half` cosines and as many sines, in `f32`.
    pub table: GpuSpan,
    /// Pairs of a head; the rest of it stays as it is.
    pub half: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// How far apart the two elements of a pair are; 1: pairs are neighbours, elements 2i and 2i + 1. Otherwise they begin
    /// with element i.
    pub pair_distance: usize,
    /// Whether by the negative angles, as gradients go back.
    pub is_backward: bool,
}

/// Most vectors of [`Gpu::stack_vectors`].
pub const STACKED_VECTORS: usize = 8;

/// Where vectors lie, as the kernel reads it, by value.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StoredVectors {
    addresses: [u64; STACKED_VECTORS],
    formats: [u32; STACKED_VECTORS],
}

/// A function of single elements, by the number that kernels know it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementFunction {
    /// The hyperbolic tangent.
    Tanh = 0,
    /// `1 / (1 + e^-x)`.
    Sigmoid = 1,
    /// `max(x, 0)²`.
    SquaredRelu = 2,
    /// GELU by the error function.
    Gelu = 3,
}

impl Gpu {
    /// Rotary embedding (RoPE) in place, of queries and keys in one launch.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn rope(
        &self,
        dtype: DType,
        inputs: [RopeRows; 2],
        rope: RopeArgs,
    ) -> Result<(), CudaError> {
        let RopeArgs {
            table,
            half,
            head_dim,
            pair_distance,
            is_backward,
        } = rope;
        let step = if pair_distance == 1 { 2 } else { 1 };
        assert!(
            half == 0 || step * (half - 1) + pair_distance < head_dim,
            "{half} pairs in a head of {head_dim}"
        );
        let mut pairs = 0;
        for RopeRows {
            x,
            positions,
            rows,
            heads,
        } in inputs
        {
            holds("x", x, rows * heads * head_dim, dtype.bytes());
            holds("positions", positions, rows, 4);
            pairs += rows * heads * half;
        }
        if pairs == 0 {
            return Ok(());
        }
        holds("table", table, 2 * half, 4);
        // Queries and keys share a launch: in passes of few rows, launches take longer than the rotation.
        let matrix = |rotated: RopeRows| {
            [
                address(rotated.x),
                address(rotated.positions),
                size(rotated.rows),
                size(rotated.heads),
            ]
        };
        let [q, k] = inputs.map(matrix);
        self.send(
            &format!("rope_{}", dtype.name()),
            threads(pairs),
            ELEMENT_THREADS,
            &[
                &q[..],
                &k,
                &[
                    address(table),
                    size(half),
                    size(head_dim),
                    size(step),
                    size(pair_distance),
                    KernelArgument::F32(if is_backward { -1.0 } else { 1.0 }),
                ],
            ]
            .concat(),
        )
    }

    /// `x + bias` for each row of `x` (`f32`), in the compute dtype; in `f32`, `out` may be `x`. The bias has a plain
    /// format.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or the bias's format has blocks.
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
    pub fn add_bias(
        &self,
        dtype: DType,
        out: GpuSpan,
        x: GpuSpan,
        bias: GpuSpan,
        bias_format: Format,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        let count = rows * width;
        holds("out", out, count, dtype.bytes());
        holds("x", x, count, 4);
        holds_weights(bias, bias_format, width);
        let bias_format = vector_format(bias_format);
        if count == 0 {
            return Ok(());
        }
        self.send(
            &format!("add_bias_{}", dtype.name()),
            threads(count),
            ELEMENT_THREADS,
            &[
                address(out),
                address(x),
                address(bias),
                KernelArgument::U32(bias_format),
                size(width),
                KernelArgument::U64(count as u64),
            ],
        )
    }

    /// Copies rows of keys and of values to their places, in one launch rather than by two calls of
    /// [`copy`](Self::copy).
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When lengths differ, or are not whole words.
    pub fn put_rows(&self, places: [GpuSpan; 2], rows: [GpuSpan; 2]) -> Result<(), CudaError> {
        let bytes = rows[0].bytes();
        for span in [places, rows].concat() {
            holds("rows", span, bytes / 4, 4);
            assert!(
                span.bytes() == bytes && bytes.is_multiple_of(4),
                "rows of {bytes} bytes go to {span:?}"
            );
        }
        if bytes == 0 {
            return Ok(());
        }
        self.send(
            "put_rows",
            threads(bytes / 4),
            ELEMENT_THREADS,
            &[
                address(places[0]),
                address(places[1]),
                address(rows[0]),
                address(rows[1]),
                KernelArgument::U64((bytes / 4) as u64),
            ],
        )
    }

    /// Norm of each row of `x` (`f32`) to mean 0 and variance 1, times `weight`, plus `bias`, both `f32`.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
    pub fn layer_norm(
        &self,
        dtype: DType,
        out: GpuSpan,
        x: GpuSpan,
        [weight, bias]: [GpuSpan; 2],
        rows: usize,
        width: usize,
        epsilon: f32,
    ) -> Result<(), CudaError> {
        holds("out", out, rows * width, dtype.bytes());
        holds("x", x, rows * width, 4);
        holds("weight", weight, width, 4);
        holds("bias", bias, width, 4);
        if rows == 0 || width == 0 {
            return Ok(());
        }
        self.send(
            &format!("layer_norm_{}", dtype.name()),
            [rows, 1],
            REDUCE_THREADS,
            &[
                address(out),
                address(x),
                address(weight),
                address(bias),
                size(rows),
                size(width),
                KernelArgument::F32(epsilon),
            ],
        )
    }

    /// Applies a function to each element of `x`.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When the span is too short.
    pub fn element_function(
        &self,
        dtype: DType,
        x: GpuSpan,
        function: ElementFunction,
        count: usize,
    ) -> Result<(), CudaError> {
        holds("x", x, count, dtype.bytes());
        if count == 0 {
            return Ok(());
        }
        self.send(
            &format!("element_function_{}", dtype.name()),
            threads(count),
            ELEMENT_THREADS,
            &[
                address(x),
                KernelArgument::U32(function as u32),
                KernelArgument::U64(count as u64),
            ],
        )
    }

    /// `out = x · factor`, both `f32` and perhaps the same.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn scale(
        &self,
        out: GpuSpan,
        x: GpuSpan,
        factor: f32,
        count: usize,
    ) -> Result<(), CudaError> {
        holds("out", out, count, 4);
        holds("x", x, count, 4);
        if count == 0 {
            return Ok(());
        }
        self.send(
            "scale_f32",
            threads(count),
            ELEMENT_THREADS,
            &[
                address(out),
                address(x),
                KernelArgument::F32(factor),
                KernelArgument::U64(count as u64),
            ],
        )
    }

    /// Multiplies each row of `x` (`f32`) by the only element of one of two weights, in plain formats: of the second where
    /// `chosen` (`u32`) is not 0.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or a format has blocks.
    pub fn scale_rows(
        &self,
        x: GpuSpan,
        chosen: GpuSpan,
        [first, second]: [(GpuSpan, Format); 2],
        [rows, width]: [usize; 2],
    ) -> Result<(), CudaError> {
        holds("x", x, rows * width, 4);
        holds("chosen", chosen, rows, 4);
        for (weight, format) in [first, second] {
            holds_weights(weight, format, 1);
        }
        if rows == 0 || width == 0 {
            return Ok(());
        }
        self.send(
            "scale_rows_f32",
            [rows, threads(width)[0]],
            ELEMENT_THREADS,
            &[
                address(x),
                address(chosen),
                address(first.0),
                KernelArgument::U32(vector_format(first.1)),
                address(second.0),
                KernelArgument::U32(vector_format(second.1)),
                size(width),
            ],
        )
    }

    /// Vectors of `width` elements, each in a plain format, as rows of `f32`, in one launch.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When there are more than [`STACKED_VECTORS`], a span is too short, or a format has blocks.
    pub fn stack_vectors(
        &self,
        out: GpuSpan,
        vectors: &[(GpuSpan, Format)],
        width: usize,
    ) -> Result<(), CudaError> {
        holds("out", out, vectors.len() * width, 4);
        assert!(vectors.len() <= STACKED_VECTORS, "too many vectors");
        let mut stored = StoredVectors::zeroed();
        for (place, &(vector, format)) in vectors.iter().enumerate() {
            holds_weights(vector, format, width);
            stored.addresses[place] = vector.address();
            stored.formats[place] = vector_format(format);
        }
        if vectors.is_empty() || width == 0 {
            return Ok(());
        }
        self.send(
            "stack_vectors_f32",
            [threads(width)[0], vectors.len()],
            ELEMENT_THREADS,
            &[
                address(out),
                KernelArgument::Bytes(bytemuck::bytes_of(&stored)),
                size(width),
            ],
        )
    }
}
