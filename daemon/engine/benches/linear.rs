//! `linear` for each storage format beside the bare `f32` kernel on the same shape, in
//! operations a second: `cargo bench -p sluice-engine --bench linear`.

use divan::{Bencher, counter::ItemsCount};
use half::bf16;
use sluice_engine::{
    device::Device,
    format::Format,
    ledger::Ledger,
    ops::{Noise, Ops},
    residency::Weight,
};

/// A layer's square projection in LLaDA-8B.
const WIDTH: usize = 4096;
const ROWS: [usize; 5] = [1, 8, 32, 128, 512];

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

fn bench(bencher: Bencher<'_, '_>, rows: usize, format: Format, bytes: &[u8]) {
    let ops = Ops::new(Device::cpu(0).unwrap(), Ledger::default()).unwrap();
    let embedding = Weight {
        format,
        rows: WIDTH,
        width: WIDTH,
        bytes,
        epoch: 0,
    };
    let ids: Vec<u32> = (0..rows as u32).collect();
    let x = ops.embed(&ids, &embedding).unwrap();
    bencher
        .counter(operations(rows))
        .bench_local(|| ops.linear(&x, &embedding).unwrap());
}

#[divan::bench(args = ROWS)]
fn linear_f32(bencher: Bencher<'_, '_>, rows: usize) {
    let weights = numbers(WIDTH * WIDTH);
    bench(bencher, rows, Format::F32, bytemuck::cast_slice(&weights));
}

#[divan::bench(args = ROWS)]
fn linear_bf16(bencher: Bencher<'_, '_>, rows: usize) {
    let weights: Vec<bf16> = numbers(WIDTH * WIDTH)
        .into_iter()
        .map(bf16::from_f32)
        .collect();
    bench(bencher, rows, Format::Bf16, bytemuck::cast_slice(&weights));
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
