//! Gradients on the CPU.

use rayon::prelude::*;
use sluice_weights::Weight;

use super::{CpuBackend, exp, rows};
use crate::{Activation, backward::CrossEntropy};

impl CpuBackend {
    pub(crate) fn rms_norm_backward(
        &self,
        d_x: &mut Activation,
        x: &Activation,
        d_out: &Activation,
        scale: &[f32],
        epsilon: f32,
    ) {
        let instructions = self.instructions();
        self.each_row(d_x, |index, d_x| {
            let d_out = d_out.row(index);
            rows::rms_norm_backward(instructions, d_x, x.row(index), d_out, scale, epsilon);
        });
    }

    pub(crate) fn silu_mul_backward(
        &self,
        gate: &mut Activation,
        up: &mut Activation,
        d_out: &Activation,
    ) {
        let instructions = self.instructions();
        self.run(|| {
            let rows = gate.par_rows_mut().zip(up.par_rows_mut()).enumerate();
            rows.for_each(|(index, (gate, up))| {
                exp::silu_backward(instructions, gate, up, d_out.row(index));
            });
        });
    }

    /// Replaces the logits of a part by `e^(logit − largest)`, and brings what was summed before to the new maximum.
    pub(crate) fn weigh_logits(
        &self,
        all: &mut CrossEntropy,
        logits: &mut Activation,
        head: &Weight<'_>,
        first: usize,
    ) {
        let CrossEntropy {
            targets,
            largest,
            sums,
            target_logits,
            weighted,
            own,
            ..
        } = all;
        let instructions = self.instructions();
        self.run(|| {
            let figures = (largest.par_iter_mut().zip(sums).zip(target_logits)).zip(&*targets);
            let rows = (weighted.par_rows_mut().zip(own.par_rows_mut())).zip(logits.par_rows_mut());
            rows.zip(figures).for_each(
                |(((weighted, own), logits), (((largest, sum), target_logit), &target))| {
                    if let Some(local) = (target as usize).checked_sub(first)
                        && local < logits.len()
                    {
                        *target_logit = logits[local];
                        head.rows(local, local + 1).dequantize(own);
                    }
                    let most = exp::max(instructions, logits).max(*largest);
                    let shrunk = (*largest - most).exp();
                    weighted.iter_mut().for_each(|value| *value *= shrunk);
                    *sum *= f64::from(shrunk);
                    // The sum is `f64`: beside one of 1, `f32` would lose what many small terms add up to.
                    exp::exp_sum(instructions, logits, most);
                    *sum += logits.iter().map(|&value| f64::from(value)).sum::<f64>();
                    *largest = most;
                },
            );
        });
    }
}
