//! The head: a row's logits, a piece of the vocabulary at a time, become a choice, or a comparison of two heads.

use bytemuck::{Pod, Zeroable};

use super::{REDUCE_THREADS, address, holds, size};
use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Most end tokens, and most suppressed ones, that a [`LmHeadSampling`] names.
pub const LM_HEAD_TOKENS: usize = 16;

/// Stands for no token.
pub const NO_TOKEN: u32 = u32::MAX;

/// A row's state between pieces of the vocabulary.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct LmHeadState {
    /// Largest logit so far.
    pub max: f32,
    /// Plain logit of the best token.
    pub best_logit: f32,
    /// Logit of the target.
    pub target_logit: f32,
    /// The token with the best noised logit, or [`NO_TOKEN`].
    pub best: u32,
    /// Sum of `exp(logit - max)`.
    pub sum: f64,
    /// The best noised logit.
    pub best_score: f64,
}

impl LmHeadState {
    /// Before the first piece.
    pub const START: Self = Self {
        max: f32::NEG_INFINITY,
        best_logit: f32::NEG_INFINITY,
        target_logit: f32::NEG_INFINITY,
        best: NO_TOKEN,
        sum: 0.0,
        best_score: f64::NEG_INFINITY,
    };
}

/// What a row of the head is read for.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct LmHeadRow {
    /// Its place in the canvas, which fixes its noise.
    pub position: u32,
    /// 1 where an end token may be chosen.
    pub may_end: u32,
    /// A token whose logit is asked for, or [`NO_TOKEN`].
    pub target: u32,
}

/// How a token is chosen from a row's logits.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct LmHeadSampling {
    /// Scale of the Gumbel noise; 0: the largest logit.
    pub temperature: f64,
    /// Where noise comes from.
    pub noise_key: u64,
    /// Number of the pass, which fixes the noise with the position.
    pub pass: u64,
    /// Guidance weight w: logits are u + (w + 1)(c − u).
    pub guidance: f32,
    /// 1 where there is guidance: as many unconditional rows follow the conditional ones.
    pub has_guidance: u32,
    /// Ids from here on are unused rows of the head, never chosen.
    pub vocab_size: u32,
    /// Never chosen.
    pub mask: u32,
    /// How many of `ends` there are.
    pub end_count: u32,
    /// How many of `suppressed` there are.
    pub suppressed_count: u32,
    /// Chosen only in rows that may end.
    pub ends: [u32; LM_HEAD_TOKENS],
    /// Tokens whose logit counts as −∞, for choice and probability alike.
    pub suppressed: [u32; LM_HEAD_TOKENS],
}

/// Two heads' state in a row between pieces of the vocabulary.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct CompareState {
    /// Largest logits so far.
    pub max: [f32; 2],
    /// Their tokens.
    pub top: [u32; 2],
    /// Sums of `exp(logit - max)`.
    pub sum: [f64; 2],
    /// Logits of the target.
    pub target: [f32; 2],
    /// Sum of `exp(one - max of one) · (one - other)`.
    pub difference: f64,
}

impl CompareState {
    /// Before the first piece.
    pub const START: Self = Self {
        max: [f32::NEG_INFINITY; 2],
        top: [0; 2],
        sum: [0.0; 2],
        target: [f32::NEG_INFINITY; 2],
        difference: 0.0,
    };
}

impl Gpu {
    /// Takes `columns` logits (`f32`) of each row, those of the tokens from `first` on, into the rows' states. `rows` are
    /// [`LmHeadRow`]s, `states` [`LmHeadState`]s; the logits are changed.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short, or the choice names more tokens than it holds.
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
    pub fn lm_head_reduce(
        &self,
        states: GpuSpan,
        logits: GpuSpan,
        rows: GpuSpan,
        row_count: usize,
        columns: usize,
        first: usize,
        sampling: &LmHeadSampling,
    ) -> Result<(), CudaError> {
        assert!(
            sampling.end_count.max(sampling.suppressed_count) as usize <= LM_HEAD_TOKENS,
            "more tokens than there is room for"
        );
        let branches = if sampling.has_guidance == 0 { 1 } else { 2 };
        holds("states", states, row_count, size_of::<LmHeadState>());
        holds("logits", logits, branches * row_count * columns, 4);
        holds("rows", rows, row_count, size_of::<LmHeadRow>());
        if row_count == 0 || columns == 0 {
            return Ok(());
        }
        self.send(
            "head_reduce",
            [row_count, 1],
            REDUCE_THREADS,
            &[
                address(states),
                address(logits),
                address(rows),
                size(row_count),
                size(columns),
                size(first),
                KernelArgument::Bytes(bytemuck::bytes_of(sampling)),
            ],
        )
    }

    /// Takes `columns` logits (`f32`) of each row of two heads, those of the tokens from `first` on, into the rows'
    /// [`CompareState`]s. `targets` (`u32`) has a token, or [`NO_TOKEN`], for each row.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short.
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
    pub fn reduce_comparison(
        &self,
        states: GpuSpan,
        one: GpuSpan,
        other: GpuSpan,
        targets: GpuSpan,
        rows: usize,
        columns: usize,
        first: usize,
    ) -> Result<(), CudaError> {
        holds("states", states, rows, size_of::<CompareState>());
        holds("one", one, rows * columns, 4);
        holds("other", other, rows * columns, 4);
        holds("targets", targets, rows, 4);
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        self.send(
            "compare_reduce",
            [rows, 1],
            REDUCE_THREADS,
            &[
                address(states),
                address(one),
                address(other),
                address(targets),
                size(rows),
                size(columns),
                size(first),
            ],
        )
    }
}
