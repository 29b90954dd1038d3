//! Operations that only DiffusionGemma's layers need.

use sluice_cuda::GpuSpan;
use sluice_formats::DType;
use sluice_machine::MemoryKind;
use sluice_weights::Weight;

use crate::{Activation, Backend, Indices, Ops, OpsError, Phase, device::DeviceBuffer};

/// What a pass predicts at each place of a canvas, as one token: the mean of all embeddings by their probabilities.
#[derive(Debug)]
pub struct SoftEmbeddings {
    values: DeviceBuffer<f32>,
    rows: usize,
    width: usize,
}

impl SoftEmbeddings {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements in a row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Where all rows lie on a GPU.
    pub(super) fn span(&self) -> GpuSpan {
        self.values.span()
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        self.values.host_mut()
    }

    /// The rows, to be written.
    pub(super) fn rows_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let width = self.width;
        self.values_mut().chunks_exact_mut(width)
    }
}

impl Ops {
    /// `gelu(gate) · up`, written to `gate`; GELU by the hyperbolic tangent.
    ///
    /// # Errors
    /// When the device fails.
    pub fn gelu_mul(&self, gate: &mut Activation, up: &Activation) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.gelu_mul(gate, up),
            Backend::Gpu(gpu) => gpu.gelu_mul(gate, up)?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Root-mean-square norm of each head of these rows, in place, without weights.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When a row is no whole number of heads.
    pub fn bare_norm_heads(
        &self,
        x: &mut Activation,
        head_dim: usize,
        epsilon: f32,
    ) -> Result<(), OpsError> {
        assert!(x.width().is_multiple_of(head_dim));
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.bare_norm_heads(x, head_dim, epsilon),
            Backend::Gpu(gpu) => gpu.norm_heads(x, None, head_dim, epsilon)?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Adds to each row of `out` the [root-mean-square norm](Ops::rms_norm) of the same row of `x`. Both are `f32`.
    ///
    /// # Errors
    /// When memory cannot be allocated, or the device fails.
    ///
    /// # Panics
    /// When sizes differ.
    pub fn add_rms_norm(
        &self,
        out: &mut Activation,
        x: &Activation,
        weight: &Weight<'_>,
        epsilon: f32,
    ) -> Result<(), OpsError> {
        assert_eq!((out.len(), out.width()), (x.len(), x.width()));
        let _timed = self.timed(Phase::Other);
        if let Backend::Gpu(gpu) = &self.backend {
            return gpu.add_rms_norm(out, x, weight, epsilon);
        }
        let mut scale = match self.device.is_gpu() {
            // Its kernel takes the weight as it is stored.
            true => return Ok(()),
            false => self.pool.take(1, x.width(), DType::F32)?,
        };
        if let Backend::Cpu(cpu) = &self.backend {
            cpu.add_rms_norm(out, x, weight, &mut scale, epsilon);
        }
        Ok(())
    }

    /// Multiplies all elements, which are `f32`, by a factor.
    ///
    /// # Errors
    /// When the device fails.
    pub fn scale(&self, x: &mut Activation, factor: f32) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.each_row(x, |_, row| {
                row.iter_mut().for_each(|value| *value *= factor);
            }),
            Backend::Gpu(gpu) => gpu.scale(x, x.span(), factor)?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Multiplies each row, in `f32`, by the only element of one of two weights: of the second for rows that are `chosen`, by
    /// a 1 for each.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When it isn't said for each row.
    pub fn scale_rows(
        &self,
        x: &mut Activation,
        weights: [&Weight<'_>; 2],
        chosen: &Indices,
    ) -> Result<(), OpsError> {
        assert_eq!(x.len(), chosen.len());
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => {
                let factors = weights.map(|weight| {
                    let mut factor = [0.0];
                    weight.dequantize(&mut factor);
                    factor[0]
                });
                let chosen: Vec<usize> = chosen.iter().collect();
                cpu.each_row(x, |index, row| {
                    let factor = factors[chosen[index]];
                    row.iter_mut().for_each(|value| *value *= factor);
                });
            }
            Backend::Gpu(gpu) => gpu.scale_rows(x, weights, chosen)?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Allocates memory for the predictions of `rows` rows of `width` elements.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn soft_embeddings(&self, rows: usize, width: usize) -> Result<SoftEmbeddings, OpsError> {
        let (device, kind) = (&self.device, MemoryKind::Logits);
        Ok(SoftEmbeddings {
            values: DeviceBuffer::new(device, &self.ledger, kind, rows * width)?,
            rows,
            width,
        })
    }

    /// What was predicted, times a factor.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn embed_soft(&self, soft: &SoftEmbeddings, factor: f32) -> Result<Activation, OpsError> {
        let _timed = self.timed(Phase::Other);
        let mut out = self.pool.take(soft.len(), soft.width, DType::F32)?;
        match &self.backend {
            Backend::Cpu(cpu) => cpu.each_row(&mut out, |index, row| {
                let soft = &soft.values.host()[index * soft.width..];
                for (out, value) in row.iter_mut().zip(soft) {
                    *out = value * factor;
                }
            }),
            Backend::Gpu(gpu) => gpu.scale(&out, soft.span(), factor)?,
            Backend::DryRun => {}
        }
        Ok(out)
    }
}
