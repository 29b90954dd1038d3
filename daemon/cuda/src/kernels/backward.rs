//! How gradients go back through a layer's operations. Gradients are `f32`.

use bytemuck::{Pod, Zeroable};
use sluice_formats::{DType, Format};

use super::{
    ELEMENT_THREADS, HEAD_DIM_MAX, REDUCE_THREADS, address, attend::check_heads, holds,
    holds_weights, size, size_64, threads, vector_format,
};
use crate::{
    blas::TransposedMatmul, error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan,
};

/// Most rows of an [`AttentionBackwardTask`].
pub const ATTEND_BACKWARD_ROWS: usize = 16;

/// Rows of one sequence, and those of the other side that they have to do with: queries and the keys that they see, or keys
/// and the queries that see them. The kernels read this structure as it is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct AttentionBackwardTask {
    /// First row of its own.
    pub own_start: u32,
    /// Number of them; at most [`ATTEND_BACKWARD_ROWS`].
    pub own_count: u32,
    /// Which row of its sequence the first one is.
    pub own_index: u32,
    /// First row of the other side.
    pub other_start: u32,
    /// Rows that the other side has in all.
    pub other_count: u32,
    /// So many rows before a row's own place have to do with it; `u32::MAX` for all.
    pub before: u32,
    /// And so many behind it.
    pub after: u32,
}

/// Floats of a query and head that [`Gpu::attend_backward`] keeps between its two kernels.
pub const ATTEND_BACKWARD_FLOATS: usize = 3;

/// Arguments of [`Gpu::attend_backward`].
#[derive(Debug, Clone, Copy)]
pub struct AttentionBackwardArgs {
    /// The gradients of queries, keys and values.
    pub found: [GpuSpan; 3],
    /// Scratch: [`ATTEND_BACKWARD_FLOATS`] for each query and head.
    pub weights: GpuSpan,
    /// Queries, keys and values in the compute dtype, in rows of heads.
    pub inputs: [GpuSpan; 3],
    /// The gradient of the result, in rows like those of the queries.
    pub d_out: GpuSpan,
    /// The [`AttentionBackwardTask`]s of queries, and of keys.
    pub tasks: [GpuSpan; 2],
    /// How many there are.
    pub task_counts: [usize; 2],
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Elements of a head: an even number up to [`HEAD_DIM_MAX`](super::HEAD_DIM_MAX).
    pub head_dim: usize,
}

/// State of a row's cross-entropy between pieces of the vocabulary.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct CrossEntropyState {
    /// Largest logit so far.
    pub max: f32,
    /// Logit of the target.
    pub target_logit: f32,
    /// Sum of `exp(logit - max)`.
    pub sum: f64,
}

impl CrossEntropyState {
    /// State before the first piece.
    pub const START: Self = Self {
        max: f32::MIN,
        target_logit: 0.0,
        sum: 0.0,
    };
}

impl Gpu {
    /// Adds to `d_x`, of each row, the gradient that [`Gpu::rms_norm`] passes back to `x` for `d_out`.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or the weights' format has blocks.
    pub fn rms_norm_backward(
        &self,
        d_x: GpuSpan,
        [x, d_out]: [GpuSpan; 2],
        (weight, weight_format): (GpuSpan, Format),
        rows: usize,
        width: usize,
        epsilon: f32,
    ) -> Result<(), CudaError> {
        for (name, span) in [("d_x", d_x), ("x", x), ("d_out", d_out)] {
            holds(name, span, rows * width, 4);
        }
        holds_weights(weight, weight_format, width);
        let weight_format = vector_format(weight_format);
        if rows == 0 || width == 0 {
            return Ok(());
        }
        self.send(
            "rms_norm_backward",
            [rows, 1],
            REDUCE_THREADS,
            &[
                address(d_x),
                address(x),
                address(d_out),
                address(weight),
                KernelArgument::U32(weight_format),
                size(rows),
                size(width),
                KernelArgument::F32(epsilon),
            ],
        )
    }

    /// Replaces the inputs of [`Gpu::silu_mul`] by their gradients, for the gradient of its result.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn silu_mul_backward(
        &self,
        dtype: DType,
        [gate, up]: [GpuSpan; 2],
        d_out: GpuSpan,
        count: usize,
    ) -> Result<(), CudaError> {
        holds("gate", gate, count, dtype.bytes());
        holds("up", up, count, dtype.bytes());
        holds("d_out", d_out, count, 4);
        if count == 0 {
            return Ok(());
        }
        self.send(
            &format!("silu_multiply_backward_{}", dtype.name()),
            threads(count),
            ELEMENT_THREADS,
            &[address(gate), address(up), address(d_out), size_64(count)],
        )
    }

    /// The gradients of queries, keys and values for the gradient of [`Gpu::attend`]'s result. Rows of no task are not
    /// written.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When heads are odd or too long, or a span doesn't hold what it should.
    pub fn attend_backward(
        &self,
        dtype: DType,
        args: AttentionBackwardArgs,
    ) -> Result<(), CudaError> {
        let AttentionBackwardArgs {
            found: [d_q, d_k, d_v],
            weights,
            inputs: [q, k, v],
            d_out,
            tasks,
            task_counts,
            heads,
            kv_heads,
            head_dim,
        } = args;
        check_heads(heads, kv_heads, head_dim, HEAD_DIM_MAX);
        let task_bytes = size_of::<AttentionBackwardTask>();
        for (tasks, count) in tasks.into_iter().zip(task_counts) {
            holds("tasks", tasks, count, task_bytes);
        }
        if task_counts.contains(&0) || heads == 0 || head_dim == 0 {
            return Ok(());
        }
        // Which rows tasks read is on the GPU, so only that all matrices have as many rows can be checked.
        let count = |span: GpuSpan| span.bytes() / dtype.bytes();
        holds("q", q, 0, dtype.bytes());
        for (name, span, count) in [
            ("d_q", d_q, count(q)),
            ("d_out", d_out, count(q)),
            ("d_k", d_k, count(k)),
            ("d_v", d_v, count(k)),
        ] {
            holds(name, span, count, 4);
        }
        holds("v", v, count(k), dtype.bytes());
        let floats = count(q) / head_dim * ATTEND_BACKWARD_FLOATS;
        holds("weights", weights, floats, 4);
        let dim = [64, 128, 256].into_iter().find(|&dim| head_dim <= dim);
        let dim = dim.expect("heads are no longer than that");
        let inputs = [address(q), address(k), address(v), address(d_out)];
        let shape = [
            size(heads),
            size(kv_heads),
            size(head_dim),
            KernelArgument::F32((head_dim as f32).sqrt().recip()),
        ];
        let send = |side: &str, grid, outputs: &[KernelArgument<'_>], tasks| {
            self.send(
                &format!("attend_backward_{side}_{}_{dim}", dtype.name()),
                grid,
                128,
                &[outputs, &inputs, &[address(tasks)], &shape].concat(),
            )
        };
        let [of_queries, of_keys] = tasks;
        let grid = [task_counts[0], heads];
        send(
            "queries",
            grid,
            &[address(d_q), address(weights)],
            of_queries,
        )?;
        let grid = [task_counts[1], kv_heads];
        let outputs = [address(d_k), address(d_v), address(weights)];
        send("keys", grid, &outputs, of_keys)
    }

    /// `out = x · weights`, or added to `out`, for weights in a plain format: by cuBLAS where it is found and they are in
    /// the compute dtype, or by [our own kernel](Self::matmul_transposed_by_kernel). Results and sums are `f32`.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or the format has blocks.
    pub fn matmul_transposed(
        &self,
        dtype: DType,
        format: Format,
        matmul: TransposedMatmul,
    ) -> Result<(), CudaError> {
        if format.name() == dtype.name()
            && let Some(blas) = self.blas()
        {
            // As for other matmuls, the driver's error says more.
            return (blas.gemm_transposed(dtype, matmul))
                .map_err(|refused| self.synchronize().err().unwrap_or(refused));
        }
        self.matmul_transposed_by_kernel(dtype, format, matmul)
    }

    /// Multiplies without cuBLAS.
    ///
    /// # Errors
    /// As [`matmul_transposed`](Self::matmul_transposed).
    ///
    /// # Panics
    /// As [`matmul_transposed`](Self::matmul_transposed).
    pub fn matmul_transposed_by_kernel(
        &self,
        dtype: DType,
        format: Format,
        matmul: TransposedMatmul,
    ) -> Result<(), CudaError> {
        /// Side of the tile that a block makes, and its threads.
        const SIDE: usize = 64;
        const THREADS: u32 = 256;
        let TransposedMatmul {
            out,
            x,
            x_stride,
            weights,
            rows,
            outputs,
            depth,
            accumulate,
        } = matmul;
        holds("out", out, rows * outputs, 4);
        holds("x", x, matmul.x_len(), dtype.bytes());
        holds_weights(weights, format, depth * outputs);
        let format = vector_format(format);
        if rows == 0 || outputs == 0 {
            return Ok(());
        }
        self.send(
            &format!("multiply_transposed_{}", dtype.name()),
            [rows.div_ceil(SIDE), outputs.div_ceil(SIDE)],
            THREADS,
            &[
                address(out),
                address(x),
                size(x_stride),
                address(weights),
                KernelArgument::U32(format),
                size(rows),
                size(outputs),
                size(depth),
                KernelArgument::F32(if accumulate { 1.0 } else { 0.0 }),
            ],
        )
    }

    /// Takes `columns` logits (`f32`) of each row, those of the tokens from `first` on, into the rows'
    /// [`CrossEntropyState`]s. They become `e^(logit − largest)`, and the rows of `weighted`, which are `width` wide, are
    /// brought to the new largest logit. `targets` are `u32`.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn weigh_logits(
        &self,
        states: GpuSpan,
        (logits, columns): (GpuSpan, usize),
        (weighted, width): (GpuSpan, usize),
        targets: GpuSpan,
        rows: usize,
        first: usize,
    ) -> Result<(), CudaError> {
        holds("states", states, rows, size_of::<CrossEntropyState>());
        holds("logits", logits, rows * columns, 4);
        holds("weighted", weighted, rows * width, 4);
        holds("targets", targets, rows, 4);
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        self.send(
            "weigh_logits",
            [rows, 1],
            REDUCE_THREADS,
            &[
                address(states),
                address(logits),
                address(weighted),
                address(targets),
                size(columns),
                size(first),
                size(width),
            ],
        )
    }

    /// Writes to rows of `own` (`f32`) the LM head's rows of their targets (`u32`), where these are among the `count` from
    /// `first` on that lie at `head`, in a plain format.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or the format has blocks.
    pub fn take_targets(
        &self,
        own: GpuSpan,
        targets: GpuSpan,
        (head, format): (GpuSpan, Format),
        (first, count): (usize, usize),
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        holds("own", own, rows * width, 4);
        holds("targets", targets, rows, 4);
        holds_weights(head, format, count * width);
        let format = vector_format(format);
        if rows == 0 || count == 0 || width == 0 {
            return Ok(());
        }
        self.send(
            "take_targets",
            [rows, 1],
            REDUCE_THREADS,
            &[
                address(own),
                address(targets),
                address(head),
                KernelArgument::U32(format),
                size(first),
                size(count),
                size(width),
            ],
        )
    }

    /// The gradient of rows' cross-entropies, `weighted / sum − own`, in the place of `weighted`.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn finish_cross_entropy(
        &self,
        weighted: GpuSpan,
        own: GpuSpan,
        states: GpuSpan,
        rows: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        holds("weighted", weighted, rows * width, 4);
        holds("own", own, rows * width, 4);
        holds("states", states, rows, size_of::<CrossEntropyState>());
        if rows == 0 || width == 0 {
            return Ok(());
        }
        self.send(
            "finish_cross_entropy",
            [rows, 1],
            REDUCE_THREADS,
            &[
                address(weighted),
                address(own),
                address(states),
                size(width),
            ],
        )
    }
}
