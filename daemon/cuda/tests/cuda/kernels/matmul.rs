//! Matmuls, against sums in `f64`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use half::f16;
use sluice_cuda::{Gpu, Matmul};
use sluice_formats::{DType, Format};

use super::{
    formats::{Random, dequantize, stored},
    support::{Buffer, assert_close, elements, narrow, on_gpu, rounding},
};

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_is_too_large_for_half_precision_stays_the_largest() {
    on_gpu(|gpu| {
        let values = [
            0.0,
            -0.0,
            1.0,
            -2.5,
            65504.0,
            65519.9,
            65520.0,
            -7e4,
            1e-8,
            6e-5,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        let x = Buffer::of(gpu, &values);
        for number in DType::ALL {
            let out = Buffer::new(gpu, values.len() * number.bytes());
            gpu.convert(number, out.span(), x.span(), values.len())
                .unwrap();
            let found = out.read_elements(gpu, number);
            for (found, value) in found.into_iter().zip(values) {
                let expected = narrow(number, value);
                assert!(
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                    "{}: {found} for {value}",
                    number.name()
                );
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn products_too_large_for_half_precision_stay_the_largest_by_cublas_too() {
    on_gpu(|gpu| {
        const SIDE: usize = 32;
        assert!(gpu.blas().is_some());
        let factors = |value: f32| {
            Buffer::of_elements(
                gpu,
                DType::F16,
                &vec![f16::from_f32(value).to_f32(); SIDE * SIDE],
            )
        };
        for (one, other, expected) in [
            (200.0, 200.0, 65504.0),
            (-200.0, 200.0, -65504.0),
            (2.0, 3.0, 192.0),
        ] {
            for out_stride in [SIDE, 2 * SIDE, SIDE + 1] {
                let (x, weights) = (factors(one), factors(other));
                // Between the rows is what saturating would change.
                let before = vec![f16::INFINITY.to_f32(); (SIDE - 1) * out_stride + SIDE];
                let out = Buffer::of_elements(gpu, DType::F16, &before);
                let product = Matmul {
                    out: out.span(),
                    out_is_f32: false,
                    x: x.span(),
                    weights: weights.span(),
                    rows: SIDE,
                    outputs: SIDE,
                    out_stride,
                    width: SIDE,
                    accumulate: false,
                };
                gpu.matmul(DType::F16, Format::F16, product).unwrap();
                let found = out.read_elements(gpu, DType::F16);
                for (place, found) in found.into_iter().enumerate() {
                    let expected = match place % out_stride {
                        0..SIDE => expected,
                        _ => f32::INFINITY,
                    };
                    assert_eq!(found, expected, "at {place}");
                }
            }
        }
    });
}

/// One matmul, against sums in `f64`.
fn check_matmul(
    gpu: &Gpu,
    random: &mut Random,
    number: DType,
    format: Format,
    (rows, outputs, width): (usize, usize, usize),
) {
    let x = elements(random, number, rows * width);
    let bytes = stored(random, format, outputs * width);
    // The kernel for few rows multiplies by dequantized weights; tiles hold them in the dtype of `x`.
    let mut weights = dequantize(format, &bytes);
    if rows > 8 || !(width * 2).is_multiple_of(16) {
        for weight in &mut weights {
            *weight = narrow(number, *weight);
        }
    }
    let x_there = Buffer::of_elements(gpu, number, &x);
    let weights_there = Buffer::of(gpu, &bytes);
    for (out_is_f32, accumulate, gap) in [
        (false, false, 0),
        (true, false, 0),
        (true, true, 0),
        (false, false, 3),
        (true, true, 70),
    ] {
        let out_number = if out_is_f32 { DType::F32 } else { number };
        let out_stride = outputs + gap;
        let out_len = (rows - 1) * out_stride + outputs;
        // What is not added to is poison.
        let out = if accumulate {
            Buffer::of(gpu, &vec![0.5f32; out_len])
        } else {
            Buffer::new(gpu, out_len * out_number.bytes())
        };
        let product = Matmul {
            out: out.span(),
            out_is_f32,
            x: x_there.span(),
            weights: weights_there.span(),
            rows,
            outputs,
            out_stride,
            width,
            accumulate,
        };
        gpu.matmul_by_kernels(number, format, product).unwrap();
        for (i, found) in out.read_elements(gpu, out_number).into_iter().enumerate() {
            let (row, output) = (i / out_stride, i % out_stride);
            if output >= outputs {
                // Nobody's: the next row is further on.
                assert!(if accumulate {
                    found == 0.5
                } else {
                    found.is_nan()
                });
                continue;
            }
            let (mut sum, mut size) = (0.0, 0.0);
            for k in 0..width {
                let term = f64::from(x[row * width + k]) * f64::from(weights[output * width + k]);
                sum += term;
                size += term.abs();
            }
            let expected = sum + if accumulate { 0.5 } else { 0.0 };
            let tolerance = (size + 1.0) * 1e-6 + expected.abs() * rounding(out_number);
            assert_close(found, expected, tolerance, || {
                format!(
                    "{} {} {rows}x{outputs}x{width} at {row},{output}",
                    number.name(),
                    format.name()
                )
            });
        }
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn multiply_few_rows() {
    on_gpu(|gpu| {
        let mut random = Random::new(6);
        for number in DType::ALL {
            for format in Format::ALL
                .into_iter()
                .filter(|format| format.has_gpu_matmul())
            {
                for rows in 1..=8 {
                    let width = match format.block_len() {
                        1 => [8, 40, 264, 520][rows % 4],
                        block => block * (1 + rows % 4),
                    };
                    let outputs = 1 + random.below(40);
                    check_matmul(gpu, &mut random, number, format, (rows, outputs, width));
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn multiply_in_small_tiles() {
    on_gpu(|gpu| {
        let mut random = Random::new(7);
        for number in DType::ALL {
            for format in Format::ALL
                .into_iter()
                .filter(|format| format.has_gpu_matmul())
            {
                // The first two are few rows that loads of 16 bytes cannot read.
                for (rows, outputs, width) in [
                    (1, 1, 1),
                    (8, 70, 37),
                    (9, 65, 64),
                    (64, 64, 32),
                    (63, 130, 33),
                    (65, 3, 100),
                    (130, 66, 31),
                ] {
                    let width = match format.block_len() {
                        1 => width,
                        block => block * (1 + width % 3),
                    };
                    check_matmul(gpu, &mut random, number, format, (rows, outputs, width));
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn multiply_in_large_tiles() {
    on_gpu(|gpu| {
        let mut random = Random::new(8);
        for number in DType::ALL {
            for format in Format::ALL
                .into_iter()
                .filter(|format| format.has_gpu_matmul())
            {
                let width = match format.block_len() {
                    1 => 37,
                    32 => 96,
                    block => block,
                };
                check_matmul(gpu, &mut random, number, format, (130, 31 * 128 + 5, width));
            }
            check_matmul(gpu, &mut random, number, Format::Bf16, (128, 64 * 128, 64));
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_same_shape_gives_the_same_bits() {
    on_gpu(|gpu| {
        let mut random = Random::new(9);
        let (outputs, width) = (70, 512);
        let bytes = stored(&mut random, Format::Q4K, outputs * width);
        let weights = Buffer::of(gpu, &bytes);
        let x = elements(&mut random, DType::F16, 100 * width);
        let x = Buffer::of_elements(gpu, DType::F16, &x);
        for rows in [5, 100] {
            let run = || {
                let out = Buffer::new(gpu, rows * outputs * 4);
                let product = Matmul {
                    out: out.span(),
                    out_is_f32: true,
                    x: x.span(),
                    weights: weights.span(),
                    rows,
                    outputs,
                    out_stride: outputs,
                    width,
                    accumulate: false,
                };
                gpu.matmul_by_kernels(DType::F16, Format::Q4K, product)
                    .unwrap();
                out.read::<u32>(gpu)
            };
            assert_eq!(run(), run());
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn formats_that_are_decoded_first_are_not_multiplied() {
    on_gpu(|gpu| {
        let memory = Buffer::new(gpu, 1 << 12);
        for format in Format::ALL {
            let product = Matmul {
                out: memory.span(),
                out_is_f32: true,
                x: memory.span(),
                weights: memory.span(),
                rows: 1,
                outputs: 1,
                out_stride: 1,
                width: 256,
                accumulate: false,
            };
            let multiplied = catch_unwind(AssertUnwindSafe(|| {
                gpu.matmul(DType::F32, format, product).unwrap();
            }));
            assert_eq!(multiplied.is_ok(), format.has_gpu_matmul());
        }
        gpu.synchronize().unwrap();
    });
}
