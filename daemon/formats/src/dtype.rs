//! Dtypes of plain elements: what GPUs compute in, and what the codec compresses.

use serde::{Deserialize, Serialize};

/// The dtype of an element that stands alone, unlike those of [block formats](crate::Format).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit floats.
    F32,
    /// IEEE half precision; before compute capability 8.0, the only short one of a GPU.
    F16,
    /// The upper half of an `f32`; a GPU computes in it from compute capability 8.0 on.
    Bf16,
}

impl DType {
    /// Every dtype, the widest first.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// The name that logs, kernels and files use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}
