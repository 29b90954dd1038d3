//! The operations that models and decoding are written in, on an opaque activation type.
//! What lies beneath (here the CPU: the `gemm` crate's kernels and plain loops) is named
//! nowhere else.

mod activation;
mod arena;
mod attention;
mod compare;
mod head;
mod linear;
mod noise;
mod scratch;

use rayon::prelude::*;

pub use self::{
    activation::Activation,
    attention::{AttentionRange, AttentionShape, KeySegment},
    compare::{Comparison, Divergence},
    head::{Candidate, Choice, HeadReduction, HeadRow},
    noise::Noise,
};
use self::{activation::Pool, scratch::Scratch};
use crate::{
    device::Device,
    error::EngineError,
    ledger::{Buffer, Kind, Ledger},
    residency::Weight,
};

/// The operations of one device.
pub struct Ops {
    device: Device,
    ledger: Ledger,
    pool: Pool,
    scratch: Scratch,
}

impl Ops {
    /// Prepares the operations and the scratch memory of each thread.
    ///
    /// # Errors
    /// When the memory can't be had.
    pub fn new(device: Device, ledger: Ledger) -> Result<Self, EngineError> {
        let scratch = Scratch::new(device.threads(), &ledger)?;
        Ok(Self {
            pool: Pool::new(ledger.clone()),
            device,
            ledger,
            scratch,
        })
    }

    /// The device beneath.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The account of its memory.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Reserves memory for the activations of a run, of the size that [`Ops::activation_bytes`] told after a rehearsal.
    ///
    /// # Errors
    /// When it can't be had.
    pub fn reserve(&self, bytes: u64) -> Result<(), EngineError> {
        self.pool.reserve(bytes as usize / size_of::<f32>())
    }

    /// Most memory that activations took at once of what was reserved, in bytes.
    #[must_use]
    pub fn activation_bytes(&self) -> u64 {
        (self.pool.high_water() * size_of::<f32>()) as u64
    }

    /// Gives back the memory that was reserved for activations.
    pub fn release(&self) {
        self.pool.clear();
    }

    /// Row `ids[i]` of the table at row i.
    ///
    /// # Errors
    /// When memory can't be had.
    ///
    /// # Panics
    /// When an id lies outside the table.
    pub fn embed(&self, ids: &[u32], table: &Weight<'_>) -> Result<Activation, EngineError> {
        self.embed_rows(ids, table.width, |id, row| {
            table.rows(id as usize, id as usize + 1).widen(row);
            Ok(())
        })
    }

    /// A row of `width` numbers for each id, filled by `fill`; the same id again takes the row before.
    ///
    /// # Errors
    /// When memory can't be had, or a row.
    pub fn embed_rows(
        &self,
        ids: &[u32],
        width: usize,
        mut fill: impl FnMut(u32, &mut [f32]) -> Result<(), EngineError>,
    ) -> Result<Activation, EngineError> {
        let mut out = self.pool.take(ids.len(), width)?;
        if self.ledger.is_rehearsal() {
            return Ok(out);
        }
        let values = out.values_mut();
        for (index, &id) in ids.iter().enumerate() {
            let (before, row) = values[..(index + 1) * width].split_at_mut(index * width);
            // A canvas is mostly runs of masks.
            if index > 0 && ids[index - 1] == id {
                row.copy_from_slice(&before[(index - 1) * width..]);
            } else {
                fill(id, row)?;
            }
        }
        Ok(out)
    }

    /// Root-mean-square norm of the rows `from..to`, times the weight.
    ///
    /// # Errors
    /// When memory can't be had.
    pub fn rms_norm(
        &self,
        x: &Activation,
        rows: std::ops::Range<usize>,
        weight: &Weight<'_>,
        epsilon: f32,
    ) -> Result<Activation, EngineError> {
        let mut scale = self.pool.take(1, x.width())?;
        let mut out = self.pool.take(rows.len(), x.width())?;
        self.device.run(|| {
            weight.widen(scale.row_mut(0));
            let scale = scale.row(0);
            out.par_rows_mut().enumerate().for_each(|(index, out)| {
                let row = x.row(rows.start + index);
                let squares: f32 = row.iter().map(|value| value * value).sum();
                let inverse = (squares / row.len() as f32 + epsilon).sqrt().recip();
                for ((out, value), scale) in out.iter_mut().zip(row).zip(scale) {
                    *out = value * inverse * scale;
                }
            });
        });
        Ok(out)
    }

    /// Rotary embedding on half-split pairs (element i of a head with i + half), in place.
    /// `positions` has one position a row.
    ///
    /// # Panics
    /// When a position lies beyond the table.
    pub fn rope(&self, x: &mut Activation, table: &RopeTable, positions: &[usize]) {
        let half = table.half;
        self.device.run(|| {
            x.par_rows_mut()
                .zip(positions)
                .for_each(|(row, &position)| {
                    let (cos, sin) = table.at(position);
                    for head in row.chunks_exact_mut(2 * half) {
                        let (low, high) = head.split_at_mut(half);
                        for i in 0..half {
                            let (a, b) = (low[i], high[i]);
                            low[i] = a * cos[i] - b * sin[i];
                            high[i] = b * cos[i] + a * sin[i];
                        }
                    }
                });
        });
    }

    /// `silu(gate) · up`, in the gate's place.
    pub fn silu_multiply(&self, gate: &mut Activation, up: &Activation) {
        self.device.run(|| {
            gate.par_rows_mut().enumerate().for_each(|(index, gate)| {
                for (gate, up) in gate.iter_mut().zip(up.row(index)) {
                    *gate = *gate / (1.0 + (-*gate).exp()) * up;
                }
            });
        });
    }

    /// Adds `y` to the rows of `x` from `start` on.
    pub fn add(&self, x: &mut Activation, start: usize, y: &Activation) {
        self.device.run(|| {
            x.par_rows_mut()
                .skip(start)
                .zip(0..y.len())
                .for_each(|(row, index)| {
                    for (x, y) in row.iter_mut().zip(y.row(index)) {
                        *x += y;
                    }
                });
        });
    }

    /// The rows of `x` at `rows`, in that order.
    ///
    /// # Errors
    /// When memory can't be had.
    pub fn take_rows(&self, x: &Activation, rows: &[usize]) -> Result<Activation, EngineError> {
        let mut out = self.pool.take(rows.len(), x.width())?;
        self.device.run(|| {
            for (out, &row) in out.rows_mut().zip(rows) {
                out.copy_from_slice(x.row(row));
            }
        });
        Ok(out)
    }
}

/// Cosines and sines of every position's angles, as `f32` arithmetic gives them: the
/// reference keeps the rotation in `f32` whatever the model's precision.
#[derive(Debug)]
pub struct RopeTable {
    /// For each position: cosines, then sines.
    values: Buffer<f32>,
    half: usize,
}

impl RopeTable {
    /// Angles `position / base^(2i / head_dim)` for `positions` positions.
    ///
    /// # Errors
    /// When memory can't be had.
    pub fn new(
        head_dim: usize,
        base: f32,
        positions: usize,
        ledger: &Ledger,
    ) -> Result<Self, EngineError> {
        let half = head_dim / 2;
        let mut values = ledger.buffer(Kind::Weights, positions * head_dim)?;
        let frequencies: Vec<f32> = (0..half)
            .map(|i| base.powf((2 * i) as f32 / head_dim as f32).recip())
            .collect();
        for (position, row) in values.chunks_exact_mut(head_dim).enumerate() {
            let (cos, sin) = row.split_at_mut(half);
            for i in 0..half {
                (sin[i], cos[i]) = (position as f32 * frequencies[i]).sin_cos();
            }
        }
        Ok(Self { values, half })
    }

    fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let row = &self.values[position * 2 * self.half..(position + 1) * 2 * self.half];
        row.split_at(self.half)
    }
}
