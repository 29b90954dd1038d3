//! cuBLAS, and what is done without it, on the stand-in.

use sluice_cuda::{Gpu, Matmul};
use sluice_formats::DType;
use testkit::apart;

use crate::memory::encode;

const MIB: usize = 1 << 20;

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn cublas_multiplies() {
    apart::run("cublas_multiplies", &[], || {
        const ROWS: usize = 5;
        const OUTPUTS: usize = 7;
        const WIDTH: usize = 12;
        let gpu = Gpu::open(0).unwrap();
        let blas = gpu.blas().expect("the stand-in has one");
        assert!(blas.name().starts_with("libcublas.so.12 ("));
        assert_eq!(blas.workspace_bytes(), 4 * MIB);

        // Small integers, which every dtype holds exactly, and their sums too.
        let whole = |count: usize, factor: usize| -> Vec<f32> {
            (0..count)
                .map(|i| ((i * factor) % 7) as f32 - 3.0)
                .collect()
        };
        let (x, weights) = (whole(ROWS * WIDTH, 5), whole(OUTPUTS * WIDTH, 3));
        let wanted: Vec<f32> = (0..ROWS * OUTPUTS)
            .map(|i| {
                let x = &x[i / OUTPUTS * WIDTH..][..WIDTH];
                let weights = &weights[i % OUTPUTS * WIDTH..][..WIDTH];
                x.iter().zip(weights).map(|(x, weight)| x * weight).sum()
            })
            .collect();
        for number in DType::ALL {
            let put = |numbers: &[f32]| {
                let bytes = encode(number, numbers);
                let memory = gpu.allocate(bytes.len()).unwrap();
                gpu.upload(memory.span(), &bytes).unwrap();
                memory
            };
            let (x, weights) = (put(&x), put(&weights));
            for (out_is_f32, accumulate) in [(true, false), (true, true), (false, false)] {
                let out_number = if out_is_f32 { DType::F32 } else { number };
                let out = gpu.allocate(wanted.len() * out_number.bytes()).unwrap();
                let before = if accumulate { 2.0 } else { f32::NAN };
                gpu.upload(out.span(), &encode(out_number, &vec![before; wanted.len()]))
                    .unwrap();
                blas.gemm(
                    number,
                    Matmul {
                        out: out.span(),
                        out_is_f32,
                        x: x.span(),
                        weights: weights.span(),
                        rows: ROWS,
                        outputs: OUTPUTS,
                        out_stride: OUTPUTS,
                        width: WIDTH,
                        accumulate,
                    },
                )
                .unwrap();
                let mut found = vec![0; out.span().bytes()];
                gpu.download(out.span(), &mut found).unwrap();
                let plus = if accumulate { 2.0 } else { 0.0 };
                let wanted: Vec<f32> = wanted.iter().map(|sum| sum + plus).collect();
                assert_eq!(
                    found,
                    encode(out_number, &wanted),
                    "{number:?} {out_is_f32} {accumulate}"
                );
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn without_cublas_there_is_a_reason() {
    apart::run_without(
        &["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"],
        "without_cublas_there_is_a_reason",
        &[],
        || {
            let gpu = Gpu::open(0).unwrap();
            assert!(gpu.blas().is_none());
            assert!(gpu.blas_absence().unwrap().contains("libcublas.so.12"));
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_cublas_that_cannot_compute_is_passed_over() {
    apart::run(
        "a_cublas_that_cannot_compute_is_passed_over",
        &[("STAND_IN_BLAS_FAILS", "12")],
        || {
            let gpu = Gpu::open(0).unwrap();
            let name = gpu.blas().expect("the older one").name();
            assert_eq!(name, "libcublas.so.11 (110902)");
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_cublas_that_cannot_compute_leaves_our_own_kernels() {
    apart::run_without(
        &["libcublas.so.11"],
        "a_cublas_that_cannot_compute_leaves_our_own_kernels",
        &[("STAND_IN_BLAS_FAILS", "12")],
        || {
            let gpu = Gpu::open(0).unwrap();
            assert!(gpu.blas().is_none());
            let why = gpu.blas_absence().unwrap();
            assert!(why.contains("CUBLAS_STATUS_NOT_SUPPORTED"), "{why}");
            let free = gpu.memory().unwrap().free_bytes;
            drop(gpu);
            // Nothing of the one that was tried stays.
            let gpu = Gpu::open(0).unwrap();
            assert_eq!(gpu.memory().unwrap().free_bytes, free);
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn cublas_works_in_memory_that_stays() {
    apart::run("cublas_works_in_memory_that_stays", &[], || {
        let gpu = Gpu::open(0).unwrap();
        // Another user of the GPU opens it too, and lets it go.
        drop(Gpu::open(0).unwrap());
        let memory = gpu.allocate(3 * 64 * 64 * 4).unwrap();
        let part = |index: usize| memory.span().part(index * 64 * 64 * 4, 64 * 64 * 4);
        gpu.fill(memory.span(), 0).unwrap();
        let product = Matmul {
            out: part(0),
            out_is_f32: true,
            x: part(1),
            weights: part(2),
            rows: 64,
            outputs: 64,
            out_stride: 64,
            width: 64,
            accumulate: false,
        };
        gpu.matmul(DType::F32, sluice_formats::Format::F32, product)
            .unwrap();
        let mut found = vec![1; 64 * 64 * 4];
        gpu.download(part(0), &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == 0));
    });
}
