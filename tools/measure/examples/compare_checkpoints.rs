//! Fidelity of other checkpoints of a model, which differ only in the weights of its layers: a container, weights compressed
//! to a number of bits, or rounded to a block format. Prints for each the bits per compressed weight, their error, the mean
//! Kullback-Leibler divergence, the share of equal most probable tokens, and the likelihood of the text.
//!
//! ```sh
//! cargo run -p sluice-measure --example compare_checkpoints -- TEXT MODEL SEEDS OTHER...
//! ```
//!
//! Of the text, 64 lines are taken, and the figures are means over seeds: each masks other tokens, or takes other lines where
//! a model fills no masks. Another checkpoint is a path, a number of bits (`3.9`), or the name of a format (`q4_k`), whose
//! blocks go on from row to row, so that rows of any width have them. The error of a pruned file is that of the tensors
//! that were not pruned.

use std::{collections::HashMap, path::Path, sync::atomic::AtomicBool};

use sluice_checkpoint::{
    Checkpoint, TensorEntry,
    compression::{CompressOptions, CompressionMethod, compress},
};
use sluice_codec::{
    TrellisTarget,
    container::{CompressionRules, Container, TensorTreatment},
};
use sluice_formats::Format;
use sluice_measure::{
    Result,
    checkpoints::{entries, source, upcast, write_with},
    fidelity::Original,
};

/// Elements of a tile.
const TILE_ELEMENTS: usize = 512;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [text, model, seeds, others @ ..] = &arguments[..] else {
        return Err("a text, a model, a number of seeds, and what to compare are needed".into());
    };
    let model = Path::new(model);
    let original = Original::new(model, Path::new(text), seeds.parse()?)?;
    println!(
        "{:28} {:>7} {:>7} {:>9} {:>8} {:>10}",
        "", "bits", "dB", "KL", "same top", "likelihood"
    );
    for other in others {
        let format = Format::ALL
            .into_iter()
            .find(|format| format.dtype().is_none() && format.name() == other);
        let folder = tempfile::tempdir()?;
        let container = folder.path().join("model.sluice");
        let path = if let Some(format) = format {
            block_quantized(model, format, folder.path())?;
            folder.path()
        } else if let Ok(bits) = other.parse() {
            trellis_quantized(model, bits, &container)?;
            &container
        } else {
            Path::new(other)
        };
        let loss = Loss::of(model, path)?;
        let bits = format.map_or(loss.bits(), |format| format.bytes(256) as f64 * 8.0 / 256.0);
        let found = original.compare(path)?;
        let name = Path::new(other).file_name().unwrap_or_default();
        println!(
            "{:28} {bits:7.3} {:7.2} {:9.5} {:6.2} % {:10.4}",
            name.to_string_lossy(),
            loss.decibels(),
            found.mean_kl(),
            100.0 * found.same_top,
            found.likelihood
        );
    }
    Ok(())
}

/// Whether a container would trellis-quantize a tensor.
fn is_trellis_quantized(name: &str, entry: &TensorEntry) -> bool {
    let rules = CompressionRules {
        tensors: Default::default(),
        is_trellis: true,
        all: false,
        unquantized: Default::default(),
    };
    let number = entry.format.as_ref().map_or("", |format| format.name());
    rules.treatment(name, &entry.shape, number) == TensorTreatment::Trellis
}

/// The error of compressed tensors, and their size.
struct Loss {
    lost: f64,
    all: f64,
    elements: f64,
    compressed_bytes: f64,
}

impl Loss {
    fn of(model: &Path, other: &Path) -> Result<Self> {
        let (model, checkpoint) = (
            Checkpoint::open(&source(model))?,
            Checkpoint::open(&source(other))?,
        );
        let container = checkpoint.is_container().then(|| Container::open(other));
        let container = container.transpose()?;
        let mut loss = Self {
            lost: 0.0,
            all: 0.0,
            elements: 0.0,
            compressed_bytes: 0.0,
        };
        for (name, entry) in
            entries(&model).filter(|(name, entry)| is_trellis_quantized(name, entry))
        {
            let theirs = upcast(&model, entry)?;
            let same = checkpoint.tensor(name).ok_or("a tensor is missing")?;
            loss.elements += theirs.len() as f64;
            // A pruned tensor has no weight in each place of the other.
            if same.shape == entry.shape {
                let ours = upcast(&checkpoint, same)?;
                let square = |value: f32| f64::from(value).powi(2);
                let pairs = theirs.iter().zip(&ours);
                loss.lost += pairs.map(|(a, b)| square(a - b)).sum::<f64>();
                loss.all += theirs.iter().map(|value| square(*value)).sum::<f64>();
            }
            if let Some(container) = &container {
                let mut tensors = container.header().tensors.iter();
                let tensor = tensors.find(|tensor| tensor.name == name);
                loss.compressed_bytes += tensor.map_or(0, |tensor| tensor.length) as f64;
            }
        }
        Ok(loss)
    }

    fn decibels(&self) -> f64 {
        10.0 * (self.all / self.lost).log10()
    }

    fn bits(&self) -> f64 {
        self.compressed_bytes * 8.0 / self.elements
    }
}

/// The same model with its layers at so many bits a weight.
fn trellis_quantized(model: &Path, bits: f64, to: &Path) -> Result<()> {
    let options = CompressOptions {
        method: CompressionMethod::Trellis(TrellisTarget::Bits(bits)),
        tile: TILE_ELEMENTS,
        tensors: Default::default(),
        all: false,
        threads: 0,
        replace: false,
    };
    let (never, source) = (AtomicBool::new(false), source(model));
    compress(&source, to, &options, &never, &mut |_, _| {})?;
    Ok(())
}

/// The model with its compressed tensors in another format.
fn block_quantized(model: &Path, format: Format, to: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(&source(model))?;
    let mut others = HashMap::new();
    for (name, entry) in
        entries(&checkpoint).filter(|(name, entry)| is_trellis_quantized(name, entry))
    {
        let mut values = upcast(&checkpoint, entry)?;
        let mut blocks = vec![0; format.bytes(values.len())];
        quantize::store(format, &values, &mut blocks);
        format.dequantize(&blocks, &mut values);
        others.insert(name.to_owned(), values);
    }
    write_with(model, &others, to)
}
