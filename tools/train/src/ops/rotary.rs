//! Rotary position embedding of the interleaved kind, for positions of one's own.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::{elementary, gradient, values, with_values};

/// Turns elements 2i and 2i + 1 of each head together. `x` is `[rows, width]`, each row holding `heads` heads, and has a
/// position for each row.
pub fn rotate_pairs(
    x: &Tensor,
    positions: &Arc<[usize]>,
    heads: usize,
    theta: f64,
) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return elementary::rotate_pairs(x, positions, heads, theta);
    }
    let operation = RotatePairs {
        positions: Arc::clone(positions),
        heads,
        theta,
    };
    x.apply_op1(operation)
}

struct RotatePairs {
    positions: Arc<[usize]>,
    heads: usize,
    theta: f64,
}

impl RotatePairs {
    /// Rotates every pair by its angle, or back for the gradient (`direction` −1).
    fn turn(&self, x: &[f32], width: usize, direction: f32) -> Vec<f32> {
        let head_width = width / self.heads;
        let half = head_width / 2;
        let longest = self
            .positions
            .iter()
            .max()
            .map_or(0, |position| position + 1);
        let frequencies: Vec<f32> = (0..half)
            .map(|pair| self.theta.powf(-(pair as f64) / half as f64) as f32)
            .collect();
        let angles: Vec<(f32, f32)> = (0..longest)
            .flat_map(|position| {
                frequencies.iter().map(move |frequency| {
                    let (sin, cos) = (position as f32 * frequency).sin_cos();
                    (cos, sin * direction)
                })
            })
            .collect();
        let mut out = Vec::with_capacity(x.len());
        for (position, row) in self.positions.iter().zip(x.chunks_exact(width)) {
            let angles = &angles[position * half..][..half];
            for head in row.chunks_exact(head_width) {
                for (pair, (cos, sin)) in head.chunks_exact(2).zip(angles) {
                    out.push(pair[0] * cos - pair[1] * sin);
                    out.push(pair[1] * cos + pair[0] * sin);
                }
            }
        }
        out
    }
}

impl CustomOp1 for RotatePairs {
    fn name(&self) -> &'static str {
        "rotate_pairs"
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
