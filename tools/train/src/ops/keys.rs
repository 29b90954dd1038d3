//! The keys of RWKV-7's recurrence: the unit key that is forgotten, the key that is taken up, the bonus of the current
//! token, and the share of the first layer's values.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use super::{elementary, gradient, numeric::sum_of, values, with_values};

/// The smallest length that a key is divided by.
const LENGTH_MIN: f32 = 1e-12;

/// The direction of each head of `key` ∘ `weight`: `[rows, width]`.
pub fn normed_key(key: &Tensor, weight: &Tensor, heads: usize) -> Result<Tensor> {
    if !key.device().is_cpu() {
        return elementary::normed_key(key, weight, heads);
    }
    key.apply_op2(weight, NormedKey { heads })
}

struct NormedKey {
    heads: usize,
}

impl CustomOp2 for NormedKey {
    fn name(&self) -> &'static str {
        "normed_key"
    }

    fn cpu_fwd(
        &self,
        key: &CpuStorage,
        key_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (key, weight) = (values(key, key_layout)?, values(weight, weight_layout)?);
        let size = weight.len() / self.heads;
        let mut out = Vec::with_capacity(key.len());
        for (index, head) in key.chunks_exact(size).enumerate() {
            let weight = &weight[index % self.heads * size..][..size];
            let squares = sum_of(head, weight, |key, weight| (key * weight) * (key * weight));
            let inverse = squares.sqrt().max(LENGTH_MIN).recip();
            out.extend(
                head.iter()
                    .zip(weight)
                    .map(|(key, weight)| key * weight * inverse),
            );
        }
        Ok((key.store(out), key_layout.shape().clone()))
    }

    fn bwd(
        &self,
        key: &Tensor,
        weight: &Tensor,
        out: &Tensor,
        out_gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let width = weight.dims1()?;
        let size = width / self.heads;
        let mut key_gradient = Vec::with_capacity(key.elem_count());
        let mut weight_gradient = vec![0.0; width];
        with_values(key, |key| {
            with_values(weight, |weight| {
                with_values(out, |out| {
                    with_values(out_gradient, |above| {
                        let heads = key.chunks_exact(size).zip(out.chunks_exact(size));
                        let heads = heads.zip(above.chunks_exact(size)).enumerate();
                        for (index, ((key, out), above)) in heads {
                            let from = index % self.heads * size;
                            let weight = &weight[from..][..size];
                            let squares =
                                sum_of(key, weight, |key, weight| (key * weight) * (key * weight));
                            let inverse = squares.sqrt().max(LENGTH_MIN).recip();
                            // A direction doesn't change along itself.
                            let along = sum_of(above, out, |above, out| above * out);
                            let terms = key.iter().zip(weight).zip(out).zip(above);
                            let sums = &mut weight_gradient[from..][..size];
                            for ((((key, weight), out), above), sum) in terms.zip(sums) {
                                let product = inverse * (above - out * along);
                                key_gradient.push(product * weight);
                                *sum += product * key;
                            }
                        }
                    })
                })
            })
        })????;
        Ok((
            Some(gradient(key_gradient, key)?),
            Some(gradient(weight_gradient, weight)?),
        ))
    }
}

/// The key that is taken up at a rate: key · (1 + (rate − 1) · weight), with one weight for each channel.
pub fn rated_key(key: &Tensor, rate: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if !key.device().is_cpu() {
        return elementary::rated_key(key, rate, weight);
    }
    key.apply_op3(rate, weight, RatedKey)
}

struct RatedKey;

impl CustomOp3 for RatedKey {
    fn name(&self) -> &'static str {
        "rated_key"
    }

    fn cpu_fwd(
        &self,
        key: &CpuStorage,
        key_layout: &Layout,
        rate: &CpuStorage,
        rate_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (key, rate) = (values(key, key_layout)?, values(rate, rate_layout)?);
        let weight = values(weight, weight_layout)?;
        let mut out = Vec::with_capacity(key.len());
        let rows = key
            .chunks_exact(weight.len())
            .zip(rate.chunks_exact(weight.len()));
        for (key, rate) in rows {
            let terms = key.iter().zip(rate).zip(weight.iter());
            out.extend(terms.map(|((key, rate), weight)| key * (1.0 + (rate - 1.0) * weight)));
        }
        Ok((key.store(out), key_layout.shape().clone()))
    }

    fn bwd(
        &self,
        key: &Tensor,
        rate: &Tensor,
        weight: &Tensor,
        _out: &Tensor,
        out_gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let width = weight.dims1()?;
        let count = key.elem_count();
        let (mut key_gradient, mut rate_gradient) =
            (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut weight_gradient = vec![0.0; width];
        with_values(key, |key| {
            with_values(rate, |rate| {
                with_values(weight, |weight| {
                    with_values(out_gradient, |above| {
                        let rows = key.chunks_exact(width).zip(rate.chunks_exact(width));
                        for ((key, rate), above) in rows.zip(above.chunks_exact(width)) {
                            let terms = key.iter().zip(rate).zip(above).zip(weight);
                            for ((((key, rate), above), weight), sum) in
                                terms.zip(&mut weight_gradient)
                            {
                                key_gradient.push(above * (1.0 + (rate - 1.0) * weight));
                                rate_gradient.push(above * key * weight);
                                *sum += above * key * (rate - 1.0);
                            }
                        }
                    })
                })
            })
        })????;
        Ok((
            Some(gradient(key_gradient, key)?),
            Some(gradient(rate_gradient, rate)?),
            Some(gradient(weight_gradient, weight)?),
        ))
    }
}

/// What a token adds to its own answer: for each head, its value times the sum of query ∘ key ∘ `weight`.
///
/// `inputs` is `[3, rows, width]`: query, key, value; `weight` is `[heads, width / heads]`.
pub fn bonus(inputs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if !inputs.device().is_cpu() {
        return elementary::bonus(inputs, weight);
    }
    inputs.apply_op2(weight, Bonus)
}

struct Bonus;

impl Bonus {
    /// The heads of query, key and value, with the heads of the weight that belong to them.
    fn heads<'a>(
        inputs: &'a [f32],
        weight: &'a [f32],
        size: usize,
    ) -> impl Iterator<Item = [&'a [f32]; 4]> {
        let (query, rest) = inputs.split_at(inputs.len() / 3);
        let (key, value) = rest.split_at(query.len());
        let heads = query.chunks_exact(size).zip(key.chunks_exact(size));
        let heads = heads.zip(value.chunks_exact(size));
        let weights = weight.chunks_exact(size).cycle();
        heads
            .zip(weights)
            .map(|(((query, key), value), weight)| [query, key, value, weight])
    }

    fn factor(query: &[f32], key: &[f32], weight: &[f32]) -> f32 {
        let terms = query.iter().zip(key).zip(weight);
        terms
            .map(|((query, key), weight)| query * key * weight)
            .sum()
    }
}

impl CustomOp2 for Bonus {
    fn name(&self) -> &'static str {
        "bonus"
    }

    fn cpu_fwd(
        &self,
        inputs: &CpuStorage,
        inputs_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, rows, width) = inputs_layout.shape().dims3()?;
        let (_, size) = weight_layout.shape().dims2()?;
        let (inputs, weight) = (
            values(inputs, inputs_layout)?,
            values(weight, weight_layout)?,
        );
        let mut out = Vec::with_capacity(rows * width);
        for [query, key, value, weight] in Self::heads(&inputs, &weight, size) {
            let factor = Self::factor(query, key, weight);
            out.extend(value.iter().map(|value| value * factor));
        }
        Ok((inputs.store(out), (rows, width).into()))
    }

    fn bwd(
        &self,
        inputs: &Tensor,
        weight: &Tensor,
        _out: &Tensor,
        out_gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (heads, size) = weight.dims2()?;
        let mut found = vec![0.0; inputs.elem_count()];
        let mut weight_gradient = vec![0.0; weight.elem_count()];
        with_values(inputs, |inputs| {
            with_values(weight, |weight| {
                with_values(out_gradient, |above| {
                    let (queries, rest) = found.split_at_mut(inputs.len() / 3);
                    let (keys, values) = rest.split_at_mut(queries.len());
                    let above = above.chunks_exact(size);
                    for (index, ([query, key, value, weight], above)) in
                        Self::heads(inputs, weight, size).zip(above).enumerate()
                    {
                        let factor = Self::factor(query, key, weight);
                        let pull = sum_of(above, value, |above, value| above * value);
                        let sums = &mut weight_gradient[index % heads * size..][..size];
                        let at = index * size;
                        for channel in 0..size {
                            queries[at + channel] = pull * key[channel] * weight[channel];
                            keys[at + channel] = pull * query[channel] * weight[channel];
                            values[at + channel] = factor * above[channel];
                            sums[channel] += pull * query[channel] * key[channel];
                        }
                    }
                })
            })
        })???;
        Ok((
            Some(gradient(found, inputs)?),
            Some(gradient(weight_gradient, weight)?),
        ))
    }
}
