//! Quantizing one row after another on one thread, ours beside candle's, in weights a second: `cargo bench -p sluice-measure
//! --bench quantize`, with `--profile dev` as tests and daemon are built.

use candle_core::{
    Device, Tensor,
    quantized::{GgmlDType, QTensor},
};
use divan::{Bencher, counter::ItemsCount};
use sluice_formats::{Format, noise::Noise};

/// A piece as conversion takes it: rows of LLaDA-8B's width.
const WEIGHTS: usize = 32 * 4096;

const FORMATS: [Format; 5] = [
    Format::Q8_0,
    Format::Q6K,
    Format::Q5_0,
    Format::Q4K,
    Format::Q4_0,
];

fn main() {
    divan::main();
}

/// Random-normal weights, as trained ones nearly are.
fn weights() -> Vec<f32> {
    let noise = Noise::new(1);
    (0..WEIGHTS as u64)
        .map(|place| {
            let (a, b) = (noise.uniform(0, place, 0), noise.uniform(0, place, 1));
            let radius = (-2.0 * a.max(1e-12).ln()).sqrt();
            (0.02 * radius * (std::f64::consts::TAU * b).cos()) as f32
        })
        .collect()
}

fn kind(format: Format) -> GgmlDType {
    match format {
        Format::Q8_0 => GgmlDType::Q8_0,
        Format::Q6K => GgmlDType::Q6K,
        Format::Q5_0 => GgmlDType::Q5_0,
        Format::Q4_0 => GgmlDType::Q4_0,
        _ => GgmlDType::Q4K,
    }
}

#[divan::bench(args = FORMATS)]
fn ours(bencher: Bencher<'_, '_>, format: Format) {
    let weights = weights();
    let mut bytes = vec![0; format.bytes(WEIGHTS)];
    bencher
        .counter(ItemsCount::new(WEIGHTS))
        .bench_local(|| format.quantize(&weights, &mut bytes));
}

#[divan::bench(args = FORMATS)]
fn candle(bencher: Bencher<'_, '_>, format: Format) {
    let weights = weights();
    bencher.counter(ItemsCount::new(WEIGHTS)).bench_local(|| {
        let tensor = Tensor::from_slice(&weights, WEIGHTS, &Device::Cpu).unwrap();
        QTensor::quantize(&tensor, kind(format)).unwrap()
    });
}
