//! Random matrices for tests.

use sluice_formats::noise::Noise;

/// Independent numbers with mean 0 and variance 1.
pub(crate) fn gaussians(seed: u64, count: usize) -> Vec<f32> {
    let noise = Noise::new(seed);
    let at = |place: u64| {
        let (one, other) = (noise.uniform(0, place, 0), noise.uniform(0, place, 1));
        ((-2. * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()) as f32
    };
    (0..count as u64).map(at).collect()
}

/// Rows of correlated inputs: few directions that many inputs share, beside noise, and inputs of different sizes.
pub(crate) fn correlated(seed: u64, rows: usize, width: usize) -> Vec<f32> {
    let directions = (width / 8).max(1);
    let mixing = gaussians(seed, directions * width);
    let sources = gaussians(seed + 1, rows * directions);
    let noise = gaussians(seed + 2, rows * width);
    let sizes = gaussians(seed + 3, width);
    let at = |row: usize, column: usize| {
        let shared: f32 = (0..directions)
            .map(|at| sources[row * directions + at] * mixing[at * width + column])
            .sum();
        let size = (0.5 * sizes[column]).exp();
        size * (shared / (directions as f32).sqrt() + 0.3 * noise[row * width + column])
    };
    (0..rows * width)
        .map(|place| at(place / width, place % width))
        .collect()
}
