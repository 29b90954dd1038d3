//! The grouped matmul of a mixture of experts beside a loop of `linear`, expert by expert: `cargo bench -p sluice-measure --bench
//! grouped`, with `--profile dev` as tests and daemon are built, and beside a dense matrix with as many outputs as a token's experts
//! have. Tokens choose their experts by chance; all take turns, and medians count. The loop's rows lie ready, expert by expert.

use sluice_formats::{DType, Format, interleaved, noise::Noise};
use sluice_measure::{Result, instructions};
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_weights::{InterleavedRows, Weight, WeightData};

/// A projection of LLaDA2.0-mini's experts.
const EXPERTS: usize = 256;
const WIDTH: usize = 2048;
const OUTPUTS: usize = 512;
/// Experts of a token.
const CHOSEN: usize = 8;
const TOKENS: [usize; 5] = [1, 8, 32, 128, 512];
const ROUNDS: usize = 31;
const SEED: u64 = 1;

fn main() -> Result<()> {
    println!(
        "format  tokens  experts   linear ms   grouped ms   ratio   dense ms   grouped's rate of dense"
    );
    for format in [Format::Bf16, Format::Q8_0, Format::Q4K] {
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
            let dense = all.rows(0, CHOSEN * OUTPUTS);
            let [alone, grouped, dense] = compare(&experts, &dense, &offsets(tokens))?;
            let used = offsets(tokens)
                .array_windows()
                .filter(|[from, to]| from < to)
                .count();
            println!(
                "{:<7} {tokens:>6} {used:>8} {:>11.2} {:>12.2} {:>7.2} {:>10.2} {:>7.0} %",
                format.name(),
                1e3 * alone,
                1e3 * grouped,
                alone / grouped,
                1e3 * dense,
                100.0 * dense / grouped
            );
        }
    }
    Ok(())
}

/// Seconds of the loop, of the grouped matmul, and of as many tokens by the dense matrix.
fn compare(experts: &[Weight<'_>], dense: &Weight<'_>, offsets: &[usize]) -> Result<[f64; 3]> {
    let ops = Ops::new(
        Device::cpu(0)?.with_instructions(instructions()?),
        Ledger::default(),
    )?;
    let rows = offsets[EXPERTS];
    // Rows three times, together, expert by expert and of tokens, and their products.
    ops.reserve((3 * rows * (WIDTH + OUTPUTS) * size_of::<f32>()) as u64)?;
    let values = numbers(rows * WIDTH);
    let x = ops.matrix(rows, WIDTH, &values, DType::F32)?;
    let mut groups = Vec::new();
    for (&[from, to], expert) in offsets.array_windows().zip(experts) {
        if from < to {
            let values = &values[from * WIDTH..to * WIDTH];
            groups.push((ops.matrix(to - from, WIDTH, values, DType::F32)?, expert));
        }
    }
    let tokens = rows / CHOSEN;
    let of_tokens = ops.matrix(tokens, WIDTH, &values[..tokens * WIDTH], DType::F32)?;
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        times[0].push(ops.time(1, &mut || {
            groups
                .iter()
                .try_for_each(|(x, expert)| ops.linear(x, expert).map(drop))
        })?);
        times[1].push(ops.time(1, &mut || {
            ops.grouped_linear(&x, experts, offsets, x.len()).map(drop)
        })?);
        times[2].push(ops.time(1, &mut || ops.linear(&of_tokens, dense).map(drop))?);
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
