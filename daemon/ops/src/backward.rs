//! How gradients go back through the operations of a layer, to what goes into it; weights get none.
//!
//! Each is the transposed derivative of the operation that it is named after, at the inputs that it had. Gradients are
//! `f32`. On a GPU they are rounded to the compute dtype where they are multiplied with weights.

use std::ops::Range;

use sluice_cuda::{
    ATTEND_BACKWARD_FLOATS, ATTEND_BACKWARD_ROWS, AttentionBackwardTask, CrossEntropyState,
};
use sluice_formats::DType;
use sluice_weights::Weight;

use super::{
    Activation, AttentionShape, Backend, Indices, Ops, OpsError, Phase, RopeTable, arena::ArenaPart,
};

/// Queries of one sequence, and the keys that they see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackwardRange {
    /// Rows of the queries.
    pub queries: Range<usize>,
    /// Rows of the keys and values.
    pub keys: Range<usize>,
    /// With a window, queries and keys are the same rows, and each sees so many up to itself; without, all of the keys.
    pub window: Option<usize>,
}

impl BackwardRange {
    /// The keys that queries `queries.start + part` see together.
    pub(super) fn keys_of(&self, part: &Range<usize>) -> Range<usize> {
        match self.window {
            Some(window) => {
                let first = (part.start + 1).saturating_sub(window);
                self.keys.start + first..self.keys.start + part.end
            }
            None => self.keys.clone(),
        }
    }

    /// The keys that query `queries.start + query` sees.
    pub(super) fn seen(&self, query: usize) -> Range<usize> {
        self.keys_of(&(query..query + 1))
    }
}

/// Ranges as the device takes them.
pub struct BackwardTasks {
    ranges: Vec<BackwardRange>,
    on_gpu: Option<GpuBackwardTasks>,
}

/// Words of a task on a GPU.
const TASK_WORDS: usize = size_of::<AttentionBackwardTask>() / size_of::<u32>();

/// The tasks of queries, and of keys, each with their number.
pub(super) struct GpuBackwardTasks {
    pub(super) sides: [(Indices, usize); 2],
}

/// The tasks of one side, as words: its rows and the other side's in each range, and so many of these that a row has to do
/// with before its own place, and behind it.
fn tasks(
    ranges: &[BackwardRange],
    side: impl Fn(&BackwardRange) -> ([Range<usize>; 2], [usize; 2]),
) -> Vec<usize> {
    let mut words = Vec::new();
    for range in ranges {
        let ([own, other], near) = side(range);
        for start in own.clone().step_by(ATTEND_BACKWARD_ROWS) {
            let count = ATTEND_BACKWARD_ROWS.min(own.end - start);
            words.extend([start, count, start - own.start, other.start, other.len()]);
            words.extend(near);
        }
    }
    words
}

/// Cross-entropies of rows with their targets, and their gradients, summed over the parts of the LM head.
///
/// The gradient of a row is the mean of the head's rows by their probabilities, less the target's own: attention with
/// the head as keys and values. So one trip over the head is enough, with a running softmax (Milakov and Gimelshein,
/// arXiv 1805.02867).
pub struct CrossEntropy {
    pub(crate) targets: Vec<u32>,
    pub(crate) largest: Vec<f32>,
    pub(crate) sums: Vec<f64>,
    pub(crate) target_logits: Vec<f32>,
    /// For each row the head's rows weighted by `e^(logit − largest)`.
    pub(crate) weighted: Activation,
    /// For each row the head's row of its target.
    pub(crate) own: Activation,
    on_gpu: Option<GpuCrossEntropy>,
}

/// What a GPU has of rows' cross-entropies: their states, in the place of the figures above, and their targets.
pub(super) struct GpuCrossEntropy {
    pub(super) states: ArenaPart,
    pub(super) targets: Indices,
}

impl Ops {
    /// A copy of a matrix of `f32`.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn copy(&self, x: &Activation) -> Result<Activation, OpsError> {
        let mut out = self.pool.take(x.len(), x.width(), x.dtype())?;
        match &self.backend {
            Backend::Cpu(_) => out.values_mut().copy_from_slice(x.values()),
            Backend::Gpu(gpu) => gpu.copy(out.span(), x.span())?,
            Backend::DryRun => {}
        }
        Ok(out)
    }

    /// A matrix of zeros in `f32`.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn zeros(&self, rows: usize, width: usize) -> Result<Activation, OpsError> {
        let mut out = self.pool.take(rows, width, DType::F32)?;
        self.zero_rows(&mut out, 0..rows)?;
        Ok(out)
    }

    /// Sets these rows to zero.
    ///
    /// # Errors
    /// When a GPU fails.
    pub fn zero_rows(&self, x: &mut Activation, rows: Range<usize>) -> Result<(), OpsError> {
        let width = x.width();
        match &self.backend {
            Backend::Cpu(_) => x.values_mut()[rows.start * width..rows.end * width].fill(0.0),
            Backend::Gpu(gpu) => gpu.zero(x.rows_span(rows.start, rows.len()))?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Adds to `d_x`, of each row, the gradient that [`Ops::rms_norm`] passes back to the same row of `x`.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn rms_norm_backward(
        &self,
        d_x: &mut Activation,
        x: &Activation,
        d_out: &Activation,
        weight: &Weight<'_>,
        epsilon: f32,
    ) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::Other);
        let mut scale = match self.device.is_gpu() {
            // Its kernel takes the weight as it is stored.
            true => None,
            false => Some(self.pool.take(1, x.width(), DType::F32)?),
        };
        match (&self.backend, &mut scale) {
            (Backend::Cpu(cpu), Some(scale)) => {
                weight.dequantize(scale.row_mut(0));
                cpu.rms_norm_backward(d_x, x, d_out, scale.row(0), epsilon);
            }
            (Backend::Gpu(gpu), _) => gpu.rms_norm_backward(d_x, x, d_out, weight, epsilon)?,
            _ => {}
        }
        Ok(())
    }

    /// Replaces the inputs of [`Ops::silu_mul`] by their gradients, for the gradient of its result.
    ///
    /// # Errors
    /// When the device fails.
    pub fn silu_mul_backward(
        &self,
        gate: &mut Activation,
        up: &mut Activation,
        d_out: &Activation,
    ) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.silu_mul_backward(gate, up, d_out),
            Backend::Gpu(gpu) => gpu.silu_mul_backward(gate, up, d_out)?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Rotates back by the angles of [`Ops::rope`], in place.
    ///
    /// # Errors
    /// When the device fails.
    pub fn rope_backward(
        &self,
        x: &mut Activation,
        positions: &Indices,
        table: &RopeTable,
    ) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::Attention);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.rotate(x, table, positions, -1.0),
            Backend::Gpu(gpu) => gpu.rope(&[(&*x, positions)], table, true)?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// `x · weight`: a row of `weight.width` outputs in `f32` for each row of `x`. Gradients go back so through
    /// [`Ops::linear`].
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When a row of `x` has not as many elements as the weight has rows.
    pub fn linear_transposed(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
    ) -> Result<Activation, OpsError> {
        let mut out = self.pool.take(x.len(), weight.width, DType::F32)?;
        self.multiply_transposed(&mut out, x, weight, false)?;
        Ok(out)
    }

    /// Adds `x · weight` to the rows of `out`, which are `f32`.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When sizes differ.
    pub fn linear_transposed_add(
        &self,
        out: &mut Activation,
        x: &Activation,
        weight: &Weight<'_>,
    ) -> Result<(), OpsError> {
        self.multiply_transposed(out, x, weight, true)
    }

    fn multiply_transposed(
        &self,
        out: &mut Activation,
        x: &Activation,
        weight: &Weight<'_>,
        adds: bool,
    ) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::Matmul);
        let rounded = self.rounded(x)?;
        let x = rounded.as_ref().unwrap_or(x);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.gemm_transposed(x, weight, out.values_mut(), adds),
            Backend::Gpu(gpu) => gpu.matmul_transposed(x, weight, out, adds)?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Rows of `f32` in the dtype that the device computes in, where that is another one.
    ///
    /// # Errors
    /// When memory cannot be allocated, or the device fails.
    pub fn rounded(&self, x: &Activation) -> Result<Option<Activation>, OpsError> {
        let dtype = self.device.dtype();
        if x.dtype() == dtype {
            return Ok(None);
        }
        let out = self.pool.take(x.len(), x.width(), dtype)?;
        if let Backend::Gpu(gpu) = &self.backend {
            gpu.convert(&out, x)?;
        }
        Ok(Some(out))
    }

    /// Makes ranges ready for [`Ops::attend_backward`]. They have queries and keys of their own.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn backward_tasks(&self, ranges: Vec<BackwardRange>) -> Result<BackwardTasks, OpsError> {
        let on_gpu = match self.device.is_gpu() {
            true => Some(self.gpu_backward_tasks(&ranges)?),
            false => None,
        };
        Ok(BackwardTasks { ranges, on_gpu })
    }

    fn gpu_backward_tasks(&self, ranges: &[BackwardRange]) -> Result<GpuBackwardTasks, OpsError> {
        const ALL: [usize; 2] = [u32::MAX as usize; 2];
        let of_queries = tasks(ranges, |range| {
            let near = range.window.map_or(ALL, |window| [window - 1, 0]);
            ([range.queries.clone(), range.keys.clone()], near)
        });
        let of_keys = tasks(ranges, |range| {
            let near = range.window.map_or(ALL, |window| [0, window - 1]);
            ([range.keys.clone(), range.queries.clone()], near)
        });
        // Sized for the most tasks that so many rows in so many ranges can become: a dry run knows only these sums.
        let queries: usize = ranges.iter().map(|range| range.queries.len()).sum();
        let keys: usize = ranges.iter().map(|range| range.keys.len()).sum();
        let side = |words: Vec<usize>, rows: usize| {
            let (count, most) = (
                words.len() / TASK_WORDS,
                ranges.len() + rows / ATTEND_BACKWARD_ROWS,
            );
            Ok::<_, OpsError>((self.indices_in(most * TASK_WORDS, words)?, count))
        };
        Ok(GpuBackwardTasks {
            sides: [side(of_queries, queries)?, side(of_keys, keys)?],
        })
    }

    /// The gradients of queries, keys and values for the gradient of [`Ops::attend`]'s result.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When widths differ, or a range lies outside.
    pub fn attend_backward(
        &self,
        [q, k, v]: [&Activation; 3],
        d_out: &Activation,
        shape: AttentionShape,
        tasks: &BackwardTasks,
    ) -> Result<[Activation; 3], OpsError> {
        assert_eq!((q.len(), q.width()), (d_out.len(), d_out.width()));
        assert_eq!((k.len(), k.width()), (v.len(), v.width()));
        for range in &tasks.ranges {
            assert!(range.queries.end <= q.len() && range.keys.end <= k.len());
        }
        let _timed = self.timed(Phase::Attention);
        let like = |x: &Activation| self.pool.take(x.len(), x.width(), DType::F32);
        let mut found = [like(q)?, like(k)?, like(v)?];
        let weights = match self.device.is_gpu() {
            true => {
                let width = shape.heads * ATTEND_BACKWARD_FLOATS;
                Some(self.pool.take(q.len(), width, DType::F32)?)
            }
            false => None,
        };
        match (&self.backend, &tasks.on_gpu, &weights) {
            (Backend::Cpu(cpu), ..) => {
                cpu.attend_backward(&mut found, [q, k, v], d_out, shape, &tasks.ranges);
            }
            (Backend::Gpu(gpu), Some(tasks), Some(weights)) => {
                gpu.attend_backward(&found, [q, k, v], d_out, shape, tasks, weights)?;
            }
            _ => {}
        }
        Ok(found)
    }

    /// Begins cross-entropies of rows with these targets.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn start_cross_entropy(
        &self,
        targets: &[u32],
        width: usize,
    ) -> Result<CrossEntropy, OpsError> {
        let rows = targets.len();
        let on_gpu = match self.device.is_gpu() {
            true => Some(GpuCrossEntropy {
                states: (self.pool).take_bytes(rows * size_of::<CrossEntropyState>())?,
                targets: self.indices(targets.iter().map(|&target| target as usize))?,
            }),
            false => None,
        };
        if let (Backend::Gpu(gpu), Some(on_gpu)) = (&self.backend, &on_gpu) {
            gpu.start_cross_entropy(on_gpu.states.span(), rows)?;
        }
        Ok(CrossEntropy {
            targets: targets.to_vec(),
            largest: vec![f32::MIN; rows],
            sums: vec![0.0; rows],
            target_logits: vec![0.0; rows],
            weighted: self.zeros(rows, width)?,
            own: self.pool.take(rows, width, DType::F32)?,
            on_gpu,
        })
    }

    /// Takes in a part of the LM head, whose rows are those of the vocabulary from `first` on.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn add_cross_entropy(
        &self,
        all: &mut CrossEntropy,
        x: &Activation,
        head: &Weight<'_>,
        first: usize,
    ) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::LmHead);
        // In `f32`: an error of a logit is one of a loss.
        let mut logits = self.pool.take(x.len(), head.rows, DType::F32)?;
        match (&self.backend, &all.on_gpu) {
            (Backend::Cpu(cpu), _) => {
                cpu.gemm_one(x, head, logits.values_mut(), false);
                cpu.weigh_logits(all, &mut logits, head, first);
                cpu.gemm_transposed(&logits, head, all.weighted.values_mut(), true);
                return Ok(());
            }
            (Backend::Gpu(gpu), Some(on_gpu)) => {
                gpu.logits(x, head, logits.span())?;
                gpu.weigh_logits(all, on_gpu, &logits, first)?;
            }
            _ => {}
        }
        let rounded = self.rounded(&logits)?;
        if let (Backend::Gpu(gpu), Some(on_gpu)) = (&self.backend, &all.on_gpu) {
            let weights = rounded.as_ref().unwrap_or(&logits);
            gpu.add_weighted(all, on_gpu, weights, head, first)?;
        }
        Ok(())
    }

    /// The cross-entropy of each row in nats, and the gradient of their sum for the rows that went into the LM head.
    ///
    /// # Errors
    /// When the device fails.
    pub fn finish_cross_entropy(
        &self,
        mut all: CrossEntropy,
    ) -> Result<(Vec<f64>, Activation), OpsError> {
        match (&self.backend, &all.on_gpu) {
            (Backend::Cpu(_), _) => {
                for (index, row) in all.weighted.rows_mut().enumerate() {
                    let inverse = (1.0 / all.sums[index]) as f32;
                    for (value, own) in row.iter_mut().zip(all.own.row(index)) {
                        *value = *value * inverse - own;
                    }
                }
            }
            (Backend::Gpu(gpu), Some(on_gpu)) => {
                let states = gpu.finish_cross_entropy(&all, on_gpu)?;
                all.largest = states.iter().map(|state| state.max).collect();
                all.sums = states.iter().map(|state| state.sum).collect();
                all.target_logits = states.iter().map(|state| state.target_logit).collect();
            }
            _ => {}
        }
        let each = all.largest.iter().zip(&all.sums).zip(&all.target_logits);
        let losses = each
            .map(|((&largest, sum), &target)| f64::from(largest) + sum.ln() - f64::from(target));
        Ok((losses.collect(), all.weighted))
    }
}

#[cfg(test)]
mod tests;
