//! Quantizing to the block formats. Bytes are those of candle's quantizer, which is the ecosystem's rounding. The formats
//! that levels convert to have loops of our own, which vectors compute; for the others candle's code is called on a piece
//! of a matrix.

mod lanes;
mod q4_k;
mod q6_k;
mod q8_0;

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
        match self {
            Self::F32 => bytes.copy_from_slice(bytemuck::cast_slice(values)),
            Self::F16 => store_with(values, bytes, |value| {
                half::f16::from_f32(value).to_le_bytes()
            }),
            Self::Bf16 => store_with(values, bytes, |value| {
                half::bf16::from_f32(value).to_le_bytes()
            }),
            Self::Q8_0 => q8_0::quantize(values, bytes),
            Self::Q6K => q6_k::quantize(values, bytes),
            Self::Q5K => candle(GgmlDType::Q5K, values, bytes),
            Self::Q5_1 => candle(GgmlDType::Q5_1, values, bytes),
            Self::Q5_0 => candle(GgmlDType::Q5_0, values, bytes),
            Self::Q4K => q4_k::quantize(values, bytes),
            Self::Q4_1 => candle(GgmlDType::Q4_1, values, bytes),
            Self::Q4_0 => candle(GgmlDType::Q4_0, values, bytes),
            Self::Q3K => candle(GgmlDType::Q3K, values, bytes),
            Self::Q2K => candle(GgmlDType::Q2K, values, bytes),
        }
    }
}

/// Quantizes as candle does.
fn candle(kind: GgmlDType, values: &[f32], bytes: &mut [u8]) {
    let blocks = Tensor::from_slice(values, values.len(), &Device::Cpu)
        .and_then(|tensor| QTensor::quantize(&tensor, kind))
        .expect("whole blocks of f32 on the CPU can be quantized");
    let data = blocks.data().expect("blocks on the CPU can be read");
    bytes.copy_from_slice(&data);
}

fn store_with(values: &[f32], bytes: &mut [u8], narrow: impl Fn(f32) -> [u8; 2]) {
    for (out, &value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
        *out = narrow(value);
    }
}

#[cfg(test)]
mod tests;
