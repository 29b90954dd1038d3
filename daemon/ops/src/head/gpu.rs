//! The head's reduction on a GPU.

use std::ops::Range;

use sluice_cuda as cuda;
use sluice_cuda::{Gpu, Number, Span};
use sluice_weights::Weight;

use super::{Choice, HeadGroup, Running};
use crate::{Activation, OpsError, activation::Pool, arena::Part, gpu::Card};

/// What the head's reduction takes on a card, from the arena of activations: every pass needs it anew, and the driver stops
/// the card for whatever is given back to it.
pub(super) struct HeadMemory {
    logits: Part,
    states: Part,
    rows: Part,
}

impl HeadMemory {
    /// For so many rows, and logits at once.
    pub(super) fn take(pool: &Pool, rows: usize, logits: usize) -> Result<Self, OpsError> {
        Ok(Self {
            logits: pool.take_bytes(logits * size_of::<f32>())?,
            states: pool.take_bytes(rows * size_of::<cuda::HeadState>())?,
            rows: pool.take_bytes(rows * size_of::<cuda::HeadRow>())?,
        })
    }

    /// Where logits go, `f32`.
    pub(super) fn logits(&self) -> Span {
        self.logits.span()
    }
}

/// The states of rows on their way through the head.
pub(super) struct CardHead {
    gpu: Gpu,
    memory: HeadMemory,
    groups: Vec<CardGroup>,
}

/// A group's rows among all rows, and among those of the multiply.
struct CardGroup {
    rows: Range<usize>,
    inputs: Range<usize>,
    choice: cuda::HeadChoice,
}

impl CardHead {
    pub(super) fn read(&self, count: usize) -> Result<Vec<Running>, OpsError> {
        let mut states = vec![cuda::HeadState::START; count];
        let there = self.memory.states.span();
        self.gpu
            .download(there, bytemuck::cast_slice_mut(&mut states))?;
        let running = states.into_iter().map(|state| Running {
            max: state.max,
            sum: state.sum,
            best_score: state.best_score,
            best: Some(state.best).filter(|&best| best != cuda::NO_TOKEN),
            best_logit: state.best_logit,
            target_logit: state.target_logit,
            ..Running::default()
        });
        Ok(running.collect())
    }
}

impl Card {
    pub(super) fn start_head(
        &self,
        groups: &[HeadGroup<'_>],
        memory: HeadMemory,
    ) -> Result<CardHead, OpsError> {
        let rows = groups.iter().flat_map(|group| group.rows);
        let rows: Vec<_> = rows
            .map(|row| cuda::HeadRow {
                position: row.position as u32,
                may_end: u32::from(row.may_end),
                target: row.target.unwrap_or(cuda::NO_TOKEN),
            })
            .collect();
        let start = vec![cuda::HeadState::START; rows.len()];
        self.upload(memory.states.span(), &start)?;
        self.upload(memory.rows.span(), &rows)?;
        let (mut row, mut input) = (0, 0);
        let groups = groups.iter().map(|group| {
            let (first_row, first_input) = (row, input);
            row += group.rows.len();
            input += group.inputs();
            CardGroup {
                rows: first_row..row,
                inputs: first_input..input,
                choice: head_choice(&group.choice),
            }
        });
        Ok(CardHead {
            gpu: self.gpu.clone(),
            memory,
            groups: groups.collect(),
        })
    }

    pub(super) fn reduce_head(
        &self,
        head: &CardHead,
        x: &Activation,
        piece: &Weight<'_>,
        first: usize,
    ) -> Result<(), OpsError> {
        let input_bytes = piece.rows * size_of::<f32>();
        let logits = head.memory.logits.span().part(0, x.len() * input_bytes);
        self.multiply(x, piece, logits, Number::F32, false)?;
        let part = |span: Span, of: &Range<usize>, bytes: usize| {
            span.part(of.start * bytes, of.len() * bytes)
        };
        for CardGroup {
            rows,
            inputs,
            choice,
        } in &head.groups
        {
            self.gpu.head_reduce(
                part(
                    head.memory.states.span(),
                    rows,
                    size_of::<cuda::HeadState>(),
                ),
                part(logits, inputs, input_bytes),
                part(head.memory.rows.span(), rows, size_of::<cuda::HeadRow>()),
                rows.len(),
                piece.rows,
                first,
                choice,
            )?;
        }
        Ok(())
    }
}

fn head_choice(choice: &Choice<'_>) -> cuda::HeadChoice {
    let list = |ids: &[u32]| {
        let mut list = [cuda::NO_TOKEN; cuda::HEAD_TOKENS];
        list[..ids.len()].copy_from_slice(ids);
        list
    };
    cuda::HeadChoice {
        temperature: choice.temperature,
        noise_key: choice.noise.key(),
        pass: choice.pass as u64,
        guidance: choice.guidance.unwrap_or(0.0) as f32,
        has_guidance: u32::from(choice.guidance.is_some()),
        vocabulary: choice.vocabulary as u32,
        mask: choice.mask_token_id,
        end_count: choice.end_tokens.len() as u32,
        suppressed_count: choice.suppressed.len() as u32,
        ends: list(choice.end_tokens),
        suppressed: list(choice.suppressed),
    }
}
