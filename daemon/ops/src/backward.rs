//! How gradients go back through the operations of a layer, to what goes into it; weights get none. On the CPU: the
//! compute dtype is `f32`.
//!
//! Each is the transposed derivative of the operation that it is named after, at the inputs that it had.

use std::ops::Range;

use sluice_formats::DType;
use sluice_weights::Weight;

use super::{Activation, AttentionShape, Backend, Indices, Ops, OpsError, Phase, RopeTable};

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
}

fn on_cpu_alone() -> ! {
    unreachable!("gradients are asked for on the CPU alone")
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
        let mut scale = self.pool.take(1, x.width(), DType::F32)?;
        match &self.backend {
            Backend::Cpu(cpu) => {
                weight.dequantize(scale.row_mut(0));
                cpu.rms_norm_backward(d_x, x, d_out, scale.row(0), epsilon);
            }
            Backend::Gpu(_) => on_cpu_alone(),
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Replaces the inputs of [`Ops::silu_mul`] by their gradients, for the gradient of its result.
    pub fn silu_mul_backward(
        &self,
        gate: &mut Activation,
        up: &mut Activation,
        d_out: &Activation,
    ) {
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.silu_mul_backward(gate, up, d_out),
            Backend::Gpu(_) => on_cpu_alone(),
            Backend::DryRun => {}
        }
    }

    /// Rotates back by the angles of [`Ops::rope`], in place.
    pub fn rope_backward(&self, x: &mut Activation, positions: &Indices, table: &RopeTable) {
        let _timed = self.timed(Phase::Attention);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.rotate(x, table, positions, -1.0),
            Backend::Gpu(_) => on_cpu_alone(),
            Backend::DryRun => {}
        }
    }

    /// The gradients of queries, keys and values for the gradient of [`Ops::attend`]'s result. Ranges have queries and
    /// keys of their own.
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
        ranges: &[BackwardRange],
    ) -> Result<[Activation; 3], OpsError> {
        assert_eq!((q.len(), q.width()), (d_out.len(), d_out.width()));
        assert_eq!((k.len(), k.width()), (v.len(), v.width()));
        let _timed = self.timed(Phase::Attention);
        let like = |x: &Activation| self.pool.take(x.len(), x.width(), DType::F32);
        let mut found = [like(q)?, like(k)?, like(v)?];
        match &self.backend {
            Backend::Cpu(cpu) => cpu.attend_backward(&mut found, [q, k, v], d_out, shape, ranges),
            Backend::Gpu(_) => on_cpu_alone(),
            Backend::DryRun => {}
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
        Ok(CrossEntropy {
            targets: targets.to_vec(),
            largest: vec![f32::MIN; rows],
            sums: vec![0.0; rows],
            target_logits: vec![0.0; rows],
            weighted: self.zeros(rows, width)?,
            own: self.pool.take(rows, width, DType::F32)?,
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
        let mut logits = self.linear(x, head)?;
        let _timed = self.timed(Phase::LmHead);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.weigh_logits(all, &mut logits, head, first),
            Backend::Gpu(_) => on_cpu_alone(),
            Backend::DryRun => {}
        }
        self.linear_transposed_add(&mut all.weighted, &logits, head)
    }

    /// The cross-entropy of each row in nats, and the gradient of their sum for the rows that went into the LM head.
    #[must_use]
    pub fn finish_cross_entropy(&self, all: CrossEntropy) -> (Vec<f64>, Activation) {
        let CrossEntropy {
            largest,
            sums,
            target_logits,
            weighted: mut gradient,
            own,
            ..
        } = all;
        if let Backend::Cpu(_) = &self.backend {
            for (index, row) in gradient.rows_mut().enumerate() {
                let inverse = (1.0 / sums[index]) as f32;
                for (value, own) in row.iter_mut().zip(own.row(index)) {
                    *value = *value * inverse - own;
                }
            }
        }
        let each = largest.iter().zip(&sums).zip(&target_logits);
        let losses = each
            .map(|((&largest, sum), &target)| f64::from(largest) + sum.ln() - f64::from(target));
        (losses.collect(), gradient)
    }
}

#[cfg(test)]
mod tests;
