//! What else RWKV-7 is made of: norms with a bias, token shifts, activations and the keys of its recurrence.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use super::{
    Pack,
    activation::Activation,
    elementary, gradient,
    numeric::{sum, sum_of},
    values, with_values,
};

/// Norm of each group of channels of a row of `x` (`[rows, width]`) by mean and variance, times `weight` plus `bias`
/// (`[width]` each). With one group it is a layer norm.
pub fn group_norm(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    groups: usize,
    epsilon: f32,
) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return elementary::group_norm(x, weight, bias, groups, epsilon);
    }
    x.apply_op3(weight, bias, GroupNorm { groups, epsilon })
}

struct GroupNorm {
    groups: usize,
    epsilon: f32,
}

impl GroupNorm {
    /// Mean of a group, and one over its standard deviation.
    fn moments(&self, group: &[f32]) -> (f32, f32) {
        let count = group.len() as f32;
        let mean = sum(group) / count;
        let variance = sum_of(group, group, |value, _| (value - mean) * (value - mean)) / count;
        (mean, (variance + self.epsilon).sqrt().recip())
    }
}

impl CustomOp3 for GroupNorm {
    fn name(&self) -> &'static str {
        "group_norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (values(x, x_layout)?, values(weight, weight_layout)?);
        let bias = values(bias, bias_layout)?;
        let size = weight.len() / self.groups;
        let mut out = Vec::with_capacity(x.len());
        for (index, group) in x.chunks_exact(size).enumerate() {
            let (mean, inverse) = self.moments(group);
            let from = index % self.groups * size;
            let factors = weight[from..][..size].iter().zip(&bias[from..][..size]);
            let normed = group.iter().map(|value| (value - mean) * inverse);
            out.extend(
                normed
                    .zip(factors)
                    .map(|(value, (weight, bias))| value * weight + bias),
            );
        }
        Ok((x.store(out), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _out: &Tensor,
        out_gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let width = weight.dims1()?;
        let size = width / self.groups;
        let mut x_gradient = vec![0.0; x.elem_count()];
        let (mut weight_gradient, mut bias_gradient) = (vec![0.0; width], vec![0.0; width]);
        with_values(x, |x| {
            with_values(weight, |weight| {
                with_values(out_gradient, |above| {
                    let groups = x.chunks_exact(size).zip(above.chunks_exact(size));
                    let groups = groups.zip(x_gradient.chunks_exact_mut(size));
                    for (index, ((group, above), out)) in groups.enumerate() {
                        let (mean, inverse) = self.moments(group);
                        let from = index % self.groups * size;
                        let weight = &weight[from..][..size];
                        let sums = weight_gradient[from..][..size]
                            .iter_mut()
                            .zip(&mut bias_gradient[from..][..size]);
                        for (((weight_sum, bias_sum), above), value) in sums.zip(above).zip(group) {
                            *weight_sum += above * (value - mean) * inverse;
                            *bias_sum += above;
                        }
                        for ((out, above), weight) in out.iter_mut().zip(above).zip(weight) {
                            *out = above * weight;
                        }
                        // Mean and variance depend on every element: what lies along either is removed.
                        let count = size as f32;
                        let shift = sum(out) / count;
                        let along = sum_of(out, group, |out, value| out * (value - mean))
                            * inverse
                            * inverse
                            / count;
                        for (out, value) in out.iter_mut().zip(group) {
                            *out = inverse * (*out - shift - (value - mean) * along);
                        }
                    }
                })
            })
        })???;
        Ok((
            Some(gradient(x_gradient, x)?),
            Some(gradient(weight_gradient, weight)?),
            Some(gradient(bias_gradient, bias)?),
        ))
    }
}

/// Moves each channel of a row towards the row before it in its sequence: x + (before − x) · mix. Before the first row of
/// a sequence there are zeros. `mix` has one element for each channel.
pub fn token_shift(x: &Tensor, mix: &Tensor, pack: &Pack) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return elementary::token_shift(x, mix, pack);
    }
    x.apply_op2(mix, TokenShift { pack: pack.clone() })
}

struct TokenShift {
    pack: Pack,
}

impl CustomOp2 for TokenShift {
    fn name(&self) -> &'static str {
        "token_shift"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        mix: &CpuStorage,
        mix_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, mix) = (values(x, x_layout)?, values(mix, mix_layout)?);
        let width = mix.len();
        let zeros = vec![0.0; width];
        let mut out = Vec::with_capacity(x.len());
        let mut before = &zeros[..];
        for (position, row) in self.pack.positions().zip(x.chunks_exact(width)) {
            if position == 0 {
                before = &zeros;
            }
            let moved = row.iter().zip(before).zip(mix.iter());
            out.extend(moved.map(|((value, before), mix)| value + (before - value) * mix));
            before = row;
        }
        Ok((x.store(out), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        mix: &Tensor,
        _out: &Tensor,
        out_gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let width = mix.elem_count();
        let zeros = vec![0.0; width];
        let mut x_gradient = vec![0.0; x.elem_count()];
        let mut mix_gradient = vec![0.0; width];
        with_values(x, |x| {
            with_values(mix, |mix| {
                with_values(out_gradient, |above| {
                    let rows = x.chunks_exact(width).zip(above.chunks_exact(width));
                    let mut before = &zeros[..];
                    for (index, (position, (row, above))) in
                        self.pack.positions().zip(rows).enumerate()
                    {
                        if position == 0 {
                            before = &zeros;
                        }
                        for (((sum, above), value), before) in
                            mix_gradient.iter_mut().zip(above).zip(row).zip(before)
                        {
                            *sum += above * (before - value);
                        }
                        let (earlier, own) = x_gradient.split_at_mut(index * width);
                        for ((out, above), mix) in own.iter_mut().zip(above).zip(mix) {
                            *out += above * (1.0 - mix);
                        }
                        if position > 0 {
                            let earlier = &mut earlier[(index - 1) * width..];
                            for ((out, above), mix) in earlier.iter_mut().zip(above).zip(mix) {
                                *out += above * mix;
                            }
                        }
                        before = row;
                    }
                })
            })
        })???;
        Ok((
            Some(gradient(x_gradient, x)?),
            Some(gradient(mix_gradient, mix)?),
        ))
    }
}

/// The activation of each element of `x` (`[rows, width]`), to which `bias` (`[width]`) is added first.
pub fn activate(x: &Tensor, bias: Option<&Tensor>, activation: Activation) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return elementary::activate(x, bias, activation);
    }
    match bias {
        Some(bias) => x.apply_op2(bias, Activate(activation)),
        // A constant, so no gradient is asked for.
        None => x.apply_op2(
            &Tensor::zeros(x.dim(1)?, x.dtype(), x.device())?,
            Activate(activation),
        ),
    }
}

struct Activate(Activation);

impl CustomOp2 for Activate {
    fn name(&self) -> &'static str {
        "activate"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, bias) = (values(x, x_layout)?, values(bias, bias_layout)?);
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(bias.len()) {
            out.extend(
                row.iter()
                    .zip(bias.iter())
                    .map(|(x, bias)| self.0.value(x + bias)),
            );
        }
        Ok((x.store(out), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        bias: &Tensor,
        out: &Tensor,
        out_gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let width = bias.dims1()?;
        let mut x_gradient = Vec::with_capacity(x.elem_count());
        let mut bias_gradient = vec![0.0; width];
        with_values(x, |x| {
            with_values(bias, |bias| {
                with_values(out, |out| {
                    with_values(out_gradient, |above| {
                        let rows = x.chunks_exact(width).zip(out.chunks_exact(width));
                        for ((x, out), above) in rows.zip(above.chunks_exact(width)) {
                            let start = x_gradient.len();
                            let terms = x.iter().zip(bias).zip(out).zip(above);
                            x_gradient.extend(terms.map(|(((x, bias), out), above)| {
                                above * self.0.slope(x + bias, *out)
                            }));
                            let found = bias_gradient.iter_mut().zip(&x_gradient[start..]);
                            found.for_each(|(sum, found)| *sum += found);
                        }
                    })
                })
            })
        })????;
        let bias = bias
            .track_op()
            .then(|| gradient(bias_gradient, bias))
            .transpose()?;
        Ok((Some(gradient(x_gradient, x)?), bias))
    }
}
