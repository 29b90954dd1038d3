//! `linear` for each storage format compared with the bare `f32` kernel of the `gemm` crate on the same shape, and with
//! candle's own matmul, in operations a second: `cargo bench -p sluice-measure --bench linear_peers`. All shapes but the
//! first are for `f32`, `bf16`, `q8_0` and `q4_k` alone.

use candle_core::{
    Module, Tensor,
    quantized::{GgmlDType, QMatMul, QTensor},
};
use divan::{Bencher, counter::ItemsCount};
use sluice_formats::{Format, noise::Noise};
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_weights::{Weight, WeightData};

/// Columns and rows of the weights: a layer's square projection in LLaDA-8B, and layers of smaller models.
const SHAPES: [(usize, usize); 4] = [(4096, 4096), (1024, 1024), (1024, 3072), (2048, 5632)];
const ROWS: [usize; 6] = [1, 8, 32, 128, 256, 512];

/// The number of rows, and the index of the shape.
type Case = (usize, usize);

fn first() -> impl Iterator<Item = Case> {
    ROWS.into_iter().map(|rows| (rows, 0))
}

fn all() -> impl Iterator<Item = Case> {
    (0..SHAPES.len()).flat_map(|shape| ROWS.map(|rows| (rows, shape)))
}

fn main() {
    divan::main();
}

fn numbers(count: usize) -> Vec<f32> {
    let noise = Noise::new(1);
    (0..count as u64)
        .map(|i| noise.uniform(0, i, 0) as f32 - 0.5)
        .collect()
}

fn operations((rows, shape): Case) -> ItemsCount {
    let (width, outputs) = SHAPES[shape];
    ItemsCount::new(2 * rows * width * outputs)
}

fn linear(bencher: Bencher<'_, '_>, case: Case, format: Format) {
    let (rows, (width, outputs)) = (case.0, SHAPES[case.1]);
    let mut bytes = vec![0u64; format.bytes(width * outputs) / size_of::<u64>()];
    let bytes = bytemuck::cast_slice_mut(&mut bytes);
    quantize::store(format, &numbers(width * outputs), bytes);
    let ops = Ops::new(Device::cpu(0).unwrap(), Ledger::default()).unwrap();
    let weight = Weight {
        format,
        rows: outputs,
        width,
        data: WeightData::Host(bytes),
        weights_version: 0,
    };
    let ids: Vec<u32> = (0..rows as u32).collect();
    let x = ops.embed(&ids, &weight).unwrap();
    bencher
        .counter(operations(case))
        .bench_local(|| ops.linear(&x, &weight).unwrap());
}

#[divan::bench(args = all())]
fn linear_f32(bencher: Bencher<'_, '_>, case: Case) {
    linear(bencher, case, Format::F32);
}

#[divan::bench(args = first())]
fn linear_f16(bencher: Bencher<'_, '_>, case: Case) {
    linear(bencher, case, Format::F16);
}

#[divan::bench(args = all())]
fn linear_bf16(bencher: Bencher<'_, '_>, case: Case) {
    linear(bencher, case, Format::Bf16);
}

#[divan::bench(args = all())]
fn linear_q8_0(bencher: Bencher<'_, '_>, case: Case) {
    linear(bencher, case, Format::Q8_0);
}

#[divan::bench(args = first())]
fn linear_q6_k(bencher: Bencher<'_, '_>, case: Case) {
    linear(bencher, case, Format::Q6K);
}

#[divan::bench(args = all())]
fn linear_q4_k(bencher: Bencher<'_, '_>, case: Case) {
    linear(bencher, case, Format::Q4K);
}

#[divan::bench(args = first())]
fn linear_q4_1(bencher: Bencher<'_, '_>, case: Case) {
    linear(bencher, case, Format::Q4_1);
}

/// The kernel alone, on all of the machine's threads.
#[divan::bench(args = all())]
fn kernel_f32(bencher: Bencher<'_, '_>, case: Case) {
    let (rows, (width, outputs)) = (case.0, SHAPES[case.1]);
    let weights = numbers(width * outputs);
    let x = numbers(rows * width);
    let mut out = vec![0.0f32; rows * outputs];
    bencher.counter(operations(case)).bench_local(|| {
        // SAFETY: the slices hold exactly the matrices that these sizes and strides describe.
        unsafe {
            gemm::gemm(
                outputs,
                rows,
                width,
                out.as_mut_ptr(),
                outputs as isize,
                1,
                false,
                weights.as_ptr(),
                1,
                width as isize,
                x.as_ptr(),
                width as isize,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::Rayon(0),
            );
        }
    });
}

fn candle(bencher: Bencher<'_, '_>, case: Case, kind: GgmlDType) {
    let (rows, (width, outputs)) = (case.0, SHAPES[case.1]);
    let device = candle_core::Device::Cpu;
    let weights = Tensor::from_vec(numbers(width * outputs), (outputs, width), &device).unwrap();
    let weights = QTensor::quantize(&weights, kind).unwrap();
    let multiply = QMatMul::from_qtensor(weights).unwrap();
    let x = Tensor::from_vec(numbers(rows * width), (rows, width), &device).unwrap();
    bencher
        .counter(operations(case))
        .bench_local(|| multiply.forward(&x).unwrap());
}

#[divan::bench(args = first())]
fn candle_q8_0(bencher: Bencher<'_, '_>, case: Case) {
    candle(bencher, case, GgmlDType::Q8_0);
}

#[divan::bench(args = first())]
fn candle_q6_k(bencher: Bencher<'_, '_>, case: Case) {
    candle(bencher, case, GgmlDType::Q6K);
}

#[divan::bench(args = first())]
fn candle_q4_k(bencher: Bencher<'_, '_>, case: Case) {
    candle(bencher, case, GgmlDType::Q4K);
}
