//! The operations on the CPU: loops over rows on the device's threads, and our own matmul for `linear` and attention.

mod attention;
mod backward;
mod byte_kernel;
pub(super) mod exp;
mod factors;
mod heads_output;
mod interleaved;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod linear;
mod microkernel;
mod packed;
mod quantized;
mod rows;
mod rwkv7;
pub(super) mod scratch;
mod vectors;

use std::sync::Arc;

use rayon::prelude::*;
use sluice_formats::Format;
use sluice_machine::Instructions;
use sluice_weights::{RopePairs, Weight};

pub(super) use self::linear::Product;
use self::scratch::Scratch;
use super::{Activation, Indices, RopeTable, clock::PhaseClock};
use crate::{
    OpsError,
    device::Device,
    ledger::{Ledger, LedgerEntry},
};

/// Elements that one thread computes sooner than it shares them with others.
const FEW_ELEMENTS: usize = 4096;

/// Whether rows are rounded before they are multiplied with weights of this format.
pub(super) fn rounds_rows(device: &Device, format: Format) -> bool {
    byte_kernel::rounds_rows(device.instructions(), format)
        || factors::rounds_to_bf16(device, format)
}

/// The threads and the scratch memory of each.
pub(super) struct CpuBackend {
    device: Device,
    scratch: Arc<Scratch>,
    clock: PhaseClock,
    /// Counts the scratch memory where others have it as well.
    _common: Option<LedgerEntry>,
}

impl CpuBackend {
    pub(super) fn new(device: Device, ledger: &Ledger) -> Result<Self, OpsError> {
        let scratch = Scratch::new(device.threads(), ledger)?;
        Ok(Self::with(device, Arc::new(scratch), None))
    }

    /// With scratch memory that others may use as well, one after another.
    pub(super) fn with(device: Device, scratch: Arc<Scratch>, common: Option<LedgerEntry>) -> Self {
        Self {
            clock: PhaseClock::new(device.threads()),
            device,
            scratch,
            _common: common,
        }
    }

    /// Gives the pages of its scratch memory back until something is computed again.
    pub(super) fn rest(&self) {
        self.scratch.forget();
    }

    /// What its operations took.
    pub(super) fn clock(&self) -> &PhaseClock {
        &self.clock
    }

    /// The vector instructions that compute.
    fn instructions(&self) -> Instructions {
        self.device.instructions()
    }

    /// Runs `work` on the device's threads.
    pub(super) fn run(&self, work: impl FnOnce() + Send) {
        self.device.run(work);
    }

    /// Does `work` on each row, with its index. A few short rows are computed where the pass runs: to hand some over
    /// takes longer.
    pub(super) fn each_row(
        &self,
        rows: &mut Activation,
        work: impl Fn(usize, &mut [f32]) + Send + Sync,
    ) {
        if rows.len() == 1 || rows.values().len() <= FEW_ELEMENTS {
            let rows = rows.rows_mut().enumerate();
            return rows.for_each(|(index, row)| work(index, row));
        }
        self.run(|| {
            let rows = rows.par_rows_mut().enumerate();
            rows.for_each(|(index, row)| work(index, row));
        });
    }

    pub(super) fn rms_norm(
        &self,
        out: &mut Activation,
        x: &Activation,
        start: usize,
        weight: &Weight<'_>,
        scale: &mut Activation,
        epsilon: f32,
    ) {
        // Once for all rows: the norm's weight is a vector that may be stored as bf16.
        weight.dequantize(scale.row_mut(0));
        let (scale, instructions) = (scale.row(0), self.instructions());
        self.each_row(out, |index, out| {
            rows::rms_norm(instructions, out, x.row(start + index), scale, epsilon);
        });
    }

    pub(super) fn add_rms_norm(
        &self,
        out: &mut Activation,
        x: &Activation,
        weight: &Weight<'_>,
        scale: &mut Activation,
        epsilon: f32,
    ) {
        weight.dequantize(scale.row_mut(0));
        let (scale, instructions) = (scale.row(0), self.instructions());
        self.each_row(out, |index, out| {
            rows::add_rms_norm(instructions, out, x.row(index), scale, epsilon);
        });
    }

    pub(super) fn rms_norm_heads(
        &self,
        x: &mut Activation,
        weight: &Weight<'_>,
        scale: &mut Activation,
        epsilon: f32,
    ) {
        weight.dequantize(scale.row_mut(0));
        let (scale, instructions) = (scale.row(0), self.instructions());
        self.each_row(x, |_, row| {
            rows::rms_norm_heads(instructions, row, scale, epsilon);
        });
    }

    /// Rotates pairs by the angles of their positions; back, where the direction is −1.
    pub(super) fn rotate(
        &self,
        x: &mut Activation,
        table: &RopeTable,
        positions: &Indices,
        direction: f32,
    ) {
        // The rows are split among threads, which a plain iterator over the positions cannot be.
        let positions: Vec<usize> = positions.iter().collect();
        let instructions = self.instructions();
        self.each_row(x, |index, row| {
            let (cos, sin) = table.at(positions[index]);
            let head_dim = table.head_dim;
            match table.pairs {
                RopePairs::HalfSplit => {
                    let sizes = [head_dim, table.pair_distance];
                    rows::rotate(instructions, row, sizes, cos, sin, direction);
                }
                RopePairs::Interleaved => {
                    rows::rotate_neighbours(instructions, row, head_dim, cos, sin, direction);
                }
            }
        });
    }

    /// Each head of the rows divided by its root mean square.
    pub(super) fn bare_norm_heads(&self, x: &mut Activation, head_dim: usize, epsilon: f32) {
        let instructions = self.instructions();
        self.each_row(x, |_, row| {
            rows::bare_norm_heads(instructions, row, head_dim, epsilon);
        });
    }

    pub(super) fn gelu_mul(&self, gate: &mut Activation, up: &Activation) {
        let instructions = self.instructions();
        self.each_row(gate, |index, gate| {
            exp::gelu_multiply(instructions, gate, up.row(index));
        });
    }

    pub(super) fn silu_mul(&self, gate: &mut Activation, up: &Activation) {
        let instructions = self.instructions();
        self.each_row(gate, |index, gate| {
            exp::silu_multiply(instructions, gate, up.row(index));
        });
    }
}

/// Rows filled by `fill`; the same id again takes the row before.
pub(super) fn embed_rows<E>(
    out: &mut Activation,
    ids: &[u32],
    mut fill: impl FnMut(u32, &mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    let width = out.width();
    let values = out.values_mut();
    for (index, &id) in ids.iter().enumerate() {
        let (before, row) = values[..(index + 1) * width].split_at_mut(index * width);
        // A canvas is mostly runs of masks, whose row need not be dequantized or read from a file again.
        if index > 0 && ids[index - 1] == id {
            row.copy_from_slice(&before[(index - 1) * width..]);
        } else {
            fill(id, row)?;
        }
    }
    Ok(())
}
