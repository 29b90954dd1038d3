//! The grouped matmul of a mixture of experts beside a loop of `linear`, expert by expert: `cargo bench -p sluice-measure --bench
//! grouped`, with `--profile dev` as tests and daemon are built. Tokens choose their experts by chance; both take turns, and
//! medians count. The loop's rows lie ready, expert by expert.

use sluice_formats::{DType, Format, interleaved, noise::Noise};
use sluice_measure::{Result, instructions};
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_weights::{InterleavedRows, Weight, WeightData};

/// A projection of OLMoE's experts.
const EXPERTS: usize = 64;
const WIDTH: usize = 2048;
const OUTPUTS: usize = 1024;
/// Experts of a token.
const CHOSEN: usize = 8;
const TOKENS: [usize; 4] = [1, 32, 128, 512];
const ROUNDS: usize = 31;
const SEED: u64 = 1;

fn main() -> Result<()> {
    println!("format  tokens  experts   linear ms   grouped ms   ratio");
    for format in [Format::Q4K, Format::Q8_0] {
        let bytes = stored(format);
        let all = Weight {
            format,
            rows: EXPERTS * OUTPUTS,
            width: WIDTH,
            data: WeightData::Interleaved(InterleavedRows {
                bytes: &bytes,
                first_row: 0,
            }),
            weights_version: 0,
        };
        let experts: Vec<_> = (0..EXPERTS)
            .map(|expert| all.rows(expert * OUTPUTS, (expert + 1) * OUTPUTS))
            .collect();
        for tokens in TOKENS {
            let [alone, grouped] = compare(&experts, &offsets(tokens))?;
            let used = offsets(tokens)
                .array_windows()
                .filter(|[from, to]| from < to)
                .count();
            println!(
                "{:<7} {tokens:>6} {used:>8} {:>11.2} {:>12.2} {:>7.2}",
                format.name(),
                1e3 * alone,
                1e3 * grouped,
                alone / grouped
            );
        }
    }
    Ok(())
}

/// Seconds of the loop and of the grouped matmul.
fn compare(experts: &[Weight<'_>], offsets: &[usize]) -> Result<[f64; 2]> {
    let ops = Ops::new(
        Device::cpu(0)?.with_instructions(instructions()?),
        Ledger::default(),
    )?;
    let rows = offsets[EXPERTS];
    // Rows twice, together and expert by expert, and their products.
    ops.reserve((2 * rows * (WIDTH + OUTPUTS) * size_of::<f32>()) as u64)?;
    let values = numbers(rows * WIDTH);
    let x = ops.matrix(rows, WIDTH, &values, DType::F32)?;
    let mut groups = Vec::new();
    for (&[from, to], expert) in offsets.array_windows().zip(experts) {
        if from < to {
            let values = &values[from * WIDTH..to * WIDTH];
            groups.push((ops.matrix(to - from, WIDTH, values, DType::F32)?, expert));
        }
    }
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        times[0].push(ops.time(1, &mut || {
            groups
                .iter()
                .try_for_each(|(x, expert)| ops.linear(x, expert).map(drop))
        })?);
        times[1].push(ops.time(1, &mut || {
            ops.grouped_linear(&x, experts, offsets).map(drop)
        })?);
    }
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }))
}

/// Where each expert's rows begin, and where the last one's end.
fn offsets(tokens: usize) -> Vec<usize> {
    let noise = Noise::new(SEED);
    let mut counts = [0; EXPERTS];
    for token in 0..tokens as u64 {
        // The experts in an order of chance, of which the first are chosen.
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        let key = |expert: usize| noise.uniform(token, expert as u64, 0);
        order.sort_by(|&a, &b| key(a).total_cmp(&key(b)));
        for expert in &order[..CHOSEN] {
            counts[*expert] += 1;
        }
    }
    let mut offsets = vec![0];
    for count in counts {
        offsets.push(offsets.last().expect("it begins with one") + count);
    }
    offsets
}

fn numbers(count: usize) -> Vec<f32> {
    let noise = Noise::new(SEED);
    (0..count as u64)
        .map(|place| noise.uniform(0, place, 0) as f32 - 0.5)
        .collect()
}

/// All experts' weights: one expert's, repeated.
fn stored(format: Format) -> Vec<u8> {
    let mut one = vec![0; format.bytes(OUTPUTS * WIDTH)];
    format.quantize(&numbers(OUTPUTS * WIDTH), &mut one);
    interleaved::interleave(format, WIDTH, &mut one, &mut Vec::new());
    one.repeat(EXPERTS)
}
