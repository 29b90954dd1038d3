//! How much attention keys receive, and moving the rows of those that stay together.

use super::{ELEMENT_THREADS, HEAD_DIM_MAX, address, attend::check_heads, holds, size, threads};
use sluice_formats::DType;

use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Queries of a block, as in `salience.cuh`; and threads of a block, each for one key.
const QUERIES: usize = 8;
const THREADS: usize = 128;

/// Arguments of [`Gpu::salience`].
#[derive(Debug, Clone, Copy)]
pub struct SalienceArgs {
    /// The result: a sum (`f32`) for each key.
    pub out: GpuSpan,
    /// Scratch of [`SalienceScratch::bytes`] bytes.
    pub scratch: GpuSpan,
    /// Queries: `heads * head_dim` elements a row.
    pub q: GpuSpan,
    /// Keys: `kv_heads * head_dim` elements a row.
    pub k: GpuSpan,
    /// The [`AttentionSegment`](crate::AttentionSegment)s of keys to score.
    pub segments: GpuSpan,
    /// Number of segments.
    pub segment_count: usize,
    /// Numbers of heads, queries and keys.
    pub sizes: SalienceScratch,
    /// Key heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Elements of a head: an even number up to [`HEAD_DIM_MAX`](crate::HEAD_DIM_MAX).
    pub head_dim: usize,
}

/// The sizes that determine how much scratch [`Gpu::salience`] needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SalienceScratch {
    /// Number of query heads.
    pub heads: usize,
    /// Rows of queries.
    pub queries: usize,
    /// Keys of all segments together.
    pub keys: usize,
}

impl SalienceScratch {
    /// Bytes of scratch: maximum and sum of the softmax for each query of each head, then one sum for each key of each
    /// head.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.softmax_bytes() + self.heads * self.keys * size_of::<f32>()
    }

    fn softmax_bytes(&self) -> usize {
        self.heads * self.queries * 2 * size_of::<f32>()
    }
}

impl Gpu {
    /// For each key the sum over queries and heads of `softmax(q · kᵀ / √head_dim)`, with the softmax over these keys
    /// alone.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When heads are odd or too long, or a span is too short or doesn't hold whole rows.
    pub fn salience(&self, dtype: DType, salience: SalienceArgs) -> Result<(), CudaError> {
        let SalienceArgs {
            out,
            scratch,
            q,
            k,
            segments,
            segment_count,
            sizes,
            kv_heads,
            head_dim,
        } = salience;
        let SalienceScratch {
            heads,
            queries,
            keys,
        } = sizes;
        check_heads(heads, kv_heads, head_dim, HEAD_DIM_MAX);
        holds("out", out, keys, 4);
        holds("scratch", scratch, sizes.bytes() / 4, 4);
        holds("q", q, queries * heads * head_dim, dtype.bytes());
        holds("segments", segments, 2 * segment_count, 4);
        // Segments are on the GPU and cannot be compared with the rows of `k`.
        let row = kv_heads * head_dim * dtype.bytes();
        assert!(
            row == 0 || k.bytes().is_multiple_of(row),
            "k is not whole rows"
        );
        if keys == 0 {
            return Ok(());
        }
        let (softmaxes, sums) = (
            scratch.part(0, sizes.softmax_bytes()),
            scratch.part(sizes.softmax_bytes(), heads * keys * 4),
        );
        // Both kernels that read keys take the same list behind their own outputs.
        let seen = [
            address(q),
            address(k),
            address(segments),
            size(segment_count),
            size(queries),
            size(keys),
            size(heads),
            size(kv_heads),
            size(head_dim),
            KernelArgument::F32((head_dim as f32).sqrt().recip()),
        ];
        // Three launches: the softmax's denominators per query, the sums per key and head, then the sum over heads. A
        // key needs the denominators of all queries first, and heads are added in a fixed order without atomics.
        if heads > 0 {
            if queries > 0 {
                self.send(
                    &format!("salience_queries_{}", dtype.name()),
                    [queries.div_ceil(QUERIES), heads],
                    THREADS as u32,
                    &[&[address(softmaxes)], &seen[..]].concat(),
                )?;
            }
            self.send(
                &format!("salience_keys_{}", dtype.name()),
                [keys.div_ceil(THREADS), heads],
                THREADS as u32,
                &[&[address(sums), address(softmaxes)], &seen[..]].concat(),
            )?;
        }
        self.send(
            "salience_heads",
            threads(keys),
            ELEMENT_THREADS,
            &[address(out), address(sums), size(keys), size(heads)],
        )
    }

    /// `memory` holds two matrices (keys and values) for each layer, one after another. Moves `count` rows of each to
    /// its beginning: those that `kept` (`u32`) lists for the layer, in rising order. The rows behind them stay as they
    /// are.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When `memory` isn't so many matrices of whole rows, or rows aren't whole words.
    pub fn keep_rows(
        &self,
        memory: GpuSpan,
        layers: usize,
        row_bytes: usize,
        kept: GpuSpan,
        count: usize,
    ) -> Result<(), CudaError> {
        let matrix_bytes = memory.bytes() / (2 * layers).max(1);
        assert!(
            memory.bytes() == 2 * layers * matrix_bytes
                && row_bytes.is_multiple_of(4)
                && matrix_bytes.is_multiple_of(row_bytes.max(1))
                && count * row_bytes <= matrix_bytes,
            "{count} rows of {row_bytes} bytes for {layers} layers don't lie in {memory:?}"
        );
        holds("memory", memory, 0, 4);
        holds("kept", kept, layers * count, 4);
        if layers == 0 || count == 0 || row_bytes == 0 {
            return Ok(());
        }
        // One launch for all layers. Rows rise, so that each is read before its place is overwritten: a thread moves
        // one word of every row in turn.
        self.send(
            "keep_rows",
            [threads(row_bytes / 4)[0], 2 * layers],
            ELEMENT_THREADS,
            &[
                address(memory),
                address(kept),
                KernelArgument::U64((matrix_bytes / 4) as u64),
                size(row_bytes / 4),
                size(count),
            ],
        )
    }
}
