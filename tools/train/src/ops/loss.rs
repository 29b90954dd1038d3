//! Weighted losses: cross-entropy with tokens, and divergence from another network's distributions.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::{
    elementary, gradient,
    numeric::{exp, largest, sum_of},
    values, with_values,
};

/// The sum over all rows of `logits` (`[rows, vocabulary]`) of weight · −log p(target).
pub fn cross_entropy(logits: &Tensor, targets: Vec<u32>, weights: Vec<f32>) -> Result<Tensor> {
    if !logits.device().is_cpu() {
        return elementary::cross_entropy(logits, &targets, &weights);
    }
    logits.apply_op1(CrossEntropy { targets, weights })
}

struct CrossEntropy {
    targets: Vec<u32>,
    weights: Vec<f32>,
}

/// The largest value of a row and the sum of exponentials relative to it.
fn normalizer(row: &[f32]) -> (f32, f32) {
    let largest = largest(row);
    let sum = sum_of(row, row, |logit, _| exp(logit - largest));
    (largest, sum)
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, vocabulary) = layout.shape().dims2()?;
        let logits = values(logits, layout)?;
        let rows = logits.chunks_exact(vocabulary);
        let loss =
            rows.zip(self.targets.iter().zip(&self.weights))
                .map(|(row, (target, weight))| {
                    let (largest, sum) = normalizer(row);
                    // Summed in `f64`: losses of thousands of rows differ by orders of magnitude.
                    f64::from(weight * (largest + sum.ln() - row[*target as usize]))
                });
        Ok((CpuStorage::F32(vec![loss.sum::<f64>() as f32]), ().into()))
    }

    fn bwd(&self, logits: &Tensor, _loss: &Tensor, above: &Tensor) -> Result<Option<Tensor>> {
        let (_, vocabulary) = logits.dims2()?;
        let above = above.to_scalar::<f32>()?;
        let out = with_values(logits, |logits| {
            let mut out = Vec::with_capacity(logits.len());
            for (row, (target, weight)) in logits
                .chunks_exact(vocabulary)
                .zip(self.targets.iter().zip(&self.weights))
            {
                let (largest, sum) = normalizer(row);
                let factor = above * weight;
                let start = out.len();
                let share = factor / sum;
                out.extend(row.iter().map(|logit| share * exp(logit - largest)));
                // The gradient of cross-entropy: softmax minus the one-hot target, times the row's weight.
                out[start + *target as usize] -= factor;
            }
            out
        })?;
        gradient(out, logits).map(Some)
    }
}

/// The sum over all rows of weight · KL(p ‖ q), with q from `logits` (`[rows, vocabulary]`) and p from `reference`, which
/// gets no gradient.
pub fn divergence(logits: &Tensor, reference: &Tensor, weights: Vec<f32>) -> Result<Tensor> {
    if !logits.device().is_cpu() {
        return elementary::divergence(logits, reference, &weights);
    }
    let reference = with_values(reference, <[f32]>::to_vec)?;
    logits.apply_op1(Divergence { reference, weights })
}

struct Divergence {
    /// Logits, row for row.
    reference: Vec<f32>,
    weights: Vec<f32>,
}

impl CustomOp1 for Divergence {
    fn name(&self) -> &'static str {
        "divergence"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, vocabulary) = layout.shape().dims2()?;
        let logits = values(logits, layout)?;
        let rows = logits.chunks_exact(vocabulary);
        let references = self.reference.chunks_exact(vocabulary);
        let loss = rows
            .zip(references.zip(&self.weights))
            .map(|(row, (reference, weight))| {
                let (ours, theirs) = (normalizer(row), normalizer(reference));
                // The mean of log p − log q under p, but for the difference of both normalizers.
                let mean = sum_of(row, reference, |row, reference| {
                    exp(reference - theirs.0) * ((reference - theirs.0) - (row - ours.0))
                });
                f64::from(weight * (mean / theirs.1 + ours.1.ln() - theirs.1.ln()))
            });
        Ok((CpuStorage::F32(vec![loss.sum::<f64>() as f32]), ().into()))
    }

    fn bwd(&self, logits: &Tensor, _loss: &Tensor, above: &Tensor) -> Result<Option<Tensor>> {
        let (_, vocabulary) = logits.dims2()?;
        let above = above.to_scalar::<f32>()?;
        let out = with_values(logits, |logits| {
            let mut out = Vec::with_capacity(logits.len());
            let references = self.reference.chunks_exact(vocabulary);
            for (row, (reference, weight)) in logits
                .chunks_exact(vocabulary)
                .zip(references.zip(&self.weights))
            {
                let (ours, theirs) = (normalizer(row), normalizer(reference));
                let factor = above * weight;
                let (our_share, their_share) = (factor / ours.1, factor / theirs.1);
                // As of cross-entropy, with the reference's probabilities for the one-hot target: q − p.
                out.extend(row.iter().zip(reference).map(|(row, reference)| {
                    our_share * exp(row - ours.0) - their_share * exp(reference - theirs.0)
                }));
            }
            out
        })?;
        gradient(out, logits).map(Some)
    }
}
