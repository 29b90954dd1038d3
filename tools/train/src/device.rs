//! Where a run computes.

use anyhow::{Context, Result};
use candle_core::Device;
use clap::ValueEnum;

/// A kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// The processor, with the fused operations of [`crate::ops`].
    Cpu,
    /// The first NVIDIA GPU; needs a build with the feature `cuda`.
    Cuda,
}

impl DeviceKind {
    /// Opens the device.
    pub fn open(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda => Device::new_cuda(0).context(if cfg!(feature = "cuda") {
                "the first GPU cannot be used"
            } else {
                "this build has no CUDA; build with --features cuda"
            }),
        }
    }
}
