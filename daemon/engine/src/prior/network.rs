//! The network F of a prior: matmuls by the CPU's operations, everything else in plain loops, since a text has but
//! some hundred latent vectors.

use sluice_formats::DType;
use sluice_ops::{Ops, OpsError};

use super::{Prior, host_weight};

/// Added to variances before their root is taken.
const EPSILON: f32 = 1e-6;
/// The longest period of the noise level's sinusoids, relative to the shortest.
const PERIODS: f64 = 10_000.0;
/// What a noise level, ln(σ)/4, is multiplied with before its sinusoids.
const TIME_SCALE: f64 = 1000.0;

impl Prior {
    /// F(x; c): `[vectors, latent width]`.
    pub(super) fn network(&self, ops: &Ops, x: &[f32], level: f64) -> Result<Vec<f32>, OpsError> {
        let width = self.shape.width;
        let time = self.linear(ops, &sinusoids(level, width), "time.0")?;
        let time = silu(self.linear(ops, &silu(time), "time.1")?);
        let mut h = self.linear(ops, x, "input")?;
        add(&mut h, self.values("places"));
        for layer in 0..self.shape.layers {
            let name = |part: &str| format!("layers.{layer}.{part}");
            let parts = self.linear(ops, &time, &name("modulation"))?;
            let part = |index: usize| &parts[index * width..][..width];
            let normed = modulated(&h, part(0), part(1));
            let [query, key, value] = ["query", "key", "value"].map(&name);
            let mixed = self.attention(
                ops,
                &self.linear(ops, &normed, &query)?,
                &self.linear(ops, &normed, &key)?,
                &self.linear(ops, &normed, &value)?,
            )?;
            add_gated(&mut h, &self.linear(ops, &mixed, &name("out"))?, part(2));
            let normed = modulated(&h, part(3), part(4));
            let inner = silu(self.linear(ops, &normed, &name("up"))?);
            add_gated(&mut h, &self.linear(ops, &inner, &name("down"))?, part(5));
        }
        let parts = self.linear(ops, &time, "final.modulation")?;
        let (shift, scale) = parts.split_at(width);
        self.linear(ops, &modulated(&h, shift, scale), "output")
    }

    fn linear(&self, ops: &Ops, x: &[f32], name: &str) -> Result<Vec<f32>, OpsError> {
        let weight = self.weight(&format!("{name}.weight"));
        let bias = self.weight(&format!("{name}.bias"));
        let x = ops.matrix(x.len() / weight.width, weight.width, x, DType::F32)?;
        ops.read(&ops.linear_biased(&x, &weight, &bias)?)
    }

    /// Attention of all rows to all, head by head.
    fn attention(
        &self,
        ops: &Ops,
        query: &[f32],
        key: &[f32],
        value: &[f32],
    ) -> Result<Vec<f32>, OpsError> {
        let width = self.shape.width;
        let rows = self.shape.vectors;
        let head_dim = width / self.shape.heads;
        let scale = (head_dim as f32).sqrt().recip();
        let mut mixed = vec![0.0; query.len()];
        for first in (0..width).step_by(head_dim) {
            let head = |x: &[f32]| -> Vec<f32> {
                let rows = x.chunks_exact(width);
                rows.flat_map(|row| &row[first..first + head_dim])
                    .copied()
                    .collect()
            };
            let (query, key, value) = (head(query), head(key), head(value));
            let mut turned = vec![0.0; value.len()];
            for (row, value) in value.chunks_exact(head_dim).enumerate() {
                for (column, value) in value.iter().enumerate() {
                    turned[column * rows + row] = *value;
                }
            }
            let query = ops.matrix(rows, head_dim, &query, DType::F32)?;
            let scores = ops.linear(&query, &host_weight(&key, rows, head_dim))?;
            let mut scores = ops.read(&scores)?;
            (scores.chunks_exact_mut(rows)).for_each(|row| softmax(row, scale));
            let scores = ops.matrix(rows, rows, &scores, DType::F32)?;
            let out = ops.linear(&scores, &host_weight(&turned, head_dim, rows))?;
            let out = ops.read(&out)?;
            for (mixed, out) in mixed
                .chunks_exact_mut(width)
                .zip(out.chunks_exact(head_dim))
            {
                mixed[first..first + head_dim].copy_from_slice(out);
            }
        }
        Ok(mixed)
    }
}

/// Sines and cosines of a noise level.
fn sinusoids(level: f64, width: usize) -> Vec<f32> {
    let half = width / 2;
    let angle = |wave: usize| TIME_SCALE * level * PERIODS.powf(-(wave as f64) / half as f64);
    let sines = (0..half).map(|wave| angle(wave).sin() as f32);
    let cosines = (0..half).map(|wave| angle(wave).cos() as f32);
    sines.chain(cosines).collect()
}

/// Rows by mean and variance, scaled and shifted.
fn modulated(x: &[f32], shift: &[f32], scale: &[f32]) -> Vec<f32> {
    let width = shift.len();
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(width) {
        let mean = row.iter().sum::<f32>() / width as f32;
        let squares = row.iter().map(|x| (x - mean) * (x - mean));
        let variance = squares.sum::<f32>() / width as f32;
        let factor = (variance + EPSILON).sqrt().recip();
        let each = row.iter().zip(shift).zip(scale);
        out.extend(each.map(|((x, shift), scale)| (x - mean) * factor * (1.0 + scale) + shift));
    }
    out
}

fn silu(mut x: Vec<f32>) -> Vec<f32> {
    for x in &mut x {
        *x /= 1.0 + (-*x).exp();
    }
    x
}

fn softmax(row: &mut [f32], scale: f32) {
    let most = row.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    for x in row.iter_mut() {
        *x = (scale * (*x - most)).exp();
    }
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

fn add(h: &mut [f32], x: &[f32]) {
    h.iter_mut().zip(x).for_each(|(h, x)| *h += x);
}

fn add_gated(h: &mut [f32], x: &[f32], gate: &[f32]) {
    for ((h, x), gate) in h.iter_mut().zip(x).zip(gate.iter().cycle()) {
        *h += gate * x;
    }
}
