//! The LM head's reduction on a GPU.

use std::ops::Range;

use sluice_cuda as cuda;
use sluice_cuda::{Gpu, GpuSpan};
use sluice_formats::DType;
use sluice_weights::Weight;

use super::{LmHeadGroup, LogitScaling, RankingScore, RunningRow, SamplingParams};
use crate::{Activation, OpsError, activation::ActivationPool, arena::ArenaPart, gpu::GpuBackend};

/// Memory of the LM head's reduction on a GPU, from the arena of activations: every pass needs it, and allocating or
/// freeing by the driver would stall the GPU.
pub(super) struct LmHeadMemory {
    logits: ArenaPart,
    states: ArenaPart,
    rows: ArenaPart,
    /// By what the head's rows are added to soft embeddings, in the dtype that the GPU computes in, where that is not
    /// the logits' own.
    shares: ArenaPart,
}

impl LmHeadMemory {
    /// For so many rows, so many logits at once, and shares of as many if they are in a dtype of their own.
    pub(super) fn take(
        pool: &ActivationPool,
        rows: usize,
        logits: usize,
        shares: Option<DType>,
    ) -> Result<Self, OpsError> {
        let shares = shares.filter(|dtype| *dtype != DType::F32);
        Ok(Self {
            shares: pool.take_bytes(shares.map_or(0, |dtype| logits * dtype.bytes()))?,
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
    /// Where its soft embeddings are.
    means: Option<cuda::LmHeadMeans>,
}

impl GpuLmHead {
    pub(super) fn read(&self, count: usize) -> Result<Vec<RunningRow>, OpsError> {
        let there = self.memory.states.span();
        for GpuRowGroup { rows, means, .. } in &self.groups {
            if let Some(means) = means {
                let states = part(there, rows, size_of::<cuda::LmHeadState>());
                self.gpu.lm_head_means(*means, states, rows.len())?;
            }
        }
        let mut states = vec![cuda::LmHeadState::START; count];
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
            weighted: state.weighted,
            top: Some((state.top, state.top_logit)).filter(|(top, _)| *top != cuda::NO_TOKEN),
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
        for soft in groups.iter().filter_map(|group| group.soft.as_deref()) {
            self.zero(soft.span())?;
        }
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
                means: group.soft.as_deref().map(|soft| cuda::LmHeadMeans {
                    rows: soft.span(),
                    width: soft.width(),
                }),
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
        for GpuRowGroup {
            rows,
            inputs,
            choice,
            means,
        } in &lm_head.groups
        {
            let of_group = part(logits, inputs, input_bytes);
            self.gpu.lm_head_reduce(
                part(
                    lm_head.memory.states.span(),
                    rows,
                    size_of::<cuda::LmHeadState>(),
                ),
                of_group,
                part(
                    lm_head.memory.rows.span(),
                    rows,
                    size_of::<cuda::LmHeadRow>(),
                ),
                rows.len(),
                piece.rows,
                first,
                choice,
                *means,
            )?;
            if let Some(means) = means {
                let shares = match x.dtype() {
                    DType::F32 => of_group,
                    dtype => {
                        let shares = lm_head.memory.shares.span();
                        let count = rows.len() * piece.rows;
                        (self.gpu).convert(dtype, shares, of_group, count)?;
                        shares
                    }
                };
                self.each_product((shares, means.rows), rows.len(), piece, true, |_, _| Ok(()))?;
            }
        }
        Ok(())
    }
}

/// The part of rows of so many bytes each.
fn part(span: GpuSpan, rows: &Range<usize>, bytes: usize) -> GpuSpan {
    span.part(rows.start * bytes, rows.len() * bytes)
}

fn lm_head_sampling(sampling: &SamplingParams<'_>) -> cuda::LmHeadSampling {
    let list = |ids: &[u32]| {
        let mut list = [cuda::NO_TOKEN; cuda::LM_HEAD_TOKENS];
        list[..ids.len()].copy_from_slice(ids);
        list
    };
    let scaling = sampling.scaling;
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
        cap: scaling.and_then(|scaling| scaling.soft_cap).unwrap_or(0.0),
        factor: scaling.map_or(1.0, LogitScaling::factor),
        wants_entropy: u32::from(sampling.ranking == RankingScore::Entropy),
        // Without noise the chosen token is the most probable one.
        wants_top: u32::from(sampling.top && sampling.temperature > 0.0),
    }
}
