//! What only DiffusionGemma's layers need, on a GPU.

use sluice_cuda::GpuSpan;
use sluice_formats::DType;
use sluice_weights::Weight;

use super::GpuBackend;
use crate::{Activation, Indices, OpsError};

impl GpuBackend {
    pub(crate) fn gelu_mul(&self, gate: &Activation, up: &Activation) -> Result<(), OpsError> {
        let count = gate.len() * gate.width();
        Ok(self
            .gpu
            .gelu_mul(gate.dtype(), gate.span(), up.span(), count)?)
    }

    pub(crate) fn add_rms_norm(
        &self,
        out: &Activation,
        x: &Activation,
        weight: &Weight<'_>,
        epsilon: f32,
    ) -> Result<(), OpsError> {
        assert_eq!((out.dtype(), x.dtype()), (DType::F32, DType::F32));
        let weight = (weight.span(), weight.format);
        let sizes = [out.len(), out.width()];
        Ok((self.gpu).add_rms_norm(out.span(), x.span(), weight, sizes, epsilon)?)
    }

    /// `x · factor` into `out`, which is `f32` like `x`.
    pub(crate) fn scale(&self, out: &Activation, x: GpuSpan, factor: f32) -> Result<(), OpsError> {
        assert_eq!(out.dtype(), DType::F32);
        Ok((self.gpu).scale(out.span(), x, factor, out.len() * out.width())?)
    }

    pub(crate) fn scale_rows(
        &self,
        x: &Activation,
        weights: [&Weight<'_>; 2],
        chosen: &Indices,
    ) -> Result<(), OpsError> {
        assert_eq!(x.dtype(), DType::F32);
        let weights = weights.map(|weight| (weight.span(), weight.format));
        let sizes = [x.len(), x.width()];
        Ok((self.gpu).scale_rows(x.span(), chosen.span(), weights, sizes)?)
    }
}
