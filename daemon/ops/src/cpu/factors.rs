//! What rows of `x` and weights are multiplied as: `f32`, or bf16 where that was asked for.

use sluice_formats::{DType, Format};

use super::{
    microkernel::{
        RowPanels, pair_kernel,
        pairs::{Begun, PairKernel},
    },
    vectors::with_vectors,
};
use crate::device::Device;

/// What rows of `x` and weights are multiplied as.
#[derive(Clone, Copy)]
pub(super) enum Factors {
    /// `f32`.
    Unrounded,
    /// bf16, which `f32` kernels multiply.
    Rounded,
    /// bf16, which are multiplied in pairs.
    Pairs(&'static dyn PairKernel),
}

impl Factors {
    pub(super) fn of(device: &Device, format: Format) -> Self {
        if !rounds_to_bf16(device, format) {
            return Self::Unrounded;
        }
        pair_kernel(device.instructions()).map_or(Self::Rounded, Self::Pairs)
    }

    /// Prepares this thread for products of these panels, until what it returns is dropped.
    pub(super) fn begin(self, panels: &RowPanels) -> Option<Begun> {
        match self {
            // SAFETY: `pair_kernel` made sure of the instructions.
            Self::Pairs(kernel) => Some(unsafe { Begun::new(kernel, panels) }),
            Self::Unrounded | Self::Rounded => None,
        }
    }
}

/// Whether the CPU rounds rows and weights of this format to bf16 before it multiplies them: not those of blocks, which have
/// kernels and errors of their own.
pub(super) fn rounds_to_bf16(device: &Device, format: Format) -> bool {
    device.product_dtype() == DType::Bf16 && format.block_len() == 1
}

#[inline(always)]
fn round_body(values: &mut [f32]) {
    for value in values {
        *value = half::bf16::from_f32(*value).to_f32();
    }
}

with_vectors! {
    /// Rounds elements to bf16, to nearest even.
    round_to_bf16, round_body, (values: &mut [f32])
}
