//! Matmuls with compressed weights compared with plain `f32`, on one core and on two:
//! `cargo bench -p sluice-measure --bench compressed`; with `--profile dev` as tests and daemon are built, and with
//! `SLUICE_INSTRUCTIONS=NAME` by fewer instructions.
//!
//! The variants are run in turn, and the best time of each counts, so that other programs disturb all alike. Hence the loop
//! of its own.

use std::{
    collections::BTreeMap, env, error::Error, fs, hint::black_box, path::Path,
    sync::atomic::AtomicBool, time::Instant,
};

use half::bf16;
use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use sluice_checkpoint::{
    Checkpoint, Source,
    compression::{
        CompressOptions, CompressionMethod, Container, Lossless, TrellisTarget, compress,
    },
};
use sluice_formats::{Format, noise::Noise};
use sluice_machine::MemoryKind;
use sluice_measure::instructions;
use sluice_ops::{
    Ops,
    device::Device,
    ledger::{Ledger, PeakMark},
};
use sluice_weights::{CompressedRows, CompressedTensor, Weight, WeightData};

/// A square projection of LLaDA-8B, and one to its MLP: outputs and inputs.
const SHAPES: [(usize, usize); 2] = [(4096, 4096), (12_288, 4096)];
const ROWS: [usize; 5] = [1, 8, 32, 128, 512];
const TURNS: usize = 9;
const NAME: &str = "weight";
const WAYS: [(&str, CompressionMethod); 3] = [
    (
        "dictionary",
        CompressionMethod::Lossless(Lossless::Dictionary),
    ),
    ("huffman", CompressionMethod::Lossless(Lossless::Huffman)),
    (
        "rate, 4 bits",
        CompressionMethod::Trellis(TrellisTarget::Bits(4.0)),
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo test --benches` runs it too, and wants to know only whether it does.
    if !env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    for (outputs, width) in SHAPES {
        bench(outputs, width)?;
    }
    Ok(())
}

/// A compressed matrix as a checkpoint has it.
struct Compressed {
    tensor: std::sync::Arc<CompressedTensor>,
    bytes: Vec<u8>,
    format: Format,
}

fn bench(outputs: usize, width: usize) -> Result<(), Box<dyn Error>> {
    let noise = Noise::new(1);
    // Sums of four uniform values are nearly normal.
    let number = |place: u64| {
        let draws = (0..4).map(|draw| noise.uniform(0, 4 * place + draw, 0) as f32 - 0.5);
        bf16::from_f32(draws.sum())
    };
    let numbers: Vec<bf16> = (0..(outputs * width) as u64).map(number).collect();
    let plain = bytemuck::cast_slice::<bf16, u8>(&numbers);
    let wide: Vec<f32> = numbers.iter().map(|number| number.to_f32()).collect();
    let folder = tempfile::tempdir()?;
    let tensor = TensorView::new(Dtype::BF16, vec![outputs, width], plain)?;
    let model = folder.path().join("model.safetensors");
    serialize_to_file(BTreeMap::from([(NAME, tensor)]), None, &model)?;
    fs::write(folder.path().join("config.json"), "{}")?;
    let compressed = WAYS.map(|(name, how)| {
        let target = folder.path().join("coded.sluice");
        Ok((name, code(folder.path(), &target, how)?))
    });
    let compressed: Vec<(&str, Compressed)> = compressed
        .into_iter()
        .collect::<Result<_, Box<dyn Error>>>()?;

    let matrix = |format, data| Weight {
        format,
        rows: outputs,
        width,
        data,
        weights_version: 0,
    };
    let mut ways = vec![
        (
            "f32",
            32.0,
            matrix(Format::F32, WeightData::Host(bytemuck::cast_slice(&wide))),
        ),
        ("bf16", 16.0, matrix(Format::Bf16, WeightData::Host(plain))),
    ];
    ways.extend(compressed.iter().map(|(name, compressed)| {
        let rows = CompressedRows {
            tensor: &compressed.tensor,
            bytes: &compressed.bytes,
            base: 0,
            first_row: 0,
        };
        let bits = compressed.bytes.len() as f64 * 8.0 / numbers.len() as f64;
        (
            *name,
            bits,
            matrix(compressed.format, WeightData::Compressed(rows)),
        )
    }));

    println!("\n{outputs} outputs of {width}: milliseconds with f32, and times that of the others");
    for threads in [1, 2] {
        let ledger = Ledger::default();
        let device = Device::cpu(threads)?.with_instructions(instructions()?);
        let ops = Ops::new(device, ledger.clone())?;
        print!("{:14} {:>6}", format!("{threads} threads"), "bits");
        ROWS.iter()
            .for_each(|rows| print!(" {:>8}", format!("{rows} rows")));
        println!();
        let mut table = vec![[0.0; ROWS.len()]; ways.len()];
        let mut extra = 0;
        for (column, rows) in ROWS.into_iter().enumerate() {
            let ids: Vec<u32> = (0..rows as u32).collect();
            let x = ops.embed(&ids, &ways[0].2)?;
            // All ways take turns and the fastest time of each counts: other programs disturb each alike.
            let mut best = vec![f64::INFINITY; ways.len()];
            for _ in 0..TURNS {
                for (best, (_, _, weight)) in best.iter_mut().zip(&ways) {
                    let before = ledger.used_bytes();
                    ledger.mark(PeakMark::Pass);
                    let start = Instant::now();
                    let out = black_box(ops.linear(&x, weight)?);
                    *best = best.min(start.elapsed().as_secs_f64());
                    drop(out);
                    let out_bytes = (rows * outputs * size_of::<f32>()) as u64;
                    extra = extra.max(ledger.peak_since(PeakMark::Pass) - before - out_bytes);
                }
            }
            for (row, best) in table.iter_mut().zip(best) {
                row[column] = best;
            }
        }
        let f32_times = table[0];
        for ((name, bits, _), times) in ways.iter().zip(&table) {
            print!("{name:14} {bits:6.2}");
            for (time, f32_time) in times.iter().zip(f32_times) {
                match *name {
                    "f32" => print!(" {:8.2}", time * 1e3),
                    _ => print!(" {:8.2}", time / f32_time),
                }
            }
            println!();
        }
        let scratch = ledger.report().kinds[MemoryKind::Scratch as usize].peak_bytes;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "memory besides weights, input and output: {:.1} MiB of scratch, {:.1} MiB more",
            mib(scratch),
            mib(extra)
        );
    }
    Ok(())
}

/// Compresses a matrix and reads it back as a model keeps it in memory.
fn code(
    folder: &Path,
    target: &Path,
    how: CompressionMethod,
) -> Result<Compressed, Box<dyn Error>> {
    let options = CompressOptions {
        method: how,
        tile: 256,
        tensors: Default::default(),
        all: true,
        threads: 0,
        replace: true,
    };
    let source = Source::Folder(folder.to_owned());
    compress(
        &source,
        target,
        &options,
        &AtomicBool::new(false),
        &mut |_, _| {},
    )?;
    let container = Container::open(target)?;
    let record = &container.header().tensors[0];
    let (start, end) = (
        record.offset as usize,
        (record.offset + record.length) as usize,
    );
    let bytes = fs::read(target)?[start..end].to_vec();
    let checkpoint = Checkpoint::open(&Source::Folder(target.to_owned()))?;
    let tensor = checkpoint.compressed(NAME).ok_or("it stayed plain")?;
    let format = checkpoint
        .tensor(NAME)
        .ok_or("it isn't there")?
        .format
        .clone()?;
    Ok(Compressed {
        tensor,
        bytes,
        format,
    })
}
