//! Attention: each task's queries see some segments of keys and values.

use bytemuck::{Pod, Zeroable};

use super::{address, holds, size};
use sluice_formats::DType;

use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Most queries of an [`AttentionTask`].
pub const ATTEND_QUERIES: usize = 64;

/// Largest head dimension that all kernels support.
pub const HEAD_DIM_MAX: usize = 256;

/// Largest head dimension that [`Gpu::attend`] supports; gradients and the choice of keys have [`HEAD_DIM_MAX`].
pub const ATTEND_HEAD_DIM_MAX: usize = 512;

/// Queries of one sequence, and the keys that they attend to. The kernels read this structure as it is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct AttentionTask {
    /// First row of its queries in `q`.
    pub query_start: u32,
    /// Number of query rows; at most [`ATTEND_QUERIES`].
    pub query_count: u32,
    /// Index of its first segment.
    pub segment_start: u32,
    /// Number of its segments.
    pub segment_count: u32,
    /// 1 where query i sees no key beyond the one at `place` + i; 0 where all queries see all keys.
    pub causal: u32,
    /// The first query's own key; unused unless `causal`.
    pub place: u32,
}

/// Consecutive keys and their values.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct AttentionSegment {
    /// Index of its first key.
    pub start: u32,
    /// Number of keys.
    pub len: u32,
}

/// Arguments of [`Gpu::attend`], in the compute dtype.
#[derive(Debug, Clone, Copy)]
pub struct AttentionArgs {
    /// The result, in rows like those of `q`.
    pub out: GpuSpan,
    /// Queries: `heads * head_dim` elements a row.
    pub q: GpuSpan,
    /// Keys: `kv_heads * head_dim` elements a row.
    pub k: GpuSpan,
    /// Values, in rows as those of `k`.
    pub v: GpuSpan,
    /// The [`AttentionTask`]s on the GPU.
    pub tasks: GpuSpan,
    /// Number of tasks.
    pub task_count: usize,
    /// The [`AttentionSegment`]s that tasks refer to.
    pub segments: GpuSpan,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; each serves `heads / kv_heads` query heads (grouped-query attention).
    pub kv_heads: usize,
    /// Elements of a head: an even number up to [`ATTEND_HEAD_DIM_MAX`].
    pub head_dim: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Most keys that a query of a causal task sees, up to its own; `None` for all.
    pub window: Option<usize>,
}

/// Panics unless kernels for heads of at most `most` elements support these.
pub(super) fn check_heads(heads: usize, kv_heads: usize, head_dim: usize, most: usize) {
    assert!(
        head_dim.is_multiple_of(2) && head_dim <= most,
        "heads of {head_dim} numbers"
    );
    assert!(
        kv_heads > 0 && heads.is_multiple_of(kv_heads),
        "{heads} heads share {kv_heads} of keys"
    );
}

impl Gpu {
    /// `softmax(q · kᵀ · scale) · v` for each head and task. Rows of no task are not written; a query without keys
    /// gets zeros. Keys beyond the rows of `k` take turns in them: key i lies in row i modulo their number.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When heads are odd or too long, or a span doesn't hold whole rows.
    pub fn attend(&self, dtype: DType, attend: AttentionArgs) -> Result<(), CudaError> {
        let AttentionArgs {
            out,
            q,
            k,
            v,
            tasks,
            task_count,
            segments,
            heads,
            kv_heads,
            head_dim,
            scale,
            window,
        } = attend;
        check_heads(heads, kv_heads, head_dim, ATTEND_HEAD_DIM_MAX);
        holds("tasks", tasks, task_count, size_of::<AttentionTask>());
        if task_count == 0 || heads == 0 || head_dim == 0 {
            return Ok(());
        }
        let row = |heads: usize| heads * head_dim * dtype.bytes();
        for (name, span, bytes) in [
            ("q", q, row(heads)),
            ("out", out, row(heads)),
            ("k", k, row(kv_heads)),
            ("v", v, row(kv_heads)),
        ] {
            // Which rows tasks read is on the GPU, so only alignment and whole rows can be checked.
            holds(name, span, 0, dtype.bytes().max(4));
            assert!(
                span.bytes().is_multiple_of(bytes),
                "{name} is not whole rows"
            );
        }
        assert!(out.bytes() >= q.bytes(), "out is shorter than q");
        assert!(v.bytes() == k.bytes(), "keys and values differ");
        holds("segments", segments, 0, 4);
        // Kernels are compiled for four head dimensions; shorter heads are padded.
        let dim = [64, 128, 256, 512].into_iter().find(|&dim| head_dim <= dim);
        let dim = dim.expect("heads are no longer than that");
        // A block of an `f32` kernel takes half of a task's queries, and of the longest heads half as many as of others: that
        // leaves it enough registers and shared memory.
        let parts = if dtype == DType::F32 { 2 } else { 1 } * if dim == 512 { 2 } else { 1 };
        self.send(
            &format!("attend_{}_{dim}", dtype.name()),
            // Tasks go into the grid's first dimension: the second allows no more than 65,535 blocks.
            [parts * task_count, heads],
            128,
            &[
                address(out),
                address(q),
                address(k),
                address(v),
                address(tasks),
                address(segments),
                size(heads),
                size(kv_heads),
                size(head_dim),
                KernelArgument::F32(scale),
                window.map_or(KernelArgument::U32(u32::MAX), size),
                size((k.bytes() / row(kv_heads)).max(1)),
            ],
        )
    }
}
