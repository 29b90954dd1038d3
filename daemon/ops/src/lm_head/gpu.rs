//! The LM head's reduction on a GPU.

use std::ops::Range;

use sluice_cuda as cuda;
use sluice_cuda::{Gpu, GpuSpan};
use sluice_formats::DType;
use sluice_weights::Weight;

use super::{LmHeadGroup, RunningRow, SamplingParams};
use crate::{Activation, OpsError, activation::ActivationPool, arena::ArenaPart, gpu::GpuBackend};

/// Memory of the LM head's reduction on a GPU, from the arena of activations: every pass needs it, and allocating or
/// freeing by the driver would stall the GPU.
pub(super) struct LmHeadMemory {
    logits: ArenaPart,
    states: ArenaPart,
    rows: ArenaPart,
}

impl LmHeadMemory {
    /// For so many rows, and so many logits at once.
    pub(super) fn take(
        pool: &ActivationPool,
        rows: usize,
        logits: usize,
    ) -> Result<Self, OpsError> {
        Ok(Self {
            logits: pool.take_bytes(logits * size_of::<f32>())?,
            states: pool.take_bytes(rows * size_of::<cuda::LmHeadState>())?,
            rows: pool.take_bytes(rows * size_of::<cuda::LmHeadRow>())?,
        })
    }

    /// Where the `f32` logits of a piece go.
    pub(super) fn logits(&self) -> GpuSpan {
        self.logits.span()
    }
}

/// The states of rows on their way through the LM head.
pub(super) struct GpuLmHead {
    gpu: Gpu,
    memory: LmHeadMemory,
    groups: Vec<GpuRowGroup>,
}

/// A group's rows among all rows, and among those of the matmul.
struct GpuRowGroup {
    rows: Range<usize>,
    inputs: Range<usize>,
    choice: cuda::LmHeadSampling,
}

impl GpuLmHead {
    pub(super) fn read(&self, count: usize) -> Result<Vec<RunningRow>, OpsError> {
        let mut states = vec![cuda::LmHeadState::START; count];
        let there = self.memory.states.span();
        self.gpu
            .download(there, bytemuck::cast_slice_mut(&mut states))?;
        let running = states.into_iter().map(|state| RunningRow {
            max: state.max,
            sum: state.sum,
            best_score: state.best_score,
            // No token is left where all logits are NaN; `candidate` makes an error of it.
            best: Some(state.best).filter(|&best| best != cuda::NO_TOKEN),
            best_logit: state.best_logit,
            target_logit: state.target_logit,
            ..RunningRow::default()
        });
        Ok(running.collect())
    }
}

impl GpuBackend {
    pub(super) fn start_lm_head(
        &self,
        groups: &[LmHeadGroup<'_>],
        memory: LmHeadMemory,
    ) -> Result<GpuLmHead, OpsError> {
        let rows = groups.iter().flat_map(|group| group.rows);
        let rows: Vec<_> = rows
            .map(|row| cuda::LmHeadRow {
                position: row.position as u32,
                may_end: u32::from(row.may_end),
                target: row.target.unwrap_or(cuda::NO_TOKEN),
            })
            .collect();
        // Uploaded for each reduction: the arena's memory holds what the last operation left there.
        let start = vec![cuda::LmHeadState::START; rows.len()];
        self.upload(memory.states.span(), &start)?;
        self.upload(memory.rows.span(), &rows)?;
        let (mut row, mut input) = (0, 0);
        let groups = groups.iter().map(|group| {
            let (first_row, first_input) = (row, input);
            row += group.rows.len();
            input += group.inputs();
            GpuRowGroup {
                rows: first_row..row,
                inputs: first_input..input,
                choice: lm_head_sampling(&group.sampling),
            }
        });
        Ok(GpuLmHead {
            gpu: self.gpu.clone(),
            memory,
            groups: groups.collect(),
        })
    }

    pub(super) fn reduce_lm_head(
        &self,
        lm_head: &GpuLmHead,
        x: &Activation,
        piece: &Weight<'_>,
        first: usize,
    ) -> Result<(), OpsError> {
        let input_bytes = piece.rows * size_of::<f32>();
        let logits = lm_head.memory.logits.span().part(0, x.len() * input_bytes);
        self.matmul(x, piece, logits, DType::F32, false)?;
        // One matmul for all groups, then a launch for each: groups differ in sampling, not in weights.
        let part = |span: GpuSpan, of: &Range<usize>, bytes: usize| {
            span.part(of.start * bytes, of.len() * bytes)
        };
        for GpuRowGroup {
            rows,
            inputs,
            choice,
        } in &lm_head.groups
        {
            self.gpu.lm_head_reduce(
                part(
                    lm_head.memory.states.span(),
                    rows,
                    size_of::<cuda::LmHeadState>(),
                ),
                part(logits, inputs, input_bytes),
                part(
                    lm_head.memory.rows.span(),
                    rows,
                    size_of::<cuda::LmHeadRow>(),
                ),
                rows.len(),
                piece.rows,
                first,
                choice,
            )?;
        }
        Ok(())
    }
}

fn lm_head_sampling(sampling: &SamplingParams<'_>) -> cuda::LmHeadSampling {
    let list = |ids: &[u32]| {
        let mut list = [cuda::NO_TOKEN; cuda::LM_HEAD_TOKENS];
        list[..ids.len()].copy_from_slice(ids);
        list
    };
    cuda::LmHeadSampling {
        temperature: sampling.temperature,
        noise_key: sampling.noise.key(),
        pass: sampling.pass as u64,
        guidance: sampling.guidance.unwrap_or(0.0) as f32,
        has_guidance: u32::from(sampling.guidance.is_some()),
        vocab_size: sampling.vocab_size as u32,
        mask: sampling.mask_token_id.unwrap_or(cuda::NO_TOKEN),
        end_count: sampling.end_tokens.len() as u32,
        suppressed_count: sampling.suppressed.len() as u32,
        ends: list(sampling.end_tokens),
        suppressed: list(sampling.suppressed),
    }
}
