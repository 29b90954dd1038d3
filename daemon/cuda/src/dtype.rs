//! What is computed in, and how weights are stored.

/// What activations are and products are computed in; sums are always `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floats.
    F32,
    /// IEEE half precision: on cards without [`DType::Bf16`], the only short one.
    F16,
    /// The upper half of an `f32`; needs capability 8.0.
    Bf16,
}

impl DType {
    /// All numbers.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// The name that logs and kernels use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of one.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// How a tensor's numbers are stored: as GGUF stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// Blocks of 32 signed bytes and a scale.
    Q8_0,
    /// Blocks of 256 six-bit weights in 16 groups.
    Q6K,
    /// Blocks of 256 five-bit weights in 8 groups with minima.
    Q5K,
    /// Blocks of 32 five-bit weights, a scale and a minimum.
    Q5_1,
    /// Blocks of 32 five-bit weights and a scale.
    Q5_0,
    /// Blocks of 256 four-bit weights in 8 groups with minima.
    Q4K,
    /// Blocks of 32 four-bit weights, a scale and a minimum.
    Q4_1,
    /// Blocks of 32 four-bit weights and a scale.
    Q4_0,
    /// Blocks of 256 three-bit weights in 16 groups.
    Q3K,
    /// Blocks of 256 two-bit weights in 16 groups with minima.
    Q2K,
}

impl Format {
    /// All formats, the most faithful first.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q6K,
        Self::Q5K,
        Self::Q5_1,
        Self::Q5_0,
        Self::Q4K,
        Self::Q4_1,
        Self::Q4_0,
        Self::Q3K,
        Self::Q2K,
    ];

    /// The name that logs and kernels use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q6K => "q6_k",
            Self::Q5K => "q5_k",
            Self::Q5_1 => "q5_1",
            Self::Q5_0 => "q5_0",
            Self::Q4K => "q4_k",
            Self::Q4_1 => "q4_1",
            Self::Q4_0 => "q4_0",
            Self::Q3K => "q3_k",
            Self::Q2K => "q2_k",
        }
    }

    /// Whether [`Gpu::multiply`](crate::Gpu::matmul) takes weights that are stored so. Others are decoded first, by
    /// [`Gpu::dequantize`](crate::Gpu::dequantize).
    #[must_use]
    pub const fn has_matmul(self) -> bool {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::Q8_0 | Self::Q6K | Self::Q4K => true,
            Self::Q5K
            | Self::Q5_1
            | Self::Q5_0
            | Self::Q4_1
            | Self::Q4_0
            | Self::Q3K
            | Self::Q2K => false,
        }
    }

    /// Numbers in a block: what is stored together and can only be read together.
    #[must_use]
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q5_1 | Self::Q5_0 | Self::Q4_1 | Self::Q4_0 => 32,
            Self::Q6K | Self::Q5K | Self::Q4K | Self::Q3K | Self::Q2K => 256,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => 34,
            Self::Q6K => 210,
            Self::Q5K => 176,
            Self::Q5_1 => 24,
            Self::Q5_0 => 22,
            Self::Q4K => 144,
            Self::Q4_1 => 20,
            Self::Q4_0 => 18,
            Self::Q3K => 110,
            Self::Q2K => 84,
        }
    }

    /// Bytes of `count` numbers.
    ///
    /// # Panics
    /// When they are not whole blocks.
    #[must_use]
    pub const fn bytes(self, count: usize) -> usize {
        assert!(count.is_multiple_of(self.block_len()), "not whole blocks");
        count / self.block_len() * self.block_bytes()
    }
}
