//! Attention: which rows of keys and values a task's queries see.

use bytemuck::{Pod, Zeroable};

use super::{address, holds, size};
use sluice_formats::DType;

use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Most queries that a [`AttentionTask`] may have.
pub const ATTEND_QUERIES: usize = 64;

/// Most numbers in a head that [`Gpu::attend`] takes.
pub const HEAD_DIM_MAX: usize = 256;

/// Queries, of one sequence, and what they attend to.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct AttentionTask {
    /// First row of the queries.
    pub query_start: u32,
    /// Rows of queries; at most [`ATTEND_QUERIES`].
    pub query_count: u32,
    /// The first of its segments.
    pub segment_start: u32,
    /// Segments of keys that its queries see.
    pub segment_count: u32,
    /// 1 where query i sees no row of keys beyond row `place` + i; 0 where all see all.
    pub causal: u32,
    /// The first query's own row of keys, where it matters.
    pub place: u32,
}

/// Consecutive rows of keys and values.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct AttentionSegment {
    /// First row.
    pub start: u32,
    /// Rows.
    pub len: u32,
}

/// What [`Gpu::attend`] reads and writes, in the numbers that it computes in.
#[derive(Debug, Clone, Copy)]
pub struct AttentionArgs {
    /// Rows as those of `q`.
    pub out: GpuSpan,
    /// Queries: `heads * head_dim` numbers a row.
    pub q: GpuSpan,
    /// Keys: `kv_heads * head_dim` numbers a row.
    pub k: GpuSpan,
    /// Values, in rows as those of `k`.
    pub v: GpuSpan,
    /// The [`AttentionTask`]s.
    pub tasks: GpuSpan,
    /// How many they are.
    pub task_count: usize,
    /// The [`AttentionSegment`]s that tasks refer to.
    pub segments: GpuSpan,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Numbers in a head: an even number up to [`HEAD_DIM_MAX`].
    pub head_dim: usize,
}

/// That kernels can take such heads.
pub(super) fn check_heads(heads: usize, kv_heads: usize, head_dim: usize) {
    assert!(
        head_dim.is_multiple_of(2) && head_dim <= HEAD_DIM_MAX,
        "heads of {head_dim} numbers"
    );
    assert!(
        kv_heads > 0 && heads.is_multiple_of(kv_heads),
        "{heads} heads share {kv_heads} of keys"
    );
}

impl Gpu {
    /// `softmax(q · kᵀ / √head_dim) · v` for each head and task. Rows that no task has are not written; a query without keys
    /// gets zeros.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
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
        } = attend;
        check_heads(heads, kv_heads, head_dim);
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
            holds(name, span, 0, dtype.bytes().max(4));
            assert!(
                span.bytes().is_multiple_of(bytes),
                "{name} is not whole rows"
            );
        }
        assert!(out.bytes() >= q.bytes(), "out is shorter than q");
        assert!(v.bytes() == k.bytes(), "keys and values differ");
        holds("segments", segments, 0, 4);
        // The kernels for `f32` take half of a task's queries.
        let parts = if dtype == DType::F32 { 2 } else { 1 };
        let dim = [64, 128, 256].into_iter().find(|&dim| head_dim <= dim);
        self.send(
            &format!(
                "attend_{}_{}",
                dtype.name(),
                dim.expect("heads are no longer than that")
            ),
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
                KernelArgument::F32((head_dim as f32).sqrt().recip()),
            ],
        )
    }
}
