//! Products of bf16 against plain sums of rounded factors.

use half::bf16;

use super::*;

/// Devices of all instructions, with products of bf16.
pub(super) fn devices() -> impl Iterator<Item = Device> {
    let all = Instructions::all().iter();
    all.map(|&instructions| {
        let device = Device::cpu(2).unwrap().with_instructions(instructions);
        device.with_bf16_products()
    })
}

/// Compares with a sum in `f64` of what both sides are rounded to.
pub(super) fn check_rounded(
    device: &Device,
    rows: usize,
    width: usize,
    outputs: usize,
    format: Format,
) {
    let ops = Ops::new(device.clone(), Ledger::default()).unwrap();
    assert!(ops.rounds_rows(format));
    let x = numbers(rows * width, 1);
    let words = stored(outputs * width, format);
    let weight = weight(&words, outputs, width, format);
    let mut weights = vec![0.0; outputs * width];
    weight.dequantize(&mut weights);
    let rounded = |values: &[f32]| -> Vec<f64> {
        let values = values.iter().map(|&value| bf16::from_f32(value).to_f64());
        values.collect()
    };
    let (x_rounded, weights) = (rounded(&x), rounded(&weights));
    let x = ops.matrix(rows, width, &x, DType::F32).unwrap();
    let out = ops.linear(&x, &weight).unwrap();
    for (row, x) in x_rounded.chunks_exact(width).enumerate() {
        for (found, weights) in out.row(row).iter().zip(weights.chunks_exact(width)) {
            let expected: f64 = x.iter().zip(weights).map(|(x, weight)| x * weight).sum();
            assert!(
                (f64::from(*found) - expected).abs() <= 1e-6 * (width as f64).sqrt(),
                "{device:?} {format:?} {rows}x{width}x{outputs}: {found} for {expected}"
            );
        }
    }
}

#[test]
fn factors_are_rounded_and_sums_are_not() {
    for device in devices() {
        for format in [Format::F32, Format::F16, Format::Bf16] {
            for (rows, width, outputs) in [
                (1, 1, 1),
                (1, 256, 40),
                (3, 77, 33),
                (12, DEPTH + 1, 16),
                (13, 2 * DEPTH + 18, 70),
                (MANY, 96, 17),
            ] {
                check_rounded(&device, rows, width, outputs, format);
            }
        }
    }
}

/// What rounding costs: no more than bf16's eight bits can.
#[test]
fn rounded_factors_are_near_the_exact_ones() {
    const SIDE: usize = 512;
    let x = numbers(40 * SIDE, 1);
    let words = stored(SIDE * SIDE, Format::Bf16);
    let weight = weight(&words, SIDE, SIDE, Format::Bf16);
    let product = |device| {
        let ops = Ops::new(device, Ledger::default()).unwrap();
        let x = ops.matrix(40, SIDE, &x, DType::F32).unwrap();
        ops.linear(&x, &weight).unwrap().values().to_vec()
    };
    let exact = product(Device::cpu(2).unwrap());
    let squares: f32 = exact.iter().map(|value| value * value).sum();
    for device in devices() {
        let found = product(device);
        let pairs = found.iter().zip(&exact);
        let errors: f32 = pairs.map(|(found, exact)| (found - exact).powi(2)).sum();
        let error = (errors / squares).sqrt();
        println!("{error:.2e}");
        assert!((1e-4..2.5e-3).contains(&error), "{error}");
    }
}

/// Weights in blocks have kernels of their own, whatever plain weights are multiplied in.
#[test]
fn blocks_are_multiplied_as_ever() {
    const WIDTH: usize = 512;
    let x = numbers(3 * WIDTH, 1);
    for device in devices() {
        let exact = Device::cpu(2).unwrap();
        let exact = exact.with_instructions(device.instructions());
        for format in [Format::Q8_0, Format::Q4K] {
            let words = stored(40 * WIDTH, format);
            let weight = weight(&words, 40, WIDTH, format);
            let [found, expected] = [&device, &exact].map(|device| {
                let ops = Ops::new(device.clone(), Ledger::default()).unwrap();
                let x = ops.matrix(3, WIDTH, &x, DType::F32).unwrap();
                ops.linear(&x, &weight).unwrap().values().to_vec()
            });
            assert_eq!(found, expected, "{format:?}");
        }
    }
}
