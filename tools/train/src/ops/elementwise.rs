//! Norm, rotary embedding and the gated activation.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};

use super::{
    Pack, elementary, gradient,
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

/// Rotary position embedding of the half-split kind: the first half of each head is paired with its second half.
///
/// `x` holds the rows of the pack; each row holds `heads` heads.
pub fn rotate(x: &Tensor, pack: &Pack, heads: usize, theta: f64) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return elementary::rotate(x, pack, heads, theta);
    }
    let pack = pack.clone();
    x.apply_op1(Rotate { pack, heads, theta })
}

struct Rotate {
    pack: Pack,
    heads: usize,
    theta: f64,
}

impl Rotate {
    /// Rotates every pair by its angle, or back for the gradient (`direction` −1).
    fn turn(&self, x: &[f32], width: usize, direction: f32) -> Vec<f32> {
        let head_width = width / self.heads;
        let half = head_width / 2;
        let frequencies: Vec<f32> = (0..half)
            .map(|pair| self.theta.powf(-2.0 * pair as f64 / head_width as f64) as f32)
            .collect();
        let angles: Vec<(f32, f32)> = (0..self.pack.longest())
            .flat_map(|position| {
                frequencies.iter().map(move |frequency| {
                    let (sin, cos) = (position as f32 * frequency).sin_cos();
                    (cos, sin * direction)
                })
            })
            .collect();
        let mut out = vec![0.0; x.len()];
        for ((position, row), out_row) in self
            .pack
            .positions()
            .zip(x.chunks_exact(width))
            .zip(out.chunks_exact_mut(width))
        {
            let angles = &angles[position * half..][..half];
            for (head, out_head) in row
                .chunks_exact(head_width)
                .zip(out_row.chunks_exact_mut(head_width))
            {
                let (first, second) = head.split_at(half);
                let (out_first, out_second) = out_head.split_at_mut(half);
                for (pair, (cos, sin)) in angles.iter().enumerate() {
                    out_first[pair] = first[pair] * cos - second[pair] * sin;
                    out_second[pair] = second[pair] * cos + first[pair] * sin;
                }
            }
        }
        out
    }
}

impl CustomOp1 for Rotate {
    fn name(&self) -> &'static str {
        "rotate"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, width) = layout.shape().dims2()?;
        let x = values(x, layout)?;
        let out = self.turn(&x, width, 1.0);
        Ok((x.store(out), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _out: &Tensor, out_gradient: &Tensor) -> Result<Option<Tensor>> {
        let (_, width) = x.dims2()?;
        let turned = with_values(out_gradient, |above| self.turn(above, width, -1.0))?;
        gradient(turned, x).map(Some)
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
