//! Bidirectional multi-head attention. The gradient computes the probabilities again instead of keeping them: at the
//! lengths used here that is a tenth of the work and saves most of the memory.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use gemm::Parallelism;
use rayon::prelude::*;

use super::{
    Matrix, gradient, multiply,
    numeric::{exp, largest, sum, sum_of},
    values, with_values,
};

/// Every position of a sequence attends to every position of the same sequence.
///
/// Queries, keys and values are `[sequences · length, width]`, each row holding `heads` heads side by side.
pub fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    length: usize,
    heads: usize,
) -> Result<Tensor> {
    query.apply_op3(key, value, Attention { length, heads })
}

struct Attention {
    length: usize,
    heads: usize,
}

impl Attention {
    /// The attention probabilities of one head of one sequence.
    fn probabilities(&self, query: Matrix<'_>, key: Matrix<'_>, out: &mut [f32]) {
        let scale = (query.columns as f32).sqrt().recip();
        multiply(
            out,
            self.length,
            query,
            key.transposed(),
            scale,
            Parallelism::None,
        );
        for row in out.chunks_exact_mut(self.length) {
            let largest = largest(row);
            row.iter_mut()
                .for_each(|score| *score = exp(*score - largest));
            let inverse = sum(row).recip();
            row.iter_mut().for_each(|score| *score *= inverse);
        }
    }

    fn head<'a>(&self, rows: &'a [f32], width: usize, head: usize) -> Matrix<'a> {
        let head_width = width / self.heads;
        Matrix::strided(&rows[head * head_width..], self.length, head_width, width)
    }

    fn forward(&self, query: &[f32], key: &[f32], value: &[f32], width: usize) -> Vec<f32> {
        let sequence = self.length * width;
        let head_width = width / self.heads;
        let mut out = vec![0.0; query.len()];
        out.par_chunks_mut(sequence)
            .enumerate()
            .for_each(|(index, out)| {
                let part = index * sequence..(index + 1) * sequence;
                let (query, key, value) = (&query[part.clone()], &key[part.clone()], &value[part]);
                let mut probabilities = vec![0.0; self.length * self.length];
                for head in 0..self.heads {
                    self.probabilities(
                        self.head(query, width, head),
                        self.head(key, width, head),
                        &mut probabilities,
                    );
                    let probabilities = Matrix::new(&probabilities, self.length, self.length);
                    let value = self.head(value, width, head);
                    multiply(
                        &mut out[head * head_width..],
                        width,
                        probabilities,
                        value,
                        1.0,
                        Parallelism::None,
                    );
                }
            });
        out
    }

    /// The gradients of queries, keys and values.
    fn backward(
        &self,
        query: &[f32],
        key: &[f32],
        value: &[f32],
        above: &[f32],
        width: usize,
    ) -> [Vec<f32>; 3] {
        let (length, sequence, head_width) = (self.length, self.length * width, width / self.heads);
        let scale = (head_width as f32).sqrt().recip();
        let [mut dq, mut dk, mut dv] = [(); 3].map(|()| vec![0.0; query.len()]);
        let parts = dq
            .par_chunks_mut(sequence)
            .zip(dk.par_chunks_mut(sequence))
            .zip(dv.par_chunks_mut(sequence));
        parts.enumerate().for_each(|(index, ((dq, dk), dv))| {
            let part = index * sequence..(index + 1) * sequence;
            let (query, key) = (&query[part.clone()], &key[part.clone()]);
            let (value, above) = (&value[part.clone()], &above[part]);
            let mut probabilities = vec![0.0; length * length];
            let mut scores = vec![0.0; length * length];
            for head in 0..self.heads {
                let start = head * head_width;
                let (query, key) = (self.head(query, width, head), self.head(key, width, head));
                let (value, above) = (self.head(value, width, head), self.head(above, width, head));
                self.probabilities(query, key, &mut probabilities);
                multiply(
                    &mut scores,
                    length,
                    above,
                    value.transposed(),
                    1.0,
                    Parallelism::None,
                );
                let weights = Matrix::new(&probabilities, length, length);
                multiply(
                    &mut dv[start..],
                    width,
                    weights.transposed(),
                    above,
                    1.0,
                    Parallelism::None,
                );
                for (row, weights) in scores
                    .chunks_exact_mut(length)
                    .zip(probabilities.chunks_exact(length))
                {
                    let mean = sum_of(row, weights, |score, weight| score * weight);
                    row.iter_mut()
                        .zip(weights)
                        .for_each(|(score, weight)| *score = weight * (*score - mean));
                }
                let scores = Matrix::new(&scores, length, length);
                multiply(
                    &mut dq[start..],
                    width,
                    scores,
                    key,
                    scale,
                    Parallelism::None,
                );
                multiply(
                    &mut dk[start..],
                    width,
                    scores.transposed(),
                    query,
                    scale,
                    Parallelism::None,
                );
            }
        });
        [dq, dk, dv]
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        query: &CpuStorage,
        query_layout: &Layout,
        key: &CpuStorage,
        key_layout: &Layout,
        value: &CpuStorage,
        value_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, width) = query_layout.shape().dims2()?;
        let (query, key) = (values(query, query_layout)?, values(key, key_layout)?);
        let out = self.forward(query, key, values(value, value_layout)?, width);
        Ok((CpuStorage::F32(out), query_layout.shape().clone()))
    }

    fn bwd(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        _out: &Tensor,
        out_gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (_, width) = query.dims2()?;
        let [dq, dk, dv] = with_values(query, |q| {
            with_values(key, |k| {
                with_values(value, |v| {
                    with_values(out_gradient, |above| self.backward(q, k, v, above, width))
                })
            })
        })????;
        Ok((
            Some(gradient(dq, query)?),
            Some(gradient(dk, key)?),
            Some(gradient(dv, value)?),
        ))
    }
}
