//! The trellis behind error feedback: what the chunks decompress to, and what feedback gains.

use sluice_codec::CompressedMatrix;

use super::*;
use crate::{
    factor::Factor,
    feedback::columns_of,
    moments::Moments,
    testing::{correlated, gaussians},
};

const ROWS: usize = 712;
const WIDTH: usize = 256;

fn factor() -> Factor {
    let mut moments = Moments::new(WIDTH, true);
    moments.add(&correlated(11, 4 * WIDTH, WIDTH)).unwrap();
    Factor::new(&moments.second_moments().unwrap(), 1e-4).unwrap()
}

fn quantized(
    values: &[f32],
    importance: Importance<'_>,
    target: QuantizeTarget,
    feedback: bool,
) -> QuantizedColumns {
    let options = ColumnsOptions {
        dtype: DType::Bf16,
        target,
        feedback,
    };
    quantize(WIDTH, values, importance, options).unwrap()
}

fn decompressed(found: &QuantizedColumns) -> Vec<f32> {
    let mut values = Vec::new();
    for chunk in &found.chunks {
        let matrix = CompressedMatrix::new(chunk.layout.clone(), &chunk.bytes).unwrap();
        let rows = chunk.layout.rows();
        let mut part = vec![0.; rows * WIDTH];
        matrix.decompress_rows_f32(0..rows, &mut part).unwrap();
        values.extend(part);
    }
    values
}

/// tr(E H Eᵀ) of what a reader gets.
fn error(values: &[f32], decoded: &[f32], importance: Importance<'_>) -> f64 {
    let rows: Vec<usize> = (0..values.len() / WIDTH).collect();
    let weights = columns_of(values, WIDTH, &rows);
    let decoded = columns_of(decoded, WIDTH, &rows);
    let errors = importance.quantize(&weights, rows.len(), false, |column, _, out| {
        out.copy_from_slice(&decoded[column * rows.len()..][..rows.len()]);
    });
    errors.iter().sum()
}

#[test]
fn chunks_decompress_to_what_was_promised() {
    let values = gaussians(4, ROWS * WIDTH);
    let factor = factor();
    for importance in [Importance::Full(&factor), Importance::Uniform] {
        for bits in [2., 3.5] {
            let found = quantized(&values, importance, QuantizeTarget::Bits(bits), true);
            let bytes: usize = found.chunks.iter().map(|chunk| chunk.bytes.len()).sum();
            assert_eq!(found.bits, bytes as f64 * 8. / values.len() as f64);
            assert!((found.bits / bits - 1.).abs() < 0.01, "{}", found.bits);
            let rows: Vec<usize> = found
                .chunks
                .iter()
                .map(|chunk| chunk.layout.rows())
                .collect();
            assert_eq!(rows, [256, 256, 200]);

            let decoded = decompressed(&found);
            let expected = error(&values, &decoded, importance);
            assert!((found.error / expected - 1.).abs() < 1e-3);
            let power = error(&values, &vec![0.; values.len()], importance);
            assert!((found.power / power - 1.).abs() < 1e-3);
            // A step that was found gives the same again.
            let again = quantized(&values, importance, QuantizeTarget::Step(found.step), true);
            assert_eq!(again, found);
        }
    }
}

#[test]
fn steps_and_feedback_gain_what_the_factor_promises() {
    let values = gaussians(4, 512 * WIDTH);
    let factor = factor();
    let importance = Importance::Full(&factor);
    let gains = factor.rate_gains();
    for bits in [2., 3., 4.] {
        let target = QuantizeTarget::Bits(bits);
        let found = quantized(&values, Importance::Uniform, target, false);
        let plain = error(&values, &decompressed(&found), importance);
        // Bits at equal error: what is saved beside the rate that wasn't hit exactly.
        let gained = |other: &QuantizedColumns| {
            0.5 * (plain / other.error).log2() - (other.bits - found.bits)
        };
        let steps = gained(&quantized(&values, importance, target, false));
        let both = gained(&quantized(&values, importance, target, true));
        println!(
            "{bits} bits: column steps gain {steps:.3} of {:.3}, with feedback {both:.3} of {:.3}",
            gains.column_steps_bits(),
            gains.both_bits()
        );
        assert!(steps > 0.8 * gains.column_steps_bits());
        assert!(both > 0.8 * gains.both_bits());
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let values = gaussians(4, ROWS * WIDTH);
    let factor = factor();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let target = QuantizeTarget::Bits(3.);
        pool.unwrap()
            .install(|| quantized(&values, Importance::Full(&factor), target, true))
    };
    assert_eq!(with(1), with(3));
}
