//! Fidelity of other checkpoints of a model, which differ only in the weights of its layers: a container, weights compressed
//! to a number of bits, or rounded to a block format. Prints for each the bits per compressed weight, their error, the mean
//! Kullback-Leibler divergence, the share of equal most probable tokens, and the likelihood of the text.
//!
//! ```sh
//! cargo run -p sluice-measure --example compare_checkpoints -- TEXT MODEL SEEDS OTHER...
//! ```
//!
//! Of the text, 64 lines are taken; where a model fills masks, each seed masks other tokens, and the figures are means. Another checkpoint is a path, a number of bits (`3.9`), or the name of a format
//! (`q4_k`), whose blocks go on from row to row, so that rows of any width have them. The error of a pruned file is that of
//! the tensors that were not pruned.

use std::{
    error::Error,
    fs,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use safetensors::{Dtype, tensor::TensorView};
use sluice_checkpoint::{
    Checkpoint, Source, TensorEntry,
    compression::{CompressOptions, CompressionMethod, compress},
    family::ModelConfig,
};
use sluice_codec::{
    TrellisTarget,
    container::{CompressionRules, Container, TensorTreatment},
};
use sluice_engine::{
    MeasureFidelity, ModelId,
    decode::fidelity::{SampleReading, rows, samples},
    model::transformer::{Interrupt, Transformer},
    residency::{LoadOutcome, Residency, WeightReader},
};
use sluice_formats::Format;
use sluice_machine::Profile;
use sluice_ops::{Activation, KvCacheShape, Ops, device::Device, ledger::Ledger};
use sluice_plan::{Machine, Plan, PlanInput, WorkingMemory, Workload};
use sluice_shared::{level::Level, options::ResolvedPlanSettings};
use sluice_tokenizer::Tokenizer;
use sluice_weights::TensorPart;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SAMPLES: usize = 64;
const SAMPLE_TOKENS_MAX: usize = 256;
/// Elements of a tile.
const TILE_ELEMENTS: usize = 512;
/// Rows of an autoregressive model that go through the layers together.
const ROWS: usize = 64;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [text, model, seeds, others @ ..] = &arguments[..] else {
        return Err("a text, a model, a number of seeds, and what to compare are needed".into());
    };
    let seeds: u64 = seeds.parse()?;
    let ops = Ops::new(Device::cpu(0)?, Ledger::default())?;
    let model_path = Path::new(model);
    let original = Loaded::new(model_path, &ops)?;
    let samples = samples_of(&fs::read_to_string(text)?, model_path, &original.config)?;
    let compare = |seed| MeasureFidelity {
        model: ModelId(0),
        level: None,
        samples: samples.clone(),
        seed,
    };
    let texts: Vec<MeasureFidelity> = (1..=seeds).map(compare).collect();
    let theirs = texts.iter().map(|texts| original.rows(texts, &ops));
    let theirs: Vec<Activation> = theirs.collect::<Result<_>>()?;
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
            block_quantized(model_path, format, folder.path())?;
            folder.path()
        } else if let Ok(bits) = other.parse() {
            trellis_quantized(model_path, bits, &container)?;
            &container
        } else {
            Path::new(other)
        };
        let loss = Loss::of(model_path, path)?;
        let bits = format.map_or(loss.bits(), |format| format.bytes(256) as f64 * 8.0 / 256.0);
        let loaded = Loaded::new(path, &ops)?;
        let mut found = Comparison::default();
        for (texts, theirs) in texts.iter().zip(&theirs) {
            let ours = loaded.rows(texts, &ops)?;
            found.add(&original.compare(&loaded, [theirs, &ours], texts, &ops)?);
        }
        let name = Path::new(other).file_name().unwrap_or_default();
        println!(
            "{:28} {bits:7.3} {:7.2} {:9.5} {:6.2} % {:10.4}",
            name.to_string_lossy(),
            loss.decibels(),
            found.kl / seeds as f64,
            100.0 * found.same_top / seeds as f64,
            found.likelihood / seeds as f64
        );
    }
    Ok(())
}

/// Lines at equal distances, as tokens.
fn samples_of(text: &str, model: &Path, config: &ModelConfig) -> Result<Vec<Vec<u32>>> {
    let files = Checkpoint::open(&source(model))?.tokenizer()?;
    let files = files.ok_or("the model has no tokenizer")?;
    let tokenizer = Tokenizer::new(&files.tokenizer, files.config.as_deref())?;
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let count = SAMPLES.min(lines.len());
    let mut samples = Vec::new();
    for index in 0..count {
        let mut ids = tokenizer.encode(lines[index * lines.len() / count])?;
        ids.truncate(SAMPLE_TOKENS_MAX.min(config.shape.context_length));
        if ids.len() > 1 {
            samples.push(ids);
        }
    }
    Ok(samples)
}

fn source(path: &Path) -> Source {
    Source::Folder(path.to_owned())
}

/// A model with all its weights.
struct Loaded {
    config: ModelConfig,
    model: Transformer,
    weights: Residency,
}

/// How far one is from the other.
#[derive(Default)]
struct Comparison {
    kl: f64,
    same_top: f64,
    likelihood: f64,
}

impl Comparison {
    fn add(&mut self, other: &Self) {
        self.kl += other.kl;
        self.same_top += other.same_top;
        self.likelihood += other.likelihood;
    }
}

impl Loaded {
    fn new(path: &Path, ops: &Ops) -> Result<Self> {
        let checkpoint = Checkpoint::open(&source(path))?;
        let config = checkpoint.model()?;
        let sources = checkpoint.model_sources(&config.shape)?;
        let plan = Plan::new(&PlanInput {
            shape: &config.shape,
            sources: &sources,
            choices: ResolvedPlanSettings::from(Level::Off),
            budget_bytes: u64::MAX,
            workload: Workload::default(),
            working: WorkingMemory::default(),
            machine: &Machine::unmeasured(Profile::cpu(ops.device().threads()), u64::MAX),
        })?;
        let reader = Arc::new(WeightReader::new(Arc::new(checkpoint), &sources));
        let never = AtomicBool::new(false);
        let (device, ledger) = (ops.device(), ops.ledger());
        let LoadOutcome::Done(weights) =
            Residency::load(&plan, reader, device, ledger, &never, &mut |_| {})?
        else {
            unreachable!("nobody cancels");
        };
        Ok(Self {
            model: Transformer::new(config.clone(), ops)?,
            config,
            weights,
        })
    }

    /// The hidden rows of the texts, before the LM head.
    fn rows(&self, texts: &MeasureFidelity, ops: &Ops) -> Result<Activation> {
        let samples = samples(texts, self.config.mask);
        let count = samples.iter().map(|sample| sample.rows.len()).sum();
        let shape = &self.config.shape;
        let reading = shape.causal.then(|| SampleReading {
            cache: KvCacheShape::of(shape, Format::F32),
            rows: ROWS,
        });
        let never = AtomicBool::new(false);
        let mut kept = ops.persistent(count, shape.hidden_size)?;
        let mut at = 0;
        for sample in &samples {
            let model = (&self.model, &self.weights);
            let result = rows(sample, ops, model, reading, &never, &mut |rows| {
                ops.set_rows(&mut kept, at, rows)?;
                at += rows.len();
                Ok(())
            });
            result.map_err(|interrupt| match interrupt {
                Interrupt::Failed(error) => error,
                Interrupt::Cancelled => unreachable!("nobody cancels"),
            })?;
        }
        Ok(kept)
    }

    /// Hidden rows and LM head of this model, and of the other.
    fn compare(
        &self,
        other: &Self,
        rows: [&Activation; 2],
        texts: &MeasureFidelity,
        ops: &Ops,
    ) -> Result<Comparison> {
        let samples = samples(texts, self.config.mask);
        let targets: Vec<u32> = samples
            .iter()
            .flat_map(|sample| sample.targets.iter().copied())
            .collect();
        let mut comparison = ops.start_comparison(&targets, self.weights.lm_head_part_rows())?;
        for (group, first) in self.weights.lm_head_parts() {
            let heads = [self.weights.acquire(group)?, other.weights.acquire(group)?];
            let [one, two] = heads.each_ref().map(|head| head.weight(TensorPart::LmHead));
            ops.compare_lm_heads(&mut comparison, rows, [&one, &two], first)?;
        }
        let all = comparison.divergences()?;
        let mean = |value: &dyn Fn(usize) -> f64| {
            (0..all.len()).map(value).sum::<f64>() / all.len() as f64
        };
        Ok(Comparison {
            kl: mean(&|row| all[row].kl),
            same_top: mean(&|row| f64::from(u8::from(all[row].same_top))),
            likelihood: -mean(&|row| all[row].target[1]),
        })
    }
}

/// Whether a container would trellis-quantize a tensor.
fn is_trellis_quantized(name: &str, entry: &TensorEntry) -> bool {
    let rules = CompressionRules {
        tensors: Default::default(),
        is_trellis: true,
        all: false,
    };
    let number = entry.format.as_ref().map_or("", |format| format.name());
    rules.treatment(name, &entry.shape, number) == TensorTreatment::Trellis
}

fn entries(checkpoint: &Checkpoint) -> impl Iterator<Item = (&str, &TensorEntry)> {
    let names = checkpoint.names();
    names.filter_map(|name| Some((name, checkpoint.tensor(name)?)))
}

fn upcast(checkpoint: &Checkpoint, entry: &TensorEntry) -> Result<Vec<f32>> {
    let format = entry.format.clone()?;
    let numbers: usize = entry.shape.iter().product();
    let mut bytes = vec![0; format.bytes(numbers)];
    let length = bytes.len() as u64;
    checkpoint.read_part(entry, 0..length, &mut bytes)?;
    let mut values = vec![0.0; numbers];
    format.dequantize(&bytes, &mut values);
    Ok(values)
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
    for file in fs::read_dir(model)? {
        let file = file?.path();
        if file.is_file() && file.extension().is_none_or(|kind| kind != "safetensors") {
            fs::copy(&file, to.join(file.file_name().unwrap_or_default()))?;
        }
    }
    let checkpoint = Checkpoint::open(&source(model))?;
    let mut tensors = Vec::new();
    for (name, entry) in entries(&checkpoint) {
        let mut values = upcast(&checkpoint, entry)?;
        if is_trellis_quantized(name, entry) {
            let mut blocks = vec![0; format.bytes(values.len())];
            quantize::store(format, &values, &mut blocks);
            format.dequantize(&blocks, &mut values);
        }
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        tensors.push((name, entry.shape.clone(), bytes));
    }
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<_>>()?;
    safetensors::serialize_to_file(views, None, &to.join("model.safetensors"))?;
    Ok(())
}
