use sluice_formats::noise::Noise;

use super::*;

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let noise = Noise::new(seed);
    (0..count)
        .map(|i| noise.uniform(0, i as u64, 0) as f32 - 0.5)
        .collect()
}

#[test]
fn scores_and_weighted_sums_are_those_of_the_elements() {
    const COUNT: usize = 21;
    let formats = [Format::F32, Format::F16, Format::Bf16, Format::Q8_0];
    for (format, dim) in formats
        .into_iter()
        .flat_map(|format| [32, 64, 96, 128, 256].map(|dim| (format, dim)))
    {
        let head = format.bytes(dim);
        // Another head's bytes between rows.
        let stride = head + format.bytes(64);
        let mut words = vec![0_u32; (COUNT * stride).div_ceil(4)];
        let bytes: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut words)[..COUNT * stride];
        quantize::store(format, &numbers(COUNT * (dim + 64), 1), bytes);
        let rows = StoredRows {
            bytes: &bytes[..(COUNT - 1) * stride + head],
            stride,
            count: COUNT,
        };
        let mut elements = vec![0.0; COUNT * dim];
        for (row, out) in elements.chunks_exact_mut(dim).enumerate() {
            format.dequantize(&bytes[row * stride..][..head], out);
        }
        let (query, weights, before) = (numbers(dim, 2), numbers(COUNT, 3), numbers(dim, 4));
        for &instructions in Instructions::all() {
            let Some(kernels) = Kernels::of(instructions, format, dim) else {
                assert!(instructions == Instructions::PORTABLE && format != Format::F32);
                continue;
            };
            let (mut scores, mut out) = (vec![0.0; COUNT], before.clone());
            kernels.score(&query, dim, rows, &mut scores);
            kernels.weigh(&weights, rows, &mut out, dim);
            for (score, key) in scores.iter().zip(elements.chunks_exact(dim)) {
                let products = key
                    .iter()
                    .zip(&query)
                    .map(|(k, q)| f64::from(*k) * f64::from(*q));
                assert!((f64::from(*score) - products.sum::<f64>()).abs() < 1e-5);
            }
            for (at, out) in out.iter().enumerate() {
                let values = elements.iter().skip(at).step_by(dim).zip(&weights);
                let sum: f64 = values.map(|(v, w)| f64::from(*v) * f64::from(*w)).sum();
                assert!((f64::from(*out) - f64::from(before[at]) - sum).abs() < 1e-5);
            }
        }
    }
    // Not whole pieces, and blocks that are longer than those.
    assert!(Kernels::of(Instructions::best(), Format::F32, 40).is_none());
    assert!(Kernels::of(Instructions::best(), Format::Q8_0, 48).is_none());
}
