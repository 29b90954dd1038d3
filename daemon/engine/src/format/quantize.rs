//! Quantizing to the block formats. Candle's rounding is used, which is the ecosystem's; its tensors live no longer than
//! a piece of a matrix.

use candle_core::{
    Device, Tensor,
    quantized::{GgmlDType, QTensor},
};

use super::Format;

impl Format {
    /// Stores `values` in this format; whole rows of a width that [`Format::fits`].
    ///
    /// # Panics
    /// When the values are not whole blocks, or `bytes` isn't as long as [`Format::bytes`] says.
    pub fn store(self, values: &[f32], bytes: &mut [u8]) {
        assert_eq!(
            bytes.len(),
            self.bytes(values.len()),
            "tile and target differ"
        );
        let kind = match self {
            Self::F32 => return bytes.copy_from_slice(bytemuck::cast_slice(values)),
            Self::F16 => {
                return store_with(values, bytes, |value| {
                    half::f16::from_f32(value).to_le_bytes()
                });
            }
            Self::Bf16 => {
                return store_with(values, bytes, |value| {
                    half::bf16::from_f32(value).to_le_bytes()
                });
            }
            Self::Q8_0 => GgmlDType::Q8_0,
            Self::Q6K => GgmlDType::Q6K,
            Self::Q5K => GgmlDType::Q5K,
            Self::Q5_1 => GgmlDType::Q5_1,
            Self::Q5_0 => GgmlDType::Q5_0,
            Self::Q4K => GgmlDType::Q4K,
            Self::Q4_1 => GgmlDType::Q4_1,
            Self::Q4_0 => GgmlDType::Q4_0,
            Self::Q3K => GgmlDType::Q3K,
            Self::Q2K => GgmlDType::Q2K,
        };
        let blocks = Tensor::from_slice(values, values.len(), &Device::Cpu)
            .and_then(|tensor| QTensor::quantize(&tensor, kind))
            .expect("whole blocks of f32 on the CPU can be quantized");
        let data = blocks.data().expect("blocks on the CPU can be read");
        bytes.copy_from_slice(&data);
    }
}

fn store_with(values: &[f32], bytes: &mut [u8], narrow: impl Fn(f32) -> [u8; 2]) {
    for (out, &value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
        *out = narrow(value);
    }
}
