//! Compares the columns scheme with the trellis scheme on Gaussian noise: size, error, and how long a thread
//! decompresses a weight.
//!
//! `cargo run --release -p sluice-codec --example columns`

use std::{error::Error, hint::black_box, time::Instant};

use sluice_codec::{ColumnsEncoder, CompressedMatrix, Encoded, TrellisTarget, quantize};
use sluice_formats::{DType, noise::Noise};

const ROWS: usize = 256;
const WIDTH: usize = 4096;
/// Each way is timed so often, and the fastest run counts: others use the machine, too.
const RUNS: usize = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let noise = Noise::new(1);
    let values: Vec<f32> = (0..ROWS * WIDTH)
        .map(|at| {
            let radius = (-2. * noise.uniform(0, at as u64, 0).max(1e-12).ln()).sqrt();
            let turn = std::f64::consts::TAU * noise.uniform(1, at as u64, 0);
            (radius * turn.cos()) as f32
        })
        .collect();
    for bits in [2., 2.5, 3., 3.5, 4.5, 5.5, 6.0] {
        let target = TrellisTarget::Bits(bits);
        let trellis = quantize(DType::Bf16, ROWS, WIDTH, &values, target, 256)?.encoded;
        report(&format!("{bits} bits, trellis"), &trellis, &values, false)?;
        let mut step = (2.1 - bits as f32).exp2();
        let begun = Instant::now();
        let mut columns = encoded(&values, step)?;
        let time = begun.elapsed().as_nanos() as f64 / values.len() as f64;
        for _ in 0..3 {
            step *= (columns.bytes.len() as f32 * 8. / values.len() as f32 - bits as f32).exp2();
            columns = encoded(&values, step)?;
        }
        report(&format!("{bits} bits, columns"), &columns, &values, true)?;
        println!("    compressed in {time:.0} ns a weight");
    }
    Ok(())
}

/// Row `row` of a column is element `row * WIDTH + column`, as in any matrix.
fn encoded(values: &[f32], step: f32) -> Result<Encoded, Box<dyn Error>> {
    let mut encoder = ColumnsEncoder::new(DType::Bf16, WIDTH, &[1.; ROWS], step)?;
    let mut decoded = [0.; ROWS];
    for column in 0..WIDTH {
        let values: [f32; ROWS] = std::array::from_fn(|row| values[row * WIDTH + column]);
        encoder.quantize_column(column, &values, step, &mut decoded);
    }
    Ok(encoder.finish()?)
}

fn report(
    name: &str,
    encoded: &Encoded,
    values: &[f32],
    has_columns: bool,
) -> Result<(), Box<dyn Error>> {
    let matrix = CompressedMatrix::new(encoded.layout.clone(), &encoded.bytes)?;
    let mut out = vec![0.; values.len()];
    let rows = fastest(|| matrix.decompress_rows_f32(0..ROWS, black_box(&mut out)))?;
    let squares = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|value| f64::from(value).powi(2)).sum()
    };
    let error = squares(&mut values.iter().zip(&out).map(|(one, other)| one - other));
    let error = error / squares(&mut values.iter().copied());
    let bits = encoded.bytes.len() as f64 * 8. / values.len() as f64;
    println!(
        "{name}: {bits:.3} bits, {:.2} dB, {:.3} bits above the rate-distortion bound",
        -10. * error.log10(),
        bits + 0.5 * error.log2()
    );
    println!("    all rows: {rows:.2} ns a weight");
    if has_columns {
        // As a matmul does it: some columns at a time, into the cache.
        let mut some = vec![0.; 48 * ROWS];
        let columns = fastest(|| {
            (0..WIDTH).step_by(48).try_for_each(|first| {
                let columns = first..WIDTH.min(first + 48);
                let some = &mut some[..columns.len() * ROWS];
                matrix.decompress_columns_f32(columns, black_box(some))
            })
        })?;
        println!("    48 columns at a time: {columns:.2} ns a weight");
        let columns = fastest(|| matrix.decompress_columns_f32(0..WIDTH, black_box(&mut out)))?;
        println!("    all columns: {columns:.2} ns a weight");
    }
    Ok(())
}

/// Nanoseconds a weight of the fastest run.
fn fastest<E>(mut run: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut least = f64::INFINITY;
    for _ in 0..RUNS {
        let begun = Instant::now();
        run()?;
        least = least.min(begun.elapsed().as_nanos() as f64);
    }
    Ok(least / (ROWS * WIDTH) as f64)
}
