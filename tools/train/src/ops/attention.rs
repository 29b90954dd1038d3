//! Multi-head attention within each sequence of a pack. The gradient computes the probabilities again instead of
//! keeping them: at the lengths used here that is a tenth of the work and saves most of the memory.

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::{
    Matrix, Pack, elementary, gradient, multiply,
    numeric::{exp, largest, sum, sum_of},
    span::Span,
    values, with_values,
};

/// Every position attends to its own sequence: to all of it, or if `causal` to itself and the positions before it.
///
/// Queries, keys and values are `[rows of the pack, width]`, each row holding `heads` heads side by side.
pub fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    pack: &Pack,
    heads: usize,
    causal: bool,
) -> Result<Tensor> {
    let span = if causal {
        Span::Before(usize::MAX)
    } else {
        Span::All
    };
    attend(query, key, value, [pack, pack], heads, span)
}

/// Every position attends to itself and the positions before it, to `window` in all.
pub fn windowed_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    pack: &Pack,
    heads: usize,
    window: usize,
) -> Result<Tensor> {
    attend(query, key, value, [pack, pack], heads, Span::Before(window))
}

/// Every row of a sequence attends to all keys of the sequence with the same number in `keys`.
pub fn cross_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    queries: &Pack,
    keys: &Pack,
    heads: usize,
) -> Result<Tensor> {
    attend(query, key, value, [queries, keys], heads, Span::All)
}

fn attend(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    packs: [&Pack; 2],
    heads: usize,
    span: Span,
) -> Result<Tensor> {
    let [queries, keys] = packs;
    if !query.device().is_cpu() {
        return elementary::attention(query, key, value, packs, heads, span);
    }
    let operation = Attention {
        queries: queries.clone(),
        keys: keys.clone(),
        heads,
        span,
    };
    query.apply_op3(key, value, operation)
}

struct Attention {
    queries: Pack,
    keys: Pack,
    heads: usize,
    span: Span,
}

impl Attention {
    /// Largest number of probabilities of one head of one sequence.
    fn largest(&self) -> usize {
        self.queries.longest() * self.keys.longest()
    }

    /// The attention probabilities of one head of one sequence.
    fn probabilities(&self, query: Matrix<'_>, key: Matrix<'_>, out: &mut [f32]) {
        let length = key.rows;
        let scale = (query.columns as f32).sqrt().recip();
        multiply(out, length, query, key.transposed(), scale);
        for (position, row) in out.chunks_exact_mut(length).enumerate() {
            let span = self.span.keys(position, length);
            // Zero weight instead of a shorter row: the matmul below takes whole matrices.
            row[..span.start].fill(0.0);
            row[span.end..].fill(0.0);
            let seen = &mut row[span];
            let largest = largest(seen);
            seen.iter_mut()
                .for_each(|score| *score = exp(*score - largest));
            let inverse = sum(seen).recip();
            seen.iter_mut().for_each(|score| *score *= inverse);
        }
    }

    /// One head of a sequence whose rows hold all heads.
    fn head<'a>(&self, rows: &'a [f32], width: usize, head: usize) -> Matrix<'a> {
        let head_width = width / self.heads;
        let length = rows.len() / width;
        Matrix::strided(&rows[head * head_width..], length, head_width, width)
    }

    fn forward(&self, query: &[f32], key: &[f32], value: &[f32], width: usize) -> Vec<f32> {
        let mut out = vec![0.0; query.len()];
        let mut probabilities = vec![0.0; self.largest()];
        for (rows, keys) in self.queries.sequences().zip(self.keys.sequences()) {
            let part = rows.start * width..rows.end * width;
            let query = &query[part.clone()];
            let [key, value] = [key, value].map(|all| &all[keys.start * width..keys.end * width]);
            let probabilities = &mut probabilities[..rows.len() * keys.len()];
            for head in 0..self.heads {
                let (query, key) = (self.head(query, width, head), self.head(key, width, head));
                self.probabilities(query, key, probabilities);
                let weights = Matrix::new(probabilities, rows.len(), keys.len());
                let out = &mut out[part.start + head * query.columns..part.end];
                multiply(out, width, weights, self.head(value, width, head), 1.0);
            }
        }
        out
    }

    /// The gradients of query, key and value.
    fn backward(
        &self,
        query: &[f32],
        key: &[f32],
        value: &[f32],
        above: &[f32],
        width: usize,
    ) -> [Vec<f32>; 3] {
        let mut dq = vec![0.0; query.len()];
        let [mut dk, mut dv] = [(); 2].map(|()| vec![0.0; key.len()]);
        let largest = self.largest();
        let (mut probabilities, mut scores) = (vec![0.0; largest], vec![0.0; largest]);
        for (rows, keys) in self.queries.sequences().zip(self.keys.sequences()) {
            let length = keys.len();
            let part = rows.start * width..rows.end * width;
            let keys = keys.start * width..keys.end * width;
            let [query, above] = [query, above].map(|all| &all[part.clone()]);
            let [key, value] = [key, value].map(|all| &all[keys.clone()]);
            let probabilities = &mut probabilities[..rows.len() * length];
            let scores = &mut scores[..rows.len() * length];
            for head in 0..self.heads {
                let [query, key, value, above] =
                    [query, key, value, above].map(|rows| self.head(rows, width, head));
                let out = part.start + head * query.columns..part.end;
                let keys_out = keys.start + head * query.columns..keys.end;
                self.probabilities(query, key, probabilities);
                let weights = Matrix::new(probabilities, rows.len(), length);
                multiply(scores, length, above, value.transposed(), 1.0);
                multiply(
                    &mut dv[keys_out.clone()],
                    width,
                    weights.transposed(),
                    above,
                    1.0,
                );
                // The derivative of the softmax: p · (dp − Σ p · dp).
                for (row, weights) in scores
                    .chunks_exact_mut(length)
                    .zip(probabilities.chunks_exact(length))
                {
                    let mean = sum_of(row, weights, |score, weight| score * weight);
                    row.iter_mut()
                        .zip(weights)
                        .for_each(|(score, weight)| *score = weight * (*score - mean));
                }
                let scale = (query.columns as f32).sqrt().recip();
                let scores = Matrix::new(scores, rows.len(), length);
                multiply(&mut dq[out], width, scores, key, scale);
                multiply(&mut dk[keys_out], width, scores.transposed(), query, scale);
            }
        }
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
        let out = self.forward(&query, &key, &values(value, value_layout)?, width);
        Ok((query.store(out), query_layout.shape().clone()))
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
