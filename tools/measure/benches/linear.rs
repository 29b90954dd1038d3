//! Every kernel of `linear` beside what the processor can do at most: `cargo bench -p sluice-measure --bench linear`,
//! with `--profile dev` as tests and daemon are built, and with `SLUICE_INSTRUCTIONS=NAME` by fewer instructions, with `SLUICE_COMPUTE_DTYPE=bf16` in bf16.
//!
//! Weights of 4096 x 4096 lie as resident ones do, and several of them take turns, so that they come from memory. All threads
//! compute. "Of peak" is the share of what all threads reach with the kernel's instruction between registers, "of memory" that
//! of the rate at which they read memory; both are measured first.

use std::time::{Duration, Instant};

use sluice_formats::Format;
use sluice_machine::mapped::MappedBuffer;
use sluice_measure::{
    Result, computes_in_bf16, instructions,
    peaks::{ProductInstruction, read_bytes_per_s},
};
use sluice_ops::{Activation, Ops, device::Device, ledger::Ledger, measure::FILL_BYTE};
use sluice_weights::{InterleavedRows, Weight, WeightData};

const SIDE: usize = 4096;
const ROWS: [usize; 6] = [1, 4, 8, 32, 128, 512];
const FORMATS: [Format; 6] = [
    Format::Bf16,
    Format::Q8_0,
    Format::Q6K,
    Format::Q5_0,
    Format::Q4K,
    Format::Q4_1,
];
/// All matrices of a format together: more than caches hold.
const WEIGHT_BYTES: usize = 512 << 20;
/// Rows and products of the most rows.
const ACTIVATION_BYTES: u64 = 32 << 20;
/// How long each kernel is timed, and how often at least.
const TIME: Duration = Duration::from_millis(300);
const TIMES_MIN: usize = 5;

fn main() -> Result<()> {
    let mut device = Device::cpu(0)?.with_instructions(instructions()?);
    if computes_in_bf16() {
        device = device.with_bf16_products();
    }
    let (threads, interleaves) = (device.threads(), device.interleaves_weights());
    let ops = Ops::new(device, Ledger::default())?;
    ops.reserve(ACTIVATION_BYTES)?;
    let mut memory = MappedBuffer::<u64>::zeroed(WEIGHT_BYTES / size_of::<u64>())
        .ok_or("there is too little memory")?;
    // A finite value in every format.
    bytemuck::cast_slice_mut(&mut memory).fill(FILL_BYTE);

    println!("instruction   one thread   {threads} threads, G op/s");
    let peaks = ProductInstruction::ALL.map(|instruction| {
        let peaks = instruction.peak(1).zip(instruction.peak(threads));
        if let Some((one, all)) = peaks {
            let name = instruction.name();
            println!("{name:<11} {:>12.0} {:>11.0}", one / 1e9, all / 1e9);
        }
        (instruction, peaks.map(|(_, all)| all))
    });
    let read = read_bytes_per_s(&memory, threads);
    println!("{threads} threads read {:.1} GB/s\n", read / 1e9);

    println!("{}:", ops.device().instructions().name());
    println!("format  rows  instruction     time us     GB/s   G op/s  of peak  of memory");
    for format in FORMATS {
        let weights = weights(format, interleaves, bytemuck::cast_slice(&memory));
        let instruction = ProductInstruction::of(&ops, format);
        let peak = peaks.iter().find(|(of, _)| Some(*of) == instruction);
        for rows in ROWS {
            let x = ops.probe_rows(rows, &weights[0])?;
            let seconds = seconds(&ops, &x, &weights)?;
            let bytes = format.bytes(SIDE * SIDE) as f64 / seconds;
            let operations = (2 * rows * SIDE * SIDE) as f64 / seconds;
            let share = |most: Option<f64>| {
                most.map_or("-".to_owned(), |most| {
                    format!("{:.0} %", 100.0 * operations / most)
                })
            };
            println!(
                "{:<7} {rows:>4}  {:<11} {:>11.0} {:>8.1} {:>8.0} {:>8} {:>8.0} %",
                format.name(),
                instruction.map_or("-", ProductInstruction::name),
                1e6 * seconds,
                bytes / 1e9,
                operations / 1e9,
                share(peak.and_then(|(_, peak)| *peak)),
                100.0 * bytes / read,
            );
        }
    }
    Ok(())
}

/// As many matrices as the memory holds.
fn weights(format: Format, interleaves: bool, bytes: &[u8]) -> Vec<Weight<'_>> {
    let count = bytes.len() / format.bytes(SIDE * SIDE);
    let bytes = &bytes[..count * format.bytes(SIDE * SIDE)];
    let all = Weight {
        format,
        rows: count * SIDE,
        width: SIDE,
        data: match interleaves {
            true => WeightData::Interleaved(InterleavedRows {
                bytes,
                first_row: 0,
            }),
            false => WeightData::Host(bytes),
        },
        weights_version: 0,
    };
    (0..count)
        .map(|index| all.rows(index * SIDE, (index + 1) * SIDE))
        .collect()
}

/// The median of a matmul's times, with one matrix after another.
fn seconds(ops: &Ops, x: &Activation, weights: &[Weight<'_>]) -> Result<f64> {
    let begun = Instant::now();
    let mut times = Vec::new();
    for weight in weights.iter().cycle() {
        times.push(ops.time(1, &mut || ops.linear(x, weight).map(drop))?);
        if times.len() >= TIMES_MIN && begun.elapsed() > TIME {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
