//! `linear` for each storage format beside the bare `f32` kernel on the same shape, and
//! candle's own multiply beside them, in operations a second:
//! `cargo bench -p sluice-engine --bench linear`.

use candle_core::{
    Module, Tensor,
    quantized::{GgmlDType, QMatMul, QTensor},
};
use divan::{Bencher, counter::ItemsCount};
use sluice_engine::{
    device::Device,
    format::Format,
    ledger::Ledger,
    ops::{Noise, Ops},
    residency::{Data, Weight},
};

/// A layer's square projection in LLaDA-8B.
const WIDTH: usize = 4096;
const ROWS: [usize; 7] = [1, 2, 4, 8, 32, 128, 512];

fn main() {
    divan::main();
}

fn numbers(count: usize) -> Vec<f32> {
    let noise = Noise::new(1);
    (0..count as u64)
        .map(|i| noise.uniform(0, i, 0) as f32 - 0.5)
        .collect()
}

fn operations(rows: usize) -> ItemsCount {
    ItemsCount::new(2 * rows * WIDTH * WIDTH)
}

fn linear(bencher: Bencher<'_, '_>, rows: usize, format: Format) {
    let mut bytes = vec![0u64; format.bytes(WIDTH * WIDTH) / size_of::<u64>()];
    let bytes = bytemuck::cast_slice_mut(&mut bytes);
    format.store(&numbers(WIDTH * WIDTH), bytes);
    let ops = Ops::new(Device::cpu(0).unwrap(), Ledger::default()).unwrap();
    let weight = Weight {
        format,
        rows: WIDTH,
        width: WIDTH,
        data: Data::Host(bytes),
        epoch: 0,
    };
    let ids: Vec<u32> = (0..rows as u32).collect();
    let x = ops.embed(&ids, &weight).unwrap();
    bencher
        .counter(operations(rows))
        .bench_local(|| ops.linear(&x, &weight).unwrap());
}

#[divan::bench(args = ROWS)]
fn linear_f32(bencher: Bencher<'_, '_>, rows: usize) {
    linear(bencher, rows, Format::F32);
}

#[divan::bench(args = ROWS)]
fn linear_f16(bencher: Bencher<'_, '_>, rows: usize) {
    linear(bencher, rows, Format::F16);
}

#[divan::bench(args = ROWS)]
fn linear_bf16(bencher: Bencher<'_, '_>, rows: usize) {
    linear(bencher, rows, Format::Bf16);
}

#[divan::bench(args = ROWS)]
fn linear_q8_0(bencher: Bencher<'_, '_>, rows: usize) {
    linear(bencher, rows, Format::Q8_0);
}

#[divan::bench(args = ROWS)]
fn linear_q6_k(bencher: Bencher<'_, '_>, rows: usize) {
    linear(bencher, rows, Format::Q6K);
}

#[divan::bench(args = ROWS)]
fn linear_q4_k(bencher: Bencher<'_, '_>, rows: usize) {
    linear(bencher, rows, Format::Q4K);
}

#[divan::bench(args = ROWS)]
fn linear_q4_1(bencher: Bencher<'_, '_>, rows: usize) {
    linear(bencher, rows, Format::Q4_1);
}

/// The kernel alone, on all of the machine's threads.
#[divan::bench(args = ROWS)]
fn kernel_f32(bencher: Bencher<'_, '_>, rows: usize) {
    let weights = numbers(WIDTH * WIDTH);
    let x = numbers(rows * WIDTH);
    let mut out = vec![0.0f32; rows * WIDTH];
    bencher.counter(operations(rows)).bench_local(|| {
        // SAFETY: the slices hold exactly the matrices that these sizes and strides describe.
        unsafe {
            gemm::gemm(
                WIDTH,
                rows,
                WIDTH,
                out.as_mut_ptr(),
                WIDTH as isize,
                1,
                false,
                weights.as_ptr(),
                1,
                WIDTH as isize,
                x.as_ptr(),
                WIDTH as isize,
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

fn candle(bencher: Bencher<'_, '_>, rows: usize, kind: GgmlDType) {
    let device = candle_core::Device::Cpu;
    let weights = Tensor::from_vec(numbers(WIDTH * WIDTH), (WIDTH, WIDTH), &device).unwrap();
    let weights = QTensor::quantize(&weights, kind).unwrap();
    let multiply = QMatMul::from_qtensor(weights).unwrap();
    let x = Tensor::from_vec(numbers(rows * WIDTH), (rows, WIDTH), &device).unwrap();
    bencher
        .counter(operations(rows))
        .bench_local(|| multiply.forward(&x).unwrap());
}

#[divan::bench(args = ROWS)]
fn candle_q8_0(bencher: Bencher<'_, '_>, rows: usize) {
    candle(bencher, rows, GgmlDType::Q8_0);
}

#[divan::bench(args = ROWS)]
fn candle_q6_k(bencher: Bencher<'_, '_>, rows: usize) {
    candle(bencher, rows, GgmlDType::Q6K);
}

#[divan::bench(args = ROWS)]
fn candle_q4_k(bencher: Bencher<'_, '_>, rows: usize) {
    candle(bencher, rows, GgmlDType::Q4K);
}
