//! Blocks are compared with the plain quantizers by what a reader of GGUF dequantizes.

use super::*;
use crate::{
    factor::Factor,
    moments::{Moments, SecondMoments},
    testing::{correlated, gaussians},
};

const FORMATS: [Format; 4] = [Format::Q8_0, Format::Q6K, Format::Q4K, Format::Q4_0];
const WIDTH: usize = 512;

fn back(format: Format, bytes: &[u8], count: usize) -> Vec<f32> {
    let mut decoded = vec![0.; count];
    format.dequantize(bytes, &mut decoded);
    decoded
}

fn squared_error(values: &[f32], decoded: &[f32], moments: Option<&[f32]>) -> f64 {
    let places = values.iter().zip(decoded).enumerate();
    places
        .map(|(at, (value, decoded))| {
            let moment = moments.map_or(1., |moments| moments[at % WIDTH]);
            f64::from(moment) * f64::from(value - decoded).powi(2)
        })
        .sum()
}

fn plain(format: Format, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; format.bytes(values.len())];
    format.quantize(values, &mut bytes);
    back(format, &bytes, values.len())
}

fn moments() -> SecondMoments {
    let mut moments = Moments::new(WIDTH, true);
    moments.add(&correlated(8, 3 * WIDTH, WIDTH)).unwrap();
    moments.second_moments().unwrap()
}

#[test]
fn without_importance_nothing_is_worse_than_plain() {
    let values = gaussians(1, 40 * WIDTH);
    for format in FORMATS {
        let found = quantize(format, WIDTH, &values, Importance::Uniform, false).unwrap();
        let decoded = back(format, &found.bytes, values.len());
        let error = squared_error(&values, &decoded, None);
        assert!((found.error / error - 1.).abs() < 1e-4, "{}", format.name());
        if format == Format::Q4_0 {
            // 4.5 bits, 21.3 dB with the largest weight's scale alone.
            assert!(
                found.relative_error() < 0.0075,
                "{}",
                found.relative_error()
            );
            continue;
        }
        let before = squared_error(&values, &plain(format, &values), None);
        println!("{}: {:.4} of plain", format.name(), error / before);
        assert!(error <= before);
    }
}

#[test]
fn importance_lessens_the_error_that_it_weighs() {
    let values = gaussians(2, 40 * WIDTH);
    let diagonal = moments().diagonal();
    for format in FORMATS {
        let importance = Importance::Diagonal(&diagonal);
        let found = quantize(format, WIDTH, &values, importance, false).unwrap();
        let decoded = back(format, &found.bytes, values.len());
        let error = squared_error(&values, &decoded, Some(&diagonal));
        let uniform = quantize(format, WIDTH, &values, Importance::Uniform, false).unwrap();
        let before = back(format, &uniform.bytes, values.len());
        let before = squared_error(&values, &before, Some(&diagonal));
        println!("{}: {:.4} of unweighted", format.name(), error / before);
        assert!(error < before, "{}", format.name());
        assert!((found.error / error - 1.).abs() < 1e-3, "{}", format.name());
    }
}

#[test]
fn feedback_lessens_the_error_of_the_outputs() {
    let values = gaussians(3, 300 * WIDTH);
    let factor = Factor::new(&moments(), 1e-2).unwrap();
    for format in FORMATS {
        let importance = Importance::Full(&factor);
        let without = quantize(format, WIDTH, &values, importance, false).unwrap();
        let with = quantize(format, WIDTH, &values, importance, true).unwrap();
        println!(
            "{}: {:.4} of none",
            format.name(),
            with.error / without.error
        );
        assert!(with.error < 0.6 * without.error, "{}", format.name());

        // What the bytes say, not only what was computed on the way.
        let decoded = back(format, &with.bytes, values.len());
        let rows: Vec<usize> = (0..300).collect();
        let decoded = columns_of(&decoded, WIDTH, &rows);
        let weights = columns_of(&values, WIDTH, &rows);
        let errors = importance.quantize(&weights, 300, false, |column, _, out| {
            out.copy_from_slice(&decoded[column * 300..][..300]);
        });
        let error: f64 = errors.iter().sum();
        assert!((with.error / error - 1.).abs() < 1e-3, "{}", format.name());
    }
}

#[test]
fn odd_weights_become_blocks_that_are_finite() {
    let mut values = gaussians(4, 4 * WIDTH);
    values[..256].fill(0.);
    values[256..512].fill(-0.3);
    values[512..768].fill(0.7);
    values[768..1024]
        .iter_mut()
        .for_each(|value| *value *= 1e-30);
    values[1024..1280]
        .iter_mut()
        .for_each(|value| *value *= 1e30);
    let mut diagonal = vec![1.; WIDTH];
    diagonal[..300].fill(0.);
    for format in FORMATS {
        for importance in [Importance::Uniform, Importance::Diagonal(&diagonal)] {
            let found = quantize(format, WIDTH, &values, importance, true).unwrap();
            let decoded = back(format, &found.bytes, values.len());
            assert!(
                decoded.iter().all(|value| value.is_finite()),
                "{}",
                format.name()
            );
            assert!(decoded[..256].iter().all(|value| *value == 0.));
            let near = |range: std::ops::Range<usize>, expected: f32| {
                decoded[range]
                    .iter()
                    .all(|value| (value - expected).abs() < 0.02)
            };
            assert!(
                near(300..512, -0.3) && near(812 - 256..768, 0.7),
                "{}",
                format.name()
            );
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let values = gaussians(5, 300 * WIDTH);
    let factor = Factor::new(&moments(), 1e-2).unwrap();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.unwrap()
            .install(|| quantize(Format::Q4K, WIDTH, &values, Importance::Full(&factor), true))
    };
    assert_eq!(with(1), with(3));
}

#[test]
fn what_cannot_be_blocks_is_said() {
    let quantize = |format, width, values: &[f32]| {
        quantize(format, width, values, Importance::Uniform, false).unwrap_err()
    };
    assert_eq!(
        quantize(Format::Q5K, 256, &[0.; 256]),
        BlocksError::Format(Format::Q5K)
    );
    let (format, width) = (Format::Q4K, 32);
    assert_eq!(
        quantize(format, width, &[0.; 64]),
        BlocksError::Width { format, width }
    );
    let found = quantize(Format::Q8_0, 32, &[f32::NAN; 32]);
    assert_eq!(found, MatrixError::NotFinite { row: 0, column: 0 }.into());
}
