//! Quantizing to every block format that Sluice reads. Levels convert to three of them, with loops of `sluice-formats`; to
//! the others, which are met in GGUF files alone, candle quantizes here, for tests, checks and benches.

use candle_core::{
    Device, Tensor,
    quantized::{GgmlDType, QTensor},
};
use sluice_formats::Format;

/// Stores `values` in any format; whole rows of a width that [`Format::fits`].
///
/// # Panics
/// When the values are not whole blocks, or `bytes` isn't as long as [`Format::bytes`] says.
pub fn store(format: Format, values: &[f32], bytes: &mut [u8]) {
    let kind = match format {
        Format::F32 | Format::F16 | Format::Bf16 | Format::Q8_0 | Format::Q6K | Format::Q4K => {
            return format.quantize(values, bytes);
        }
        Format::Q5K => GgmlDType::Q5K,
        Format::Q5_1 => GgmlDType::Q5_1,
        Format::Q5_0 => GgmlDType::Q5_0,
        Format::Q4_1 => GgmlDType::Q4_1,
        Format::Q4_0 => GgmlDType::Q4_0,
        Format::Q3K => GgmlDType::Q3K,
        Format::Q2K => GgmlDType::Q2K,
    };
    let blocks = Tensor::from_slice(values, values.len(), &Device::Cpu)
        .and_then(|tensor| QTensor::quantize(&tensor, kind))
        .expect("whole blocks of f32 on the CPU can be quantized");
    let data = blocks.data().expect("blocks on the CPU can be read");
    bytes.copy_from_slice(&data);
}

#[cfg(test)]
mod tests {
    use sluice_formats::noise::Noise;

    use super::*;

    const WEIGHTS: usize = 8 * 256;

    fn values() -> Vec<f32> {
        let noise = Noise::new(5);
        (0..WEIGHTS as u64)
            .map(|place| {
                let size = if place % 512 < 256 { 0.02 } else { 3.0 };
                (noise.uniform(0, place, 0) as f32 - 0.4) * size
            })
            .collect()
    }

    /// Errors are measured against the numbers' own spread; each format has its own bound.
    #[test]
    fn what_is_stored_comes_back_as_well_as_the_format_can() {
        let values = values();
        for (format, bound) in [
            (Format::F32, 0.0),
            (Format::F16, 3e-4),
            (Format::Bf16, 3e-3),
            (Format::Q8_0, 6e-3),
            (Format::Q6K, 2.5e-2),
            (Format::Q5K, 4.5e-2),
            (Format::Q5_1, 4.5e-2),
            (Format::Q5_0, 4.5e-2),
            (Format::Q4K, 9e-2),
            (Format::Q4_1, 9e-2),
            (Format::Q4_0, 9e-2),
            (Format::Q3K, 2e-1),
            (Format::Q2K, 3e-1),
        ] {
            let mut bytes = vec![0; format.bytes(WEIGHTS)];
            store(format, &values, &mut bytes);
            let mut back = vec![0.0; WEIGHTS];
            format.dequantize(&bytes, &mut back);
            let norm = |values: &mut dyn Iterator<Item = f32>| -> f32 {
                values.map(|value| value * value).sum::<f32>().sqrt()
            };
            let error = norm(&mut values.iter().zip(&back).map(|(a, b)| a - b));
            let relative = error / norm(&mut values.iter().copied());
            assert!(relative <= bound, "{}: {relative}", format.name());
        }
    }
}
