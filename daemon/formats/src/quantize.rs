//! Quantizes to the block formats that levels convert to and KV caches are kept in. The bytes are those of candle's
//! quantizer, as the ecosystem rounds; tests compare with it.

mod lanes;
mod q4_k;
mod q6_k;
mod q8_0;
mod signed;
mod small;

use super::Format;

impl Format {
    /// Quantizes `values` to this format: whole rows of a width that [`Format::fits`].
    ///
    /// # Panics
    /// When the values are not whole blocks, `bytes` isn't as long as [`Format::bytes`] says, or the format is one that
    /// nothing converts to.
    pub fn quantize(self, values: &[f32], bytes: &mut [u8]) {
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
            Self::Q4K => q4_k::quantize(values, bytes),
            // For rows of KV caches, whose heads are too short for the 256 weights of `q4_k`'s blocks.
            Self::Q5_0 => signed::quantize_q5_0(values, bytes),
            Self::Q4_0 => signed::quantize_q4_0(values, bytes),
            // All others only come from GGUF files.
            Self::Q5K | Self::Q5_1 | Self::Q4_1 | Self::Q3K | Self::Q2K => {
                panic!("nothing converts to {}", self.name())
            }
        }
    }
}

fn store_with(values: &[f32], bytes: &mut [u8], narrow: impl Fn(f32) -> [u8; 2]) {
    for (out, &value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(values) {
        *out = narrow(value);
    }
}

#[cfg(test)]
mod tests;
