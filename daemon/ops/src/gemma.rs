//! Operations that only DiffusionGemma's layers need. GPUs have none of them.

use sluice_formats::DType;
use sluice_machine::MemoryKind;
use sluice_weights::Weight;

use crate::{Activation, Backend, Ops, OpsError, Phase, device::DeviceBuffer};

/// Why no GPU comes to these operations.
const REFUSED: &str = "DiffusionGemma is refused on GPUs";

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
    pub fn gelu_mul(&self, gate: &mut Activation, up: &Activation) {
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.gelu_mul(gate, up),
            Backend::Gpu(_) => unreachable!("{REFUSED}"),
            Backend::DryRun => {}
        }
    }

    /// Root-mean-square norm of each head of these rows, in place, without weights.
    ///
    /// # Panics
    /// When a row is no whole number of heads.
    pub fn bare_norm_heads(&self, x: &mut Activation, head_dim: usize, epsilon: f32) {
        assert!(x.width().is_multiple_of(head_dim));
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.bare_norm_heads(x, head_dim, epsilon),
            Backend::Gpu(_) => unreachable!("{REFUSED}"),
            Backend::DryRun => {}
        }
    }

    /// Multiplies all elements by a factor.
    pub fn scale(&self, x: &mut Activation, factor: f32) {
        self.update(x, |_, row| {
            row.iter_mut().for_each(|value| *value *= factor);
        });
    }

    /// Multiplies each row by the only element of one of two weights: of the second for rows that are `chosen`.
    ///
    /// # Panics
    /// When it isn't said for each row.
    pub fn scale_rows(&self, x: &mut Activation, weights: [&Weight<'_>; 2], chosen: &[bool]) {
        assert_eq!(x.len(), chosen.len());
        let factors = match &self.backend {
            Backend::DryRun => [0.0; 2],
            _ => weights.map(|weight| {
                let mut factor = [0.0];
                weight.dequantize(&mut factor);
                factor[0]
            }),
        };
        self.update(x, |index, row| {
            let factor = factors[usize::from(chosen[index])];
            row.iter_mut().for_each(|value| *value *= factor);
        });
    }

    /// Adds the rows of `other` to those of `x`.
    ///
    /// # Panics
    /// When sizes differ.
    pub fn add(&self, x: &mut Activation, other: &Activation) {
        assert_eq!((x.len(), x.width()), (other.len(), other.width()));
        self.update(x, |index, row| {
            for (sum, value) in row.iter_mut().zip(other.row(index)) {
                *sum += value;
            }
        });
    }

    fn update(&self, x: &mut Activation, work: impl Fn(usize, &mut [f32]) + Send + Sync) {
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.each_row(x, work),
            Backend::Gpu(_) => unreachable!("{REFUSED}"),
            Backend::DryRun => {}
        }
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
        let mut out = self.pool.take(soft.len(), soft.width, DType::F32)?;
        self.update(&mut out, |index, row| {
            let soft = &soft.values.host()[index * soft.width..];
            for (out, value) in row.iter_mut().zip(soft) {
                *out = value * factor;
            }
        });
        Ok(out)
    }
}
