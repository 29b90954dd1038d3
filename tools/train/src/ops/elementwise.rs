//! Norm and the gated activation.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::{
    elementary, gradient,
    numeric::{sigmoid, sum_of},
    values, with_values,
};

/// Root-mean-square norm of each row of `x` (`[rows, width]`), times `weight` (`[width]`).
pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return elementary::rms_norm(x, weight, epsilon);
    }
    x.apply_op2(weight, RmsNorm { epsilon })
}

struct RmsNorm {
    epsilon: f32,
}

impl RmsNorm {
    /// One over the root mean square of a row.
    fn inverse(&self, row: &[f32]) -> f32 {
        let square_sum = sum_of(row, row, |value, same| value * same);
        (square_sum / row.len() as f32 + self.epsilon)
            .sqrt()
            .recip()
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (values(x, x_layout)?, values(weight, weight_layout)?);
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(weight.len()) {
            let inverse = self.inverse(row);
            out.extend(
                row.iter()
                    .zip(weight.iter())
                    .map(|(x, weight)| x * inverse * weight),
            );
        }
        Ok((x.store(out), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _out: &Tensor,
        out_gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let width = weight.dims1()?;
        let mut x_gradient = Vec::with_capacity(x.elem_count());
        let mut weight_gradient = vec![0.0; width];
        with_values(x, |x| {
            with_values(weight, |weight| {
                with_values(out_gradient, |out_gradient| {
                    for (row, above) in x.chunks_exact(width).zip(out_gradient.chunks_exact(width))
                    {
                        let inverse = self.inverse(row);
                        let normed = row.iter().map(|value| value * inverse);
                        for ((sum, above), normed) in
                            weight_gradient.iter_mut().zip(above).zip(normed)
                        {
                            *sum += above * normed;
                        }
                        let start = x_gradient.len();
                        x_gradient.extend(above.iter().zip(weight).map(|(a, w)| a * w * inverse));
                        let x_gradient = &mut x_gradient[start..];
                        // The norm depends on every element: the part of the gradient along the row is removed.
                        let along = sum_of(x_gradient, row, |gradient, value| gradient * value);
                        let pull = along * inverse * inverse / width as f32;
                        for (gradient, value) in x_gradient.iter_mut().zip(row) {
                            *gradient -= value * pull;
                        }
                    }
                })
            })
        })???;
        Ok((
            Some(gradient(x_gradient, x)?),
            Some(gradient(weight_gradient, weight)?),
        ))
    }
}

/// `silu(gate) · up`, the activation of a SwiGLU layer.
pub fn gated(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if !gate.device().is_cpu() {
        return elementary::gated(gate, up);
    }
    gate.apply_op2(up, Gated)
}

struct Gated;

impl CustomOp2 for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (values(gate, gate_layout)?, values(up, up_layout)?);
        let out = gate
            .iter()
            .zip(up.iter())
            .map(|(gate, up)| gate * sigmoid(*gate) * up)
            .collect();
        Ok((gate.store(out), gate_layout.shape().clone()))
    }

    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _out: &Tensor,
        out_gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let mut gate_gradient = Vec::with_capacity(gate.elem_count());
        let mut up_gradient = Vec::with_capacity(gate.elem_count());
        with_values(gate, |gate| {
            with_values(up, |up| {
                with_values(out_gradient, |above| {
                    gate_gradient.extend(gate.iter().zip(up).zip(above).map(
                        |((gate, up), above)| {
                            let open = sigmoid(*gate);
                            // The derivative of silu: σ(x) · (1 + x · (1 − σ(x))).
                            above * up * open * (1.0 + gate * (1.0 - open))
                        },
                    ));
                    up_gradient.extend(
                        gate.iter()
                            .zip(above)
                            .map(|(gate, above)| above * gate * sigmoid(*gate)),
                    );
                })
            })
        })???;
        Ok((
            Some(gradient(gate_gradient, gate)?),
            Some(gradient(up_gradient, up)?),
        ))
    }
}
