//! Rotary position embedding.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use sluice_weights::RopePairs;

use super::{Rotation, elementary, gradient, values, with_values};

/// Rotates the heads of `x`, of shape `[rows, width]`.
pub fn rotate(x: &Tensor, rotation: &Rotation) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return elementary::rotate(x, rotation);
    }
    x.apply_op1(Rotate(rotation.clone()))
}

struct Rotate(Rotation);

impl Rotate {
    /// Rotates every pair by its angle, or back for the gradient (`direction` −1).
    fn turn(&self, x: &[f32], width: usize, direction: f32) -> Vec<f32> {
        let Rotation {
            positions,
            heads,
            theta,
            pairs,
        } = &self.0;
        let head_width = width / heads;
        let half = head_width / 2;
        let frequencies: Vec<f32> = (0..half)
            .map(|pair| theta.powf(-(pair as f64) / half as f64) as f32)
            .collect();
        let last = positions.iter().max();
        let angles: Vec<(f32, f32)> = (0..last.map_or(0, |position| position + 1))
            .flat_map(|position| {
                frequencies.iter().map(move |frequency| {
                    let (sin, cos) = (position as f32 * frequency).sin_cos();
                    (cos, sin * direction)
                })
            })
            .collect();
        let mut out = vec![0.0; x.len()];
        let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
        for (position, (row, out_row)) in positions.iter().zip(rows) {
            let angles = &angles[position * half..][..half];
            let heads = row.chunks_exact(head_width);
            for (head, out_head) in heads.zip(out_row.chunks_exact_mut(head_width)) {
                match pairs {
                    RopePairs::HalfSplit => turn_halves(head, out_head, angles),
                    RopePairs::Interleaved => turn_neighbours(head, out_head, angles),
                }
            }
        }
        out
    }
}

fn turn_halves(head: &[f32], out: &mut [f32], angles: &[(f32, f32)]) {
    let half = angles.len();
    let (first, second) = head.split_at(half);
    let (out_first, out_second) = out.split_at_mut(half);
    for (pair, (cos, sin)) in angles.iter().enumerate() {
        out_first[pair] = first[pair] * cos - second[pair] * sin;
        out_second[pair] = second[pair] * cos + first[pair] * sin;
    }
}

fn turn_neighbours(head: &[f32], out: &mut [f32], angles: &[(f32, f32)]) {
    let pairs = head.chunks_exact(2).zip(out.chunks_exact_mut(2));
    for ((pair, out), (cos, sin)) in pairs.zip(angles) {
        out[0] = pair[0] * cos - pair[1] * sin;
        out[1] = pair[1] * cos + pair[0] * sin;
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
