//! `linear`: one multiply for every format. A tile of weights is widened into a thread's
//! scratch and multiplied from there by a well-kept `f32` kernel; weights that are `f32`
//! already are multiplied where they lie.

use gemm::Parallelism;
use rayon::prelude::*;

use super::{Activation, Ops, scratch::SCRATCH_LEN};
use crate::{error::EngineError, residency::Weight};

/// Weights in a tile, at most: 2 MiB when widened, so that a tile stays in the cache that
/// the rows stream past, and packing the rows anew for each tile stays small beside the
/// multiply.
const TILE_WEIGHTS: usize = 1 << 19;

impl Ops {
    /// `x · weightᵀ`: a row of `weight.rows` outputs for each row of `x`.
    ///
    /// # Errors
    /// When memory can't be had.
    ///
    /// # Panics
    /// When the widths differ.
    pub fn linear(&self, x: &Activation, weight: &Weight<'_>) -> Result<Activation, EngineError> {
        let mut out = self.pool.take(x.len(), weight.rows)?;
        self.device
            .run(|| self.multiply_into(x, weight, out.values_mut()));
        Ok(out)
    }

    /// The same into `out`, on the device's threads, which must be the caller's.
    pub(super) fn multiply_into(&self, x: &Activation, weight: &Weight<'_>, out: &mut [f32]) {
        assert_eq!(
            x.width(),
            weight.width,
            "the widths of rows and weights differ"
        );
        assert_eq!(out.len(), x.len() * weight.rows);
        if x.is_empty() || weight.rows == 0 {
            return;
        }
        let tile_rows = tile_rows(weight, self.device.threads());
        let tiles = weight.rows.div_ceil(tile_rows);
        let out = Columns {
            start: out.as_mut_ptr(),
            stride: weight.rows,
            rows: x.len(),
        };
        (0..tiles).into_par_iter().for_each(|tile| {
            let from = tile * tile_rows;
            let to = weight.rows.min(from + tile_rows);
            let part = weight.rows(from, to);
            match part.format.as_f32(part.bytes) {
                Some(values) => multiply_tile(x, values, &out, from),
                None => self.scratch.with(|scratch| {
                    let values = &mut scratch[..part.rows * part.width];
                    part.format.widen(part.bytes, values);
                    multiply_tile(x, values, &out, from);
                }),
            }
        });
    }
}

/// Rows of weights in a tile: as many as fit, but few enough that every thread gets some;
/// whole kernel tiles of 16.
fn tile_rows(weight: &Weight<'_>, threads: usize) -> usize {
    let fitting = TILE_WEIGHTS.min(SCRATCH_LEN) / weight.width.max(1);
    let share = weight.rows.div_ceil(threads);
    fitting
        .min(share)
        .next_multiple_of(16)
        .min((SCRATCH_LEN / weight.width.max(1)).max(1))
}

/// The output matrix, of which each tile writes columns of its own.
struct Columns {
    start: *mut f32,
    /// Numbers in a row.
    stride: usize,
    rows: usize,
}

// SAFETY: tiles write disjoint columns, through `multiply_tile` alone.
unsafe impl Sync for Columns {}

/// `x · tileᵀ` into the columns from `column` on.
fn multiply_tile(x: &Activation, tile: &[f32], out: &Columns, column: usize) {
    let depth = x.width();
    let columns = tile.len() / depth;
    assert!(column + columns <= out.stride && x.len() == out.rows);
    let x = x.values();
    // SAFETY: the kernel reads `columns * depth` numbers of `tile` and `rows * depth` of `x`,
    // which is what they hold, and writes at `start + row * stride + column + j` with
    // `j < columns`, which the assertion keeps inside the output; no other tile writes there.
    // Strides are numbers of elements that fit `isize` since the slices exist.
    unsafe {
        gemm::gemm(
            columns,
            out.rows,
            depth,
            out.start.add(column),
            out.stride as isize,
            1,
            false,
            tile.as_ptr(),
            1,
            depth as isize,
            x.as_ptr(),
            depth as isize,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::{device::Device, format::Format, ledger::Ledger};

    fn ops() -> Ops {
        Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap()
    }

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let noise = super::super::Noise::new(seed);
        (0..count)
            .map(|i| noise.uniform(0, i as u64, 0) as f32 - 0.5)
            .collect()
    }

    /// Against a plain sum in `f64`, for shapes around the kernel's tile sizes.
    fn check(rows: usize, width: usize, outputs: usize, format: Format) {
        let ops = ops();
        let mut x = ops.pool.take(rows, width).unwrap();
        x.values_mut().copy_from_slice(&numbers(rows * width, 1));
        let weights = numbers(outputs * width, 2);
        let narrow: Vec<bf16> = weights.iter().map(|&v| bf16::from_f32(v)).collect();
        let (bytes, exact): (&[u8], Vec<f32>) = match format {
            Format::F32 => (bytemuck::cast_slice(&weights), weights.clone()),
            _ => (
                bytemuck::cast_slice(&narrow),
                narrow.iter().map(|v| v.to_f32()).collect(),
            ),
        };
        let weight = Weight {
            format,
            rows: outputs,
            width,
            bytes,
            epoch: 0,
        };
        let out = ops.linear(&x, &weight).unwrap();
        for row in 0..rows {
            for column in 0..outputs {
                let expected: f64 = (0..width)
                    .map(|k| f64::from(x.row(row)[k]) * f64::from(exact[column * width + k]))
                    .sum();
                let found = f64::from(out.row(row)[column]);
                assert!(
                    (found - expected).abs() <= 1e-5 * (width as f64).sqrt(),
                    "{rows}x{width}x{outputs} at {row},{column}: {found} for {expected}"
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn equals_a_plain_sum(rows in 1usize..40, width in 1usize..90, outputs in 1usize..150, wide: bool) {
            check(rows, width, outputs, if wide { Format::F32 } else { Format::Bf16 });
        }
    }

    #[test]
    fn shapes_of_a_packed_pass() {
        for rows in [64, 74, 88] {
            for (width, outputs) in [(64, 64), (64, 160), (160, 64), (64, 256)] {
                check(rows, width, outputs, Format::F32);
            }
        }
    }

    #[test]
    fn more_than_one_tile() {
        check(3, 4096, 300, Format::Bf16);
    }
}
