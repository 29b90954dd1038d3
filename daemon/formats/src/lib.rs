//! Storage formats: the layout of a tensor's elements in memory, and how tiles are dequantized and quantized.

mod blocks;
mod dtype;
pub mod interleaved;
pub mod noise;
mod quantize;

use half::{bf16, f16, slice::HalfFloatSliceExt};

pub use self::dtype::DType;

/// The storage format of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// 32-bit IEEE floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// GGUF's blocks of 32 signed bytes and a scale: 8.5 bits per weight.
    Q8_0,
    /// GGUF's blocks of 256 six-bit weights in 16 groups: 6.5625 bits per weight.
    Q6K,
    /// GGUF's blocks of 256 five-bit weights in 8 groups with minima: 5.5 bits per weight.
    Q5K,
    /// GGUF's blocks of 32 five-bit weights, a scale and a minimum: 6 bits per weight.
    Q5_1,
    /// GGUF's blocks of 32 five-bit weights and a scale: 5.5 bits per weight.
    Q5_0,
    /// GGUF's blocks of 256 four-bit weights in 8 groups with minima: 4.5 bits per weight.
    Q4K,
    /// GGUF's blocks of 32 four-bit weights, a scale and a minimum: 5 bits per weight.
    Q4_1,
    /// GGUF's blocks of 32 four-bit weights and a scale: 4.5 bits per weight.
    Q4_0,
    /// GGUF's blocks of 256 three-bit weights in 16 groups: 3.4375 bits per weight.
    Q3K,
    /// GGUF's blocks of 256 two-bit weights in 16 groups with minima: 2.625 bits per weight.
    Q2K,
}

/// Groups of weights that share a scale and a minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantGroups {
    /// Weights of a group.
    pub len: usize,
    /// Bits of a weight.
    pub bits: u32,
}

impl From<DType> for Format {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::Bf16 => Self::Bf16,
        }
    }
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

    /// The dtype of elements that stand alone; `None` for block formats.
    #[must_use]
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::Bf16),
            _ => None,
        }
    }

    /// Whether a GPU has a matmul kernel for this format; weights in others are dequantized there first.
    #[must_use]
    pub const fn has_gpu_matmul(self) -> bool {
        match self {
            // The formats that levels convert to; all others only come from GGUF files.
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

    /// The name that plans, logs and screens use.
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

    /// Elements of a block, the smallest piece that can be read; 1 for plain formats.
    #[must_use]
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q5_1 | Self::Q5_0 | Self::Q4_1 | Self::Q4_0 => blocks::SMALL_WEIGHTS,
            Self::Q6K | Self::Q5K | Self::Q4K | Self::Q3K | Self::Q2K => blocks::K_WEIGHTS,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => blocks::Q8_0_BYTES,
            Self::Q6K => blocks::Q6_K_BYTES,
            Self::Q5K => blocks::Q5_K_BYTES,
            Self::Q5_1 => blocks::Q5_1_BYTES,
            Self::Q5_0 => blocks::Q5_0_BYTES,
            Self::Q4K => blocks::Q4_K_BYTES,
            Self::Q4_1 => blocks::Q4_1_BYTES,
            Self::Q4_0 => blocks::Q4_0_BYTES,
            Self::Q3K => blocks::Q3_K_BYTES,
            Self::Q2K => blocks::Q2_K_BYTES,
        }
    }

    /// Bytes of `count` elements.
    ///
    /// # Panics
    /// When they are not whole blocks.
    #[must_use]
    pub const fn bytes(self, count: usize) -> usize {
        assert!(count.is_multiple_of(self.block_len()), "not whole blocks");
        count / self.block_len() * self.block_bytes()
    }

    /// Bits per weight, scales and minima included.
    #[must_use]
    pub fn bits(self) -> f64 {
        (8 * self.block_bytes()) as f64 / self.block_len() as f64
    }

    /// Whether rows of this width are whole blocks.
    #[must_use]
    pub const fn fits(self, width: usize) -> bool {
        width.is_multiple_of(self.block_len())
    }

    /// This format, or the next one up that rows of this width can be stored in: `q4_k` and `q6_k` become `q8_0`, which
    /// becomes `bf16`. Levels use only these formats.
    #[must_use]
    pub fn for_width(self, width: usize) -> Self {
        if self.fits(width) {
            self
        // Blocks of 32 fit nearly every model's widths; a plain format fits all.
        } else if Self::Q8_0.fits(width) {
            Self::Q8_0
        } else {
            Self::Bf16
        }
    }

    /// Dequantizes `bytes` into `out`, exactly up to the rounding of one product.
    ///
    /// # Panics
    /// When `bytes` isn't as long as `out.len()` elements are, or isn't aligned for the plain formats.
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), self.bytes(out.len()), "tile and source differ");
        match self {
            Self::F32 => out.copy_from_slice(bytemuck::cast_slice(bytes)),
            Self::F16 => bytemuck::cast_slice::<u8, f16>(bytes).convert_to_f32_slice(out),
            Self::Bf16 => blocks::upcast_bf16(bytes, out),
            Self::Q8_0 => blocks::decode_q8_0(bytes, out),
            Self::Q6K => blocks::decode_q6_k(bytes, out),
            Self::Q5K => blocks::decode_q5_k(bytes, out),
            Self::Q5_1 => blocks::decode_q5_1(bytes, out),
            Self::Q5_0 => blocks::decode_q5_0(bytes, out),
            Self::Q4K => blocks::decode_q4_k(bytes, out),
            Self::Q4_1 => blocks::decode_q4_1(bytes, out),
            Self::Q4_0 => blocks::decode_q4_0(bytes, out),
            Self::Q3K => blocks::decode_q3_k(bytes, out),
            Self::Q2K => blocks::decode_q2_k(bytes, out),
        }
    }

    /// The groups that [`Format::quants`] returns; `None` if the format has none.
    #[must_use]
    pub const fn groups(self) -> Option<QuantGroups> {
        // Formats of two and three bits are left out: integer kernels exist for four to eight bits.
        let (len, bits) = match self {
            Self::Q8_0 => (32, 8),
            Self::Q6K => (16, 6),
            Self::Q5K | Self::Q5_1 | Self::Q5_0 => (32, 5),
            Self::Q4K | Self::Q4_1 | Self::Q4_0 => (32, 4),
            _ => return None,
        };
        Some(QuantGroups { len, bits })
    }

    /// Unpacks quants to bytes, with a scale and a minimum for each group: an element is quant · scale + minimum.
    ///
    /// # Panics
    /// When the format has no groups, or lengths differ.
    pub fn quants(self, bytes: &[u8], out: &mut [u8], scales: &mut [f32], minima: &mut [f32]) {
        match self {
            Self::Q8_0 => blocks::quants_q8_0(bytes, out, scales, minima),
            Self::Q6K => blocks::quants_q6_k(bytes, out, scales, minima),
            Self::Q5K => blocks::quants_q5_k(bytes, out, scales, minima),
            Self::Q5_1 => blocks::quants_q5_1(bytes, out, scales, minima),
            Self::Q5_0 => blocks::quants_q5_0(bytes, out, scales, minima),
            Self::Q4K => blocks::quants_q4_k(bytes, out, scales, minima),
            Self::Q4_1 => blocks::quants_q4_1(bytes, out, scales, minima),
            Self::Q4_0 => blocks::quants_q4_0(bytes, out, scales, minima),
            _ => unreachable!("formats without groups are widened"),
        }
    }
}

/// The table above must agree with the types that plain elements are cast to.
const _: () = assert!(size_of::<bf16>() == 2 && size_of::<f16>() == 2);

#[cfg(test)]
mod tests {
    use candle_core::{
        Device, Tensor,
        quantized::{GgmlDType, QTensor},
    };

    use super::*;

    const WEIGHTS: usize = 8 * 256;

    fn values() -> Vec<f32> {
        let noise = noise::Noise::new(5);
        (0..WEIGHTS as u64)
            .map(|place| {
                let size = if place % 512 < 256 { 0.02 } else { 3.0 };
                (noise.uniform(0, place, 0) as f32 - 0.4) * size
            })
            .collect()
    }

    #[test]
    fn widening_is_exact() {
        let values = [0.0f32, -0.0, 1.0, -2.5, 65504.0, 6e-8, f32::INFINITY];
        let mut out = [0.0; 7];
        let as_bf16 = values.map(bf16::from_f32);
        Format::Bf16.dequantize(bytemuck::cast_slice(&as_bf16), &mut out);
        assert_eq!(out, as_bf16.map(bf16::to_f32));
        let as_f16 = values.map(f16::from_f32);
        Format::F16.dequantize(bytemuck::cast_slice(&as_f16), &mut out);
        assert_eq!(out, as_f16.map(f16::to_f32));
        Format::F32.dequantize(bytemuck::cast_slice(&values), &mut out);
        assert_eq!(out, values);
    }

    #[test]
    fn blocks_are_read_as_candle_reads_them() {
        for (format, kind) in [
            (Format::Q8_0, GgmlDType::Q8_0),
            (Format::Q6K, GgmlDType::Q6K),
            (Format::Q5K, GgmlDType::Q5K),
            (Format::Q5_1, GgmlDType::Q5_1),
            (Format::Q5_0, GgmlDType::Q5_0),
            (Format::Q4K, GgmlDType::Q4K),
            (Format::Q4_1, GgmlDType::Q4_1),
            (Format::Q4_0, GgmlDType::Q4_0),
            (Format::Q3K, GgmlDType::Q3K),
            (Format::Q2K, GgmlDType::Q2K),
        ] {
            let tensor = Tensor::from_vec(values(), WEIGHTS, &Device::Cpu).unwrap();
            let theirs = QTensor::quantize(&tensor, kind).unwrap();
            let bytes = theirs.data().unwrap();
            assert_eq!(bytes.len(), format.bytes(WEIGHTS), "{}", format.name());
            let expected = theirs.dequantize(&Device::Cpu).unwrap();
            let expected = expected.to_vec1::<f32>().unwrap();
            let mut found = vec![0.0; WEIGHTS];
            format.dequantize(&bytes, &mut found);
            for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
                // A product and a difference, which the CPU may round once or twice.
                let difference = (found - expected).abs();
                assert!(
                    difference <= 1e-6 * expected.abs().max(0.02),
                    "{} at {place}: {found} for {expected}",
                    format.name()
                );
            }
        }
    }

    #[test]
    fn a_width_that_blocks_cannot_divide_takes_the_next_format_up() {
        assert_eq!(Format::Q4K.for_width(512), Format::Q4K);
        assert_eq!(Format::Q4K.for_width(160), Format::Q8_0);
        assert_eq!(Format::Q6K.for_width(160), Format::Q8_0);
        assert_eq!(Format::Q8_0.for_width(72), Format::Bf16);
        assert_eq!(Format::F32.for_width(7), Format::F32);
    }
}
