//! The projection `x · Wᵀ` with weights stored as `[out, in]`.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::{Matrix, elementary, gradient, multiply, values, with_values};

/// Projects the rows of `x` (`[rows, in]`) with `weight` (`[out, in]`).
pub fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return elementary::linear(x, weight);
    }
    x.apply_op2(weight, Linear)
}

struct Linear;

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = x_layout.shape().dims2()?;
        let (out_width, _) = weight_layout.shape().dims2()?;
        let mut out = vec![0.0; rows * out_width];
        let (x, weight) = (values(x, x_layout)?, values(weight, weight_layout)?);
        let weight = Matrix::new(&weight, out_width, width);
        let left = Matrix::new(&x, rows, width);
        multiply(&mut out, out_width, left, weight.transposed(), 1.0);
        Ok((x.store(out), (rows, out_width).into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _out: &Tensor,
        out_gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (rows, width) = x.dims2()?;
        let (out_width, _) = weight.dims2()?;
        with_values(out_gradient, |above| -> Result<_> {
            let above = Matrix::new(above, rows, out_width);
            // Each is as much work as the forward pass, so only what is asked for: latents are learned with fixed weights.
            let mut x_gradient = None;
            if x.track_op() {
                let mut found = vec![0.0; rows * width];
                with_values(weight, |weight| {
                    let weight = Matrix::new(weight, out_width, width);
                    multiply(&mut found, width, above, weight, 1.0);
                })?;
                x_gradient = Some(gradient(found, x)?);
            }
            let mut weight_gradient = None;
            if weight.track_op() {
                let mut found = vec![0.0; out_width * width];
                with_values(x, |x| {
                    let x = Matrix::new(x, rows, width);
                    multiply(&mut found, width, above.transposed(), x, 1.0);
                })?;
                weight_gradient = Some(gradient(found, weight)?);
            }
            Ok((x_gradient, weight_gradient))
        })?
    }
}
