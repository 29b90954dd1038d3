//! Operations that only sentence encoders need.

use std::ops::Range;

use sluice_weights::Weight;

use crate::{Activation, Backend, Ops, OpsError, Phase};

impl Ops {
    /// Adds the rows of `other` to those of `x`, which are `f32`.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When sizes differ.
    pub fn add(&self, x: &mut Activation, other: &Activation) -> Result<(), OpsError> {
        assert_eq!((x.len(), x.width()), (other.len(), other.width()));
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.each_row(x, |index, row| {
                for (sum, value) in row.iter_mut().zip(other.row(index)) {
                    *sum += value;
                }
            }),
            Backend::Gpu(gpu) => gpu.add(x, other)?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Adds a vector to each row of `x`, which is `f32`.
    ///
    /// # Errors
    /// When memory cannot be allocated, or the device fails.
    ///
    /// # Panics
    /// When the widths differ.
    pub fn add_bias(&self, x: &mut Activation, bias: &Weight<'_>) -> Result<(), OpsError> {
        assert_eq!((bias.width, bias.rows), (x.width(), 1));
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => {
                let vector = self.vectors(&[*bias])?;
                let vector = vector.row(0);
                cpu.each_row(x, |_, row| {
                    for (value, bias) in row.iter_mut().zip(vector) {
                        *value += bias;
                    }
                });
            }
            Backend::Gpu(gpu) => gpu.add_bias(x, x, bias)?,
            Backend::DryRun => drop(self.vectors(&[*bias])?),
        }
        Ok(())
    }

    /// The mean of the rows in each of the ranges, one after another; zeros for an empty one. A mean depends on its own rows
    /// alone.
    ///
    /// # Errors
    /// When the device fails.
    pub fn row_means(&self, x: &Activation, ranges: &[Range<usize>]) -> Result<Vec<f32>, OpsError> {
        let width = x.width();
        let means = |values: &[f32]| {
            let mut means = vec![0.0; ranges.len() * width];
            for (mean, rows) in means.chunks_exact_mut(width).zip(ranges) {
                for row in values[rows.start * width..rows.end * width].chunks_exact(width) {
                    for (sum, value) in mean.iter_mut().zip(row) {
                        *sum += value;
                    }
                }
                let count = rows.len().max(1) as f32;
                mean.iter_mut().for_each(|sum| *sum /= count);
            }
            means
        };
        match &self.backend {
            Backend::Cpu(_) => Ok(means(x.values())),
            // A pass's rows are few beside what they took to compute.
            Backend::Gpu(gpu) => Ok(means(&gpu.read(x)?)),
            Backend::DryRun => Ok(Vec::new()),
        }
    }
}
