//! What formats of the KV cache lose on an autoregressive model: for each, bytes and mean bits of an element, the
//! Kullback-Leibler divergence of next tokens from those with an unrounded cache, and the share of rows with the same most
//! probable token.
//!
//! ```sh
//! cargo run -p sluice-measure --example kv_cache_formats -- MODEL TEXT.txt LENGTH PARTS [TOKENIZER]
//! ```
//!
//! PARTS parts of LENGTH tokens are taken from all over the text, and 64 rows of each are compared. TOKENIZER is the model
//! whose tokenizer reads the text, by default the same one.

use std::{error::Error, path::PathBuf, sync::atomic::AtomicBool};

use sluice_checkpoint::Checkpoint;
use sluice_engine::{
    decode::fidelity::{FidelitySample, SampleReading, rows},
    model::{
        network::{Interrupt, logits},
        sequence_memory::SequenceShape,
    },
};
use sluice_formats::Format;
use sluice_measure::{checkpoints::source, loaded::Loaded};
use sluice_ops::{KvCacheShape, Ops, device::Device, ledger::Ledger};
use sluice_shared::level::Level;
use sluice_tokenizer::Tokenizer;

const ROWS_PER_PART: usize = 64;
/// Rows that go through the layers together.
const PASS_ROWS: usize = 64;

const FORMATS: [Format; 4] = [Format::Bf16, Format::Q8_0, Format::Q5_0, Format::Q4_0];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, length, parts, tokenizer @ ..] = &arguments[..] else {
        return Err("MODEL TEXT LENGTH PARTS are needed".into());
    };
    let (length, parts): (usize, usize) = (length.parse()?, parts.parse()?);
    let path = PathBuf::from(model);
    let ops = Ops::new(Device::cpu(0)?, Ledger::default())?;
    let loaded = Loaded::new(&path, Level::Off, &ops)?;
    if !loaded.config.shape.causal {
        return Err("only autoregressive models are measured".into());
    }
    let tokenizer = PathBuf::from(tokenizer.first().unwrap_or(model));
    let files = Checkpoint::open(&source(&tokenizer))?.tokenizer()?;
    let files = files.ok_or("the model has no tokenizer")?;
    let tokenizer = Tokenizer::new(&files.tokenizer, files.config.as_deref())?;
    let tokens = tokenizer.encode(&std::fs::read_to_string(text)?)?;
    let stride = tokens.len() / parts;
    let length = length.min(stride);
    let samples: Vec<_> = (0..parts)
        .map(|part| sample(&tokens[part * stride..][..length]))
        .collect();
    let exact = all_logits(&ops, &loaded, Format::F32, &samples)?;
    println!("| kept in | KiB for {length} positions | bits | KL | same top |");
    println!("|---|---:|---:|---:|---:|");
    for format in FORMATS {
        let found = all_logits(&ops, &loaded, format, &samples)?;
        let vocabulary = loaded.config.shape.padded_vocab_size;
        let pairs = exact.chunks(vocabulary).zip(found.chunks(vocabulary));
        let losses: Vec<_> = pairs
            .map(|(exact, found)| (divergence(exact, found), top(exact) == top(found)))
            .collect();
        let mean = |value: &dyn Fn(&(f64, bool)) -> f64| {
            losses.iter().map(value).sum::<f64>() / losses.len() as f64
        };
        let kl = mean(&|loss| loss.0);
        let spread = mean(&|loss| (loss.0 - kl).powi(2)).sqrt() / (losses.len() as f64).sqrt();
        let shape = &loaded.config.shape;
        let bytes = KvCacheShape::of(shape, format).bytes(length);
        let elements = 2 * shape.layers * shape.kv_heads * shape.head_dim * length;
        println!(
            "| {} | {} | {:.2} | {kl:.5} ± {spread:.5} | {:.1} % |",
            format.name(),
            bytes / 1024,
            8.0 * bytes as f64 / elements as f64,
            100.0 * mean(&|loss| f64::from(u8::from(loss.1))),
        );
    }
    Ok(())
}

/// Rows at equal distances; those of the first 64 positions would say little.
fn sample(tokens: &[u32]) -> FidelitySample {
    let first = tokens.len().min(PASS_ROWS) / 2;
    let rows: Vec<_> = (0..ROWS_PER_PART)
        .map(|row| first + row * (tokens.len() - first) / ROWS_PER_PART)
        .collect();
    FidelitySample {
        tokens: tokens.to_vec(),
        targets: vec![0; rows.len()],
        rows,
    }
}

fn all_logits(
    ops: &Ops,
    loaded: &Loaded,
    format: Format,
    samples: &[FidelitySample],
) -> Result<Vec<f32>, Box<dyn Error>> {
    let reading = SampleReading {
        memory: SequenceShape::of(&loaded.config.shape, format),
        rows: PASS_ROWS,
    };
    let never = AtomicBool::new(false);
    let model = (&loaded.model, &loaded.weights);
    let mut all = Vec::new();
    for sample in samples {
        let result = rows(sample, ops, model, Some(reading), &never, &mut |rows| {
            all.extend(logits(ops, &loaded.weights, rows)?);
            Ok(())
        });
        result.map_err(|interrupt| match interrupt {
            Interrupt::Failed(error) => Box::<dyn Error>::from(error),
            Interrupt::Cancelled => unreachable!("nobody cancels"),
        })?;
    }
    Ok(all)
}

fn divergence(exact: &[f32], found: &[f32]) -> f64 {
    let log_sum = |row: &[f32]| {
        let most = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
        let sum: f64 = row.iter().map(|&x| (f64::from(x) - most).exp()).sum();
        most + sum.ln()
    };
    let (exact_sum, found_sum) = (log_sum(exact), log_sum(found));
    let terms = exact.iter().zip(found).map(|(&exact, &found)| {
        let exact = f64::from(exact) - exact_sum;
        exact.exp() * (exact - (f64::from(found) - found_sum))
    });
    terms.sum()
}

fn top(row: &[f32]) -> Option<usize> {
    let ranked = row.iter().enumerate();
    let most = ranked.max_by(|a, b| a.1.total_cmp(b.1));
    most.map(|(at, _)| at)
}
