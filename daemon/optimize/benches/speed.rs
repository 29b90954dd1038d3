//! Measures the optimizer's mathematics on random matrices of real sizes, on all threads.
//!
//! `cargo bench -p sluice-optimize --bench speed --profile dev` prints a line for each; `-- NAME` runs those whose name contains it.

use std::time::Instant;

use sluice_formats::{DType, Format, noise::Noise};
use sluice_optimize::{
    blocks,
    columns::{self, ColumnsOptions, QuantizeTarget},
    factor::{DAMPING, Factor},
    feedback::Importance,
    moments::{Moments, SecondMoments},
    prune,
};

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|name| !name.starts_with('-'))
        .collect();
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    if is_wanted("moments") {
        time_moments(4096, 4096);
    }
    if is_wanted("factor") {
        [2048, 4096, 12288].into_iter().for_each(time_factor);
    }
    if is_wanted("columns") {
        [1024, 4096].into_iter().for_each(time_columns);
    }
    if is_wanted("blocks") {
        time_blocks(1024);
    }
    if is_wanted("prune") {
        time_pruning(2048, 1024);
    }
}

fn time_moments(width: usize, rows: usize) {
    let inputs = numbers(1, width * rows);
    let mut moments = Moments::new(width, true);
    // The first touch of the tiles' memory isn't what later rows cost.
    moments.add(&inputs[..width * 256]).expect("finite rows");
    let start = Start::now();
    moments.add(&inputs).expect("finite rows");
    // Half of the products: the matrix is symmetric.
    let operations = (width * width) as f64 * rows as f64;
    report(
        &format!("moments {width}, {rows} rows"),
        &start,
        operations,
        None,
    );
}

fn time_factor(width: usize) {
    // Neighbours of an autoregressive process resemble each other.
    let at = |place: usize| (-((place / width).abs_diff(place % width) as f32) / 16.).exp();
    let values = (0..width * width).map(at).collect();
    let moments = SecondMoments::new(width, values).expect("a square matrix");
    let start = Start::now();
    let factor = Factor::new(&moments, DAMPING).expect("the matrix is positive definite");
    let operations = (width as f64).powi(3) / 3.;
    report(&format!("factor {width}"), &start, operations, None);
    println!("  {:?}", factor.rate_gains());
}

fn time_columns(width: usize) {
    let factor = &Factor::new(&inputs_of(width), DAMPING).expect("random inputs have a factor");
    let weights = numbers(3, width * width);
    let run = |name: &str, importance, target, feedback| {
        let options = ColumnsOptions {
            dtype: DType::Bf16,
            target,
            feedback,
        };
        let start = Start::now();
        let found = columns::quantize(width, &weights, importance, options);
        report(
            &format!("columns {width}, {name}"),
            &start,
            0.,
            Some(weights.len()),
        );
        let found = found.expect("finite weights");
        println!(
            "  {:.3} bits, relative error {:.5}",
            found.bits,
            found.relative_error()
        );
        QuantizeTarget::Step(found.step)
    };
    let bits = QuantizeTarget::Bits(3.5);
    let step = run(
        "step searched, feedback",
        Importance::Full(factor),
        bits,
        true,
    );
    run("step given, feedback", Importance::Full(factor), step, true);
    run(
        "step given, no feedback",
        Importance::Full(factor),
        step,
        false,
    );
}

fn time_pruning(width: usize, outputs: usize) {
    let (moments, weight) = (inputs_of(width), numbers(2, outputs * width));
    let start = Start::now();
    let order = prune::removal_order(&weight, &moments, 1, width / 10, 1e-2);
    let name = format!("prune: a tenth of {width} inputs of {outputs} outputs");
    report(&name, &start, 0., None);
    let removed = order.expect("random inputs have an order").order;
    let kept: Vec<usize> = (0..width)
        .filter(|input| !removed.contains(input))
        .collect();
    let start = Start::now();
    let found = prune::compensate(&weight, &moments, &kept, 1e-2);
    report("prune: compensation", &start, 0., None);
    let found = found.expect("random inputs have a factor");
    println!(
        "  error {:.4} of that without",
        found.error / found.error_before
    );
}

fn time_blocks(width: usize) {
    let factor = &Factor::new(&inputs_of(width), DAMPING).expect("random inputs have a factor");
    let weights = numbers(4, 4 * width * width);
    for format in [Format::Q8_0, Format::Q6K, Format::Q4K, Format::Q4_0] {
        for (name, importance, feedback) in [
            ("no statistics", Importance::Uniform, false),
            ("feedback", Importance::Full(factor), true),
        ] {
            let start = Start::now();
            let found = blocks::quantize(format, width, &weights, importance, feedback);
            report(
                &format!("blocks {}, {name}", format.name()),
                &start,
                0.,
                Some(weights.len()),
            );
            let found = found.expect("finite weights");
            println!("  relative error {:.6}", found.relative_error());
        }
    }
}

/// Second moments of inputs that share directions.
fn inputs_of(width: usize) -> SecondMoments {
    let (rows, shared) = (2 * width, 64);
    let (own, sources) = (numbers(5, rows * width), numbers(6, rows * shared));
    let inputs: Vec<f32> = (0..rows * width)
        .map(|at| {
            let (row, column) = (at / width, at % width);
            // Each input follows one of the sources, the first ones more closely.
            let source = sources[row * shared + column % shared];
            own[at] + source * 4. / (1. + (column % shared) as f32).sqrt()
        })
        .collect();
    let mut moments = Moments::new(width, true);
    moments.add(&inputs).expect("finite rows");
    moments
        .second_moments()
        .expect("the whole matrix was asked for")
}

/// Nearly Gaussian numbers: the sum of four uniform ones.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let noise = Noise::new(seed);
    let one = |place: u64| {
        let sum: f64 = (0..4).map(|term| noise.uniform(0, place, term)).sum();
        ((sum - 2.) * 3_f64.sqrt()) as f32
    };
    (0..count as u64).map(one).collect()
}

/// Wall and CPU time; on a machine that others use, the second says more.
struct Start {
    at: Instant,
    cpu_seconds: f64,
}

impl Start {
    fn now() -> Self {
        Self {
            at: Instant::now(),
            cpu_seconds: cpu_seconds(),
        }
    }
}

/// CPU time of all threads, in the kernel's hundredths of a second; 0 where there is no `/proc`.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split(' ');
    let ticks = fields
        .skip(12)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.
}

/// Prints what something took: operations of floating point and weights in a second of a core.
fn report(name: &str, start: &Start, operations: f64, weights: Option<usize>) {
    let seconds = start.at.elapsed().as_secs_f64();
    let cpu_seconds = cpu_seconds() - start.cpu_seconds;
    let speed = match operations {
        0. => String::new(),
        operations => format!(
            ", {:.1} GFLOP/s, {:.1} a core",
            operations / seconds / 1e9,
            operations / cpu_seconds / 1e9
        ),
    };
    let each = weights.map_or(String::new(), |weights| {
        format!(
            ", {:.1} ns a weight and core",
            cpu_seconds * 1e9 / weights as f64
        )
    });
    println!("{name}: {seconds:.3} s, {cpu_seconds:.2} s of CPU{speed}{each}");
}
