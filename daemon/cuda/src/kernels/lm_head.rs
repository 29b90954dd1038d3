//! The LM head: reduces a row's logits, a piece of the vocabulary at a time, to a choice, or compares two models'
//! logits.

use bytemuck::{Pod, Zeroable};

use super::{REDUCE_THREADS, address, holds, size};
use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Most end tokens, and most suppressed tokens, of an [`LmHeadSampling`].
pub const LM_HEAD_TOKENS: usize = 16;

/// Stands for no token.
pub const NO_TOKEN: u32 = u32::MAX;

/// State of a row between pieces of the vocabulary. Logits of the whole vocabulary are never in memory at once.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct LmHeadState {
    /// Largest logit so far.
    pub max: f32,
    /// Logit of the best token, without noise.
    pub best_logit: f32,
    /// Logit of the target.
    pub target_logit: f32,
    /// The token with the best noised logit, or [`NO_TOKEN`].
    pub best: u32,
    /// Sum of `exp(logit - max)`, rescaled when `max` grows (online softmax, Milakov and Gimelshein 2018).
    pub sum: f64,
    /// Best logit with noise.
    pub best_score: f64,
    /// Sum of `logit * exp(logit - max)`, where [`LmHeadSampling::wants_entropy`].
    pub weighted: f64,
    /// Largest logit of those that may be chosen, where [`LmHeadSampling::wants_top`].
    pub top_logit: f32,
    /// Its token, or [`NO_TOKEN`].
    pub top: u32,
}

impl LmHeadState {
    /// State before the first piece.
    pub const START: Self = Self {
        max: f32::NEG_INFINITY,
        best_logit: f32::NEG_INFINITY,
        target_logit: f32::NEG_INFINITY,
        best: NO_TOKEN,
        sum: 0.0,
        best_score: f64::NEG_INFINITY,
        weighted: 0.0,
        top_logit: f32::NEG_INFINITY,
        top: NO_TOKEN,
    };
}

/// What the logits of a row are read for.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct LmHeadRow {
    /// Position in the canvas, which determines the noise.
    pub position: u32,
    /// 1 where an end token may be chosen.
    pub may_end: u32,
    /// A token whose logit is wanted, or [`NO_TOKEN`].
    pub target: u32,
}

/// How a token is chosen from a row's logits.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct LmHeadSampling {
    /// Scale of the Gumbel noise; with 0 the largest logit is chosen.
    pub temperature: f64,
    /// Seed of the noise.
    pub noise_key: u64,
    /// Index of the pass, which determines the noise together with the position.
    pub pass: u64,
    /// Guidance weight w: logits are u + (w + 1)(c − u).
    pub guidance: f32,
    /// 1 with guidance: as many unconditional rows follow the conditional ones.
    pub has_guidance: u32,
    /// Ids from here on are padding of the vocabulary, and never chosen.
    pub vocab_size: u32,
    /// Id of the mask token, which is never chosen.
    pub mask: u32,
    /// Number of valid entries of `ends`.
    pub end_count: u32,
    /// Number of valid entries of `suppressed`.
    pub suppressed_count: u32,
    /// End tokens, chosen only in rows that may end.
    pub ends: [u32; LM_HEAD_TOKENS],
    /// Tokens whose logit counts as −∞, for choice and probability alike.
    pub suppressed: [u32; LM_HEAD_TOKENS],
    /// What logits are bounded by, smoothly, before all else; 0: they are not.
    pub cap: f32,
    /// What they are multiplied by then.
    pub factor: f32,
    /// 1 where [`LmHeadState::weighted`] is wanted.
    pub wants_entropy: u32,
    /// 1 where [`LmHeadState::top`] is wanted.
    pub wants_top: u32,
}

/// Rows that are to become means of the head's rows by their probabilities: `f32`, `width` elements each.
#[derive(Debug, Clone, Copy)]
pub struct LmHeadMeans {
    /// A row for each row of logits.
    pub rows: GpuSpan,
    /// Elements of a row.
    pub width: usize,
}

/// State of a row between pieces of the vocabulary, for two models' logits.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct CompareState {
    /// Largest logits so far.
    pub max: [f32; 2],
    /// Tokens of the largest logits so far.
    pub top: [u32; 2],
    /// Sums of `exp(logit - max)`.
    pub sum: [f64; 2],
    /// Logits of the target token.
    pub target: [f32; 2],
    /// Sum of `exp(one - max of one) · (one - other)`, from which the KL divergence follows.
    pub difference: f64,
}

impl CompareState {
    /// State before the first piece.
    pub const START: Self = Self {
        max: [f32::NEG_INFINITY; 2],
        top: [0; 2],
        sum: [0.0; 2],
        target: [f32::NEG_INFINITY; 2],
        difference: 0.0,
    };
}

impl Gpu {
    /// Adds `columns` logits (`f32`) of each row, those of the tokens from `first` on, to the rows' states. `rows` are
    /// [`LmHeadRow`]s, `states` [`LmHeadState`]s. The logits are overwritten: for `means`, by `exp(logit - max)`, with which the
    /// head's rows are to be added to them; what they hold is brought to the new largest logit.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
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
        means: Option<LmHeadMeans>,
    ) -> Result<(), CudaError> {
        assert!(
            sampling.end_count.max(sampling.suppressed_count) as usize <= LM_HEAD_TOKENS,
            "more tokens than there is room for"
        );
        // With guidance, each row has conditional and unconditional logits.
        let branches = if sampling.has_guidance == 0 { 1 } else { 2 };
        holds("states", states, row_count, size_of::<LmHeadState>());
        holds("logits", logits, branches * row_count * columns, 4);
        holds("rows", rows, row_count, size_of::<LmHeadRow>());
        let (means, mean_width) = match means {
            Some(LmHeadMeans { rows, width }) => {
                holds("means", rows, row_count * width, 4);
                (address(rows), width)
            }
            None => (KernelArgument::Address(0), 0),
        };
        if row_count == 0 || columns == 0 {
            return Ok(());
        }
        self.send(
            "head_reduce",
            // A block for each row, whose threads are joined in a fixed order: the same logits always give the same
            // bits.
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
                means,
                size(mean_width),
            ],
        )
    }

    /// Divides sums of the head's rows by those of their rows' exponentials, once the states have all of them.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn lm_head_means(
        &self,
        LmHeadMeans { rows, width }: LmHeadMeans,
        states: GpuSpan,
        row_count: usize,
    ) -> Result<(), CudaError> {
        holds("means", rows, row_count * width, 4);
        holds("states", states, row_count, size_of::<LmHeadState>());
        if row_count == 0 || width == 0 {
            return Ok(());
        }
        self.send(
            "head_means",
            [row_count, 1],
            REDUCE_THREADS,
            &[address(rows), address(states), size(width)],
        )
    }

    /// Adds `columns` logits (`f32`) of each row of two models, those of the tokens from `first` on, to the rows'
    /// [`CompareState`]s. `targets` (`u32`) has a token, or [`NO_TOKEN`], for each row.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
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
