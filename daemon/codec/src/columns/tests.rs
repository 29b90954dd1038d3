//! Columns there and back, and how near they come to the rate-distortion bound.

use proptest::prelude::*;

use sluice_formats::DType;

use super::training::gaussian;
use crate::{
    ColumnsEncoder, CompressedMatrix, DecompressError, Encoded, TrellisTarget, quantize,
    simd::SimdPath,
};

/// Quantizes columns in an odd order, and returns the chunk and what its columns decode to.
fn quantized(
    rows: usize,
    width: usize,
    values: &[f32],
    step: impl Fn(usize) -> f32,
) -> (Encoded, Vec<f32>) {
    let sizes: Vec<f32> = (0..rows).map(|row| 1. + (row % 3) as f32).collect();
    let mut encoder = ColumnsEncoder::new(DType::Bf16, width, &sizes, step(0)).unwrap();
    let mut decoded = vec![-1.; rows * width];
    for column in (0..width).rev() {
        let of = column * rows..(column + 1) * rows;
        encoder.quantize_column(column, &values[of.clone()], step(column), &mut decoded[of]);
    }
    (encoder.finish().unwrap(), decoded)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Everything that decompresses gives what the encoder promised.
fn check(encoded: &Encoded, decoded: &[f32]) {
    let (rows, width) = (encoded.layout.rows(), encoded.layout.width());
    let mut matrix = CompressedMatrix::new(encoded.layout.clone(), &encoded.bytes).unwrap();
    matrix.check().unwrap();
    matrix.check_tile_bounds().unwrap();
    for path in SimdPath::all() {
        matrix.set_path(path);
        for columns in [0..width, width / 3..width - width / 4, width..width] {
            let mut out = vec![-1.; columns.len() * rows];
            matrix
                .decompress_columns_f32(columns.clone(), &mut out)
                .unwrap();
            let expected = &decoded[columns.start * rows..columns.end * rows];
            assert_eq!(bits(&out), bits(expected));
        }
        for some in [0..rows, rows / 3..rows - rows / 4] {
            let mut out = vec![-1.; some.len() * width];
            matrix.decompress_rows_f32(some.clone(), &mut out).unwrap();
            let turned: Vec<f32> = some
                .flat_map(|row| (0..width).map(move |column| column * rows + row))
                .map(|at| decoded[at])
                .collect();
            assert_eq!(bits(&out), bits(&turned));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn columns_decode_to_what_the_encoder_says(
        rows in prop_oneof![1_usize..=256, Just(256)],
        width in 1_usize..70,
        seed in any::<u64>(),
        spreads in prop::collection::vec(-4_f32..9., 70),
        outliers in prop::collection::vec((any::<prop::sample::Index>(), -4e3_f32..4e3), 0..20),
    ) {
        let mut values = gaussian(rows * width, seed | 1);
        for (at, value) in outliers {
            *at.get_mut(&mut values) = value;
        }
        let (encoded, decoded) =
            quantized(rows, width, &values, |column| (-spreads[column]).exp2());
        check(&encoded, &decoded);
    }
}

#[test]
fn odd_chunks_are_compressed_too() {
    for (rows, width) in [
        (0, 0),
        (0, 5),
        (0, 300),
        (5, 0),
        (1, 1),
        (1, 300),
        (256, 1),
        (7, 129),
    ] {
        for value in [0., 1., -2e-40, 3e30, f32::MIN_POSITIVE] {
            for step in [0., 1., 1e-20, 1e20, f32::NAN, f32::INFINITY, -1.] {
                let values = vec![value; rows * width];
                let (encoded, decoded) = quantized(rows, width, &values, |_| step);
                assert!(decoded.iter().all(|value| value.is_finite()));
                check(&encoded, &decoded);
            }
        }
    }
    let mut encoder = ColumnsEncoder::new(DType::F32, 2, &[1., 0., 0.], 0.1).unwrap();
    let mut decoded = [0.; 3];
    encoder.quantize_column(0, &[1., f32::NAN, 0.], 0.1, &mut decoded);
    encoder.quantize_column(1, &[0.; 3], 0.1, &mut decoded);
    assert!(encoder.finish().is_err());
    assert!(ColumnsEncoder::new(DType::F32, 2, &[1.; 257], 0.1).is_err());
}

#[test]
fn a_column_that_is_quantized_again_is_replaced() {
    let scaled = |scale: f32| -> Vec<f32> {
        let values = gaussian(256, 8);
        values.iter().map(|value| value * scale).collect()
    };
    // A wide one, a narrow one, and one of zeros.
    for scale in [900., 1., 0.] {
        let mut encoder = ColumnsEncoder::new(DType::F32, 1, &[1.; 256], 0.5).unwrap();
        let mut decoded = vec![0.; 256];
        for values in [scaled(300.), scaled(scale)] {
            encoder.quantize_column(0, &values, 0.5, &mut decoded);
        }
        check(&encoder.finish().unwrap(), &decoded);
    }
}

#[test]
fn columns_of_no_matrix_are_refused() {
    let (encoded, _) = quantized(3, 5, &gaussian(15, 5), |_| 0.2);
    let matrix = CompressedMatrix::new(encoded.layout, &encoded.bytes).unwrap();
    for columns in [0..6, 6..6, usize::MAX..usize::MAX] {
        let found = matrix.decompress_columns_f32(columns, &mut []);
        assert!(matches!(found, Err(DecompressError::Columns { .. })));
    }
    assert!(matches!(
        matrix.decompress_columns_f32(0..2, &mut [0.; 5]),
        Err(DecompressError::Space { .. })
    ));
}

#[test]
fn the_bits_of_columns_are_nearly_those_of_the_chunk() {
    let (rows, width) = (256, 512);
    let values = gaussian(rows * width, 9);
    let mut encoder = ColumnsEncoder::new(DType::F32, width, &[1.; 256], 0.5).unwrap();
    let mut decoded = [0.; 256];
    let bits: u32 = values
        .chunks(rows)
        .enumerate()
        .map(|(column, values)| encoder.quantize_column(column, values, 0.5, &mut decoded))
        .sum();
    let found = encoder.finish().unwrap().bytes.len() as f64 * 8.;
    assert!(
        (found / f64::from(bits) - 1.).abs() < 0.01,
        "{found} {bits}"
    );
}

#[test]
fn outliers_are_as_near_as_other_elements() {
    let mut values = gaussian(256, 21);
    for (at, value) in [(7, 4000.), (100, -900.), (200, 55.)] {
        values[at] = value;
    }
    // Four thousand steps at most, where a column has a thousand: its steps become larger.
    for (step, most) in [(1., 5.), (4., 4.)] {
        let (encoded, decoded) = quantized(256, 1, &values, |_| step);
        check(&encoded, &decoded);
        let off = values.iter().zip(&decoded).map(|(a, b)| (a - b).abs());
        let worst = off.fold(0_f32, f32::max);
        assert!(worst <= most, "{worst} at a step of {step}");
    }
}

/// Bits above the rate-distortion bound of Gaussian noise, beside the other scheme's. Shows both:
/// `cargo test -p sluice-codec --release rate_distortion -- --nocapture`
#[test]
fn columns_are_near_the_rate_distortion_bound() {
    let (rows, width) = (256, 2048);
    let values = gaussian(rows * width, 3);
    let lost = |found: &[f32]| {
        let each = values.iter().zip(found);
        let error: f64 = each.map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let all: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        error / all
    };
    for target in [1., 1.5, 2., 2.5, 3., 3.5, 4.5, 5.5, 6., 6.5, 7.5, 8.5] {
        let size = |step: f32| {
            let mut encoder = ColumnsEncoder::new(DType::F32, width, &[1.; 256], step).unwrap();
            let mut decoded = vec![0.; values.len()];
            for (column, out) in decoded.chunks_mut(rows).enumerate() {
                let values = &values[column * rows..(column + 1) * rows];
                encoder.quantize_column(column, values, step, out);
            }
            let encoded = encoder.finish().unwrap();
            let bits = encoded.bytes.len() as f64 * 8. / values.len() as f64;
            (bits, lost(&decoded))
        };
        let mut step = (2.1 - target as f32).exp2();
        for _ in 0..4 {
            step *= (size(step).0 - target).exp2() as f32;
        }
        let (bits, error) = size(step);
        let gap = bits + 0.5 * error.log2();
        println!(
            "{target}: columns {bits:.3} bits, {:.2} dB, {gap:.3} bits above the bound",
            -10. * error.log10()
        );
        // The other scheme has no code for less, and too few levels for more.
        if !(1.5..5.).contains(&target) {
            assert!(target < 1.5 || gap < 0.14, "{target}: {gap}");
            continue;
        }
        let trellis = quantize(
            DType::F32,
            rows,
            width,
            &values,
            TrellisTarget::Bits(target),
            256,
        )
        .unwrap();
        let of_trellis = trellis.bits + trellis.error.log2();
        println!(
            "    trellis {:.3} bits, {:.2} dB, {of_trellis:.3}",
            trellis.bits,
            -20. * trellis.error.log10()
        );
        assert!(gap < 0.13 && gap < of_trellis);
    }
}
