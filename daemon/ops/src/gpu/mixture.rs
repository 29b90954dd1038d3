//! Mixtures of experts on a GPU: what their routers choose, and products of rows sorted by expert.

use std::ops::Range;

use sluice_cuda::{self as cuda, EXPERT_TASK_ROWS, ExpertTask, FEW_ROWS, Gpu, GpuSpan};
use sluice_formats::{DType, Format};
use sluice_machine::GpuProfile;
use sluice_weights::{Router, Weight};

use super::{GpuBackend, weights};
use crate::{Activation, Indices, OpsError};

/// Words of a task, in which it is uploaded.
const TASK_WORDS: usize = size_of::<ExpertTask>() / size_of::<u32>();

/// Words of the tasks of `rows` rows that go through a router.
pub(crate) fn router_task_words(rows: usize) -> usize {
    rows.div_ceil(FEW_ROWS) * TASK_WORDS
}

/// Most words of the tasks of `rows` rows, however these are shared out.
pub(crate) fn task_words(rows: usize) -> usize {
    // Each task has a row at least.
    rows * TASK_WORDS
}

/// Rows from which those of one expert are multiplied by themselves: cuBLAS takes longer for them than a launch does.
const GROUP_ROWS: usize = 128;

/// In passes of at most this many rows all experts go to the kernel for few rows, some several times: a launch of tiles for the
/// experts that have more would take as long as all of the others.
const FEW_PASS_ROWS: usize = 64;

/// The products of rows sorted by expert with a matrix of each that two launches compute, in tasks: those of few rows first.
pub(crate) struct ExpertTasks {
    tasks: Vec<ExpertTask>,
    few: usize,
    format: Format,
}

/// Some rows, and the matrix that they are multiplied by.
type Group<'a> = (Range<usize>, &'a Weight<'a>);

impl ExpertTasks {
    /// Tasks for these groups, and the groups that are multiplied one by one: large ones, and those whose matrix has to be
    /// decompressed first, is in another format than the others or is not aligned.
    pub(crate) fn new<'a>(
        x: &Activation,
        groups: impl Iterator<Item = Group<'a>>,
        pass_rows: usize,
    ) -> (Self, Vec<Group<'a>>) {
        let (mut few, mut more, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let mut format = None;
        for (rows, weight) in groups {
            let lies = weight.on_gpu();
            let factors = [x.span(), lies.span];
            if rows.len() >= GROUP_ROWS
                || lies.compressed.is_some()
                || !Gpu::has_grouped_matmul(x.dtype(), weight.format, weight.width, factors)
                || *format.get_or_insert(weight.format) != weight.format
            {
                others.push((rows, weight));
                continue;
            }
            let is_few = pass_rows <= FEW_PASS_ROWS || rows.len() <= FEW_ROWS;
            let (tasks, most) = match is_few {
                true => (&mut few, FEW_ROWS),
                false => (&mut more, EXPERT_TASK_ROWS),
            };
            tasks.extend(tasks_of(lies.span, rows, most));
        }
        let count = few.len();
        few.append(&mut more);
        let tasks = Self {
            tasks: few,
            few: count,
            format: format.unwrap_or(Format::F32),
        };
        (tasks, others)
    }

    /// The words to upload.
    pub(crate) fn words(&self) -> impl Iterator<Item = usize> {
        let words: &[u32] = bytemuck::cast_slice(&self.tasks);
        words.iter().map(|&word| word as usize)
    }
}

/// Tasks of at most `most` of these rows, with the same weights.
fn tasks_of(weights: GpuSpan, rows: Range<usize>, most: usize) -> impl Iterator<Item = ExpertTask> {
    let starts = rows.clone().step_by(most);
    starts.map(move |start| ExpertTask {
        weights: weights.address(),
        first_row: start as u32,
        rows: (rows.end - start).min(most) as u32,
    })
}

/// A router with its matrix, and the experts' own numbers.
pub(crate) struct RouterWeights<'a> {
    pub(crate) router: &'a Router,
    pub(crate) matrix: &'a Weight<'a>,
    pub(crate) own: Option<&'a Weight<'a>>,
    pub(crate) per_row: usize,
}

impl GpuBackend {
    /// Multiplies the rows of all tasks, which were uploaded.
    pub(crate) fn matmul_grouped(
        &self,
        x: &Activation,
        tasks: &ExpertTasks,
        uploaded: &Indices,
        out: &Activation,
    ) -> Result<(), OpsError> {
        let product = cuda::GroupedMatmul {
            out: out.span(),
            x: x.span(),
            tasks: uploaded.span(),
            counts: [tasks.few, tasks.tasks.len() - tasks.few],
            rows: x.len(),
            outputs: out.width(),
            width: x.width(),
        };
        Ok(self.gpu.grouped_matmul(x.dtype(), tasks.format, product)?)
    }

    /// Chooses the experts of some rows of `x`, and what each counts. Logits are computed in `f32`, for which `x` is converted
    /// to `wide` where it is in 16 bits; `logits`, `scratch`, of twice its size, and `tasks` are overwritten. `chosen` has a row
    /// for each of these rows with its experts, then one for each with what they count.
    pub(crate) fn choose_experts(
        &self,
        (x, rows): (&Activation, Range<usize>),
        weights: &RouterWeights<'_>,
        [wide, logits, scratch, chosen]: [&Activation; 4],
        tasks: GpuSpan,
    ) -> Result<(), OpsError> {
        let experts = weights.matrix.rows;
        let count = rows.len() * x.width();
        let mut factor = x.rows_span(rows.start, rows.len());
        if x.dtype() != DType::F32 {
            (self.gpu).to_f32(x.dtype(), wide.span(), factor, count)?;
            factor = wide.span();
        }
        self.router_logits(factor, rows.len(), weights.matrix, tasks, logits)?;
        let [best, counts] = [0, 1].map(|half| chosen.rows_span(half * rows.len(), rows.len()));
        self.gpu.choose_experts(cuda::RouterRows {
            logits: logits.span(),
            scratch: scratch.span(),
            rows: rows.len(),
            own: weights.own.map(|own| (own.span(), own.format)),
            rules: &rules(weights.router, experts, weights.per_row),
            chosen: best,
            weights: counts,
        })?;
        Ok(())
    }

    /// Logits of `f32` rows. A router's matrix is small: in tasks of few rows more of the GPU multiplies than in large tiles.
    fn router_logits(
        &self,
        x: GpuSpan,
        rows: usize,
        matrix: &Weight<'_>,
        tasks: GpuSpan,
        logits: &Activation,
    ) -> Result<(), OpsError> {
        let lies = matrix.on_gpu();
        let width = matrix.width;
        if lies.compressed.is_none()
            && Gpu::has_grouped_matmul(DType::F32, matrix.format, width, [x, lies.span])
        {
            let each: Vec<_> = tasks_of(lies.span, 0..rows, FEW_ROWS).collect();
            self.upload(tasks.part(0, size_of_val(&each[..])), &each)?;
            let product = cuda::GroupedMatmul {
                out: logits.span(),
                x,
                tasks,
                counts: [each.len(), 0],
                rows,
                outputs: matrix.rows,
                width,
            };
            return Ok((self.gpu).grouped_matmul(DType::F32, matrix.format, product)?);
        }
        let profile = GpuProfile {
            dtype: DType::F32,
            ..self.profile
        };
        let out = (logits.span(), DType::F32);
        weights::matmul(
            &self.gpu,
            &self.clock,
            &profile,
            (x, rows),
            matrix,
            out,
            false,
        )
    }

    /// Adds rows of `x` to rows of `out`, as these lists say ([`cuda::RoutedRows`]).
    pub(crate) fn add_routed(
        &self,
        out: &Activation,
        x: &Activation,
        row_count: usize,
        lists: GpuSpan,
    ) -> Result<(), OpsError> {
        const WORD: usize = size_of::<u32>();
        let part = |start: usize, len: usize| lists.part(start * WORD, len * WORD);
        let routed = cuda::RoutedRows {
            x: x.span(),
            count: x.len(),
            rows: part(0, row_count),
            row_count,
            starts: part(row_count, row_count + 1),
            entries: part(2 * row_count + 1, 2 * x.len()),
        };
        Ok((self.gpu).add_routed(x.dtype(), out.span(), routed, x.width())?)
    }
}

fn rules(router: &Router, experts: usize, per_row: usize) -> cuda::RouterRules {
    let plain = cuda::RouterRules {
        experts: experts as u32,
        per_row: per_row as u32,
        sigmoid: 0,
        groups: 1,
        kept_groups: 1,
        shares: 1,
        own_are_factors: 0,
        logit_scale: 1.0,
        scale: 1.0,
    };
    match *router {
        Router::Softmax { renormalizes } => cuda::RouterRules {
            shares: renormalizes.into(),
            ..plain
        },
        Router::SigmoidGroups {
            groups,
            kept_groups,
            scale,
        } => cuda::RouterRules {
            sigmoid: 1,
            groups: groups as u32,
            kept_groups: kept_groups as u32,
            scale,
            ..plain
        },
        Router::ScaledSoftmax { logit_scale } => cuda::RouterRules {
            own_are_factors: 1,
            logit_scale,
            ..plain
        },
    }
}
