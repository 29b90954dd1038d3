//! The numbers that are coded: each falls into one symbol, which is worth coding, and the rest, which is as good as noise.

use serde::{Deserialize, Serialize};

/// What the numbers of a matrix are, before they are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// The symbol is the exponent, the rest sign and mantissa.
    Bf16,
    /// The symbol is the high byte: sign, exponent, and two bits of the mantissa; the rest is the low byte.
    F16,
    /// The symbol is the exponent, the rest sign and mantissa, three bytes.
    F32,
}

impl DType {
    /// Every kind of number.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::F16, Self::F32];

    /// Bytes of one number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Bytes of one number that are kept as they are.
    #[must_use]
    pub const fn raw_bytes(self) -> usize {
        self.bytes() - 1
    }
}
