//! How far another checkpoint of a model is from it: the same texts through both.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use sluice_checkpoint::Checkpoint;
use sluice_engine::{
    MeasureFidelity, ModelId,
    decode::fidelity::{SampleReading, rows, samples},
    model::{network::Interrupt, sequence_memory::SequenceShape},
};
use sluice_formats::Format;
use sluice_ops::{Activation, Ops, device::Device, ledger::Ledger};
use sluice_shared::level::Level;
use sluice_tokenizer::Tokenizer;
use sluice_weights::TensorPart;

use crate::{Result, checkpoints::source, loaded::Loaded};

/// Most lines of a text that are read.
const SAMPLES: usize = 64;
const SAMPLE_TOKENS_MAX: usize = 256;
/// Rows of an autoregressive model that go through the layers together.
const ROWS: usize = 64;

/// A model, and what it makes of some texts.
pub struct Original {
    ops: Ops,
    loaded: Loaded,
    /// For each seed, the texts and their hidden rows.
    texts: Vec<(MeasureFidelity, Activation)>,
}

/// What another checkpoint's outputs are beside the model's. The figures of seeds are means over rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Fidelity {
    /// Kullback-Leibler divergence of each seed, in nats.
    pub kl: Vec<f64>,
    /// Share of rows with the same most probable token.
    pub same_top: f64,
    /// Negative logarithm of the probability of the texts' tokens.
    pub likelihood: f64,
}

impl Fidelity {
    /// Mean divergence.
    #[must_use]
    pub fn mean_kl(&self) -> f64 {
        self.kl.iter().sum::<f64>() / self.kl.len() as f64
    }

    /// Standard error of the mean, by the differences of the seeds.
    #[must_use]
    pub fn standard_error(&self) -> f64 {
        let (count, mean) = (self.kl.len() as f64, self.mean_kl());
        let squares = self.kl.iter().map(|kl| (kl - mean).powi(2)).sum::<f64>();
        (squares / (count - 1.0) / count).sqrt()
    }
}

impl Original {
    /// Reads at most 64 lines of a text. Each seed masks other tokens of all of them; of an autoregressive model, which
    /// masks none, each has other lines.
    ///
    /// # Errors
    /// When the model or the text can't be read.
    pub fn new(model: &Path, text: &Path, seeds: u64) -> Result<Self> {
        let ops = Ops::new(Device::cpu(0)?, Ledger::default())?;
        let loaded = Loaded::new(model, Level::Off, &ops)?;
        let config = &loaded.config;
        let tokens_max = SAMPLE_TOKENS_MAX.min(config.shape.context_length);
        let lines = tokenized_lines(model, &fs::read_to_string(text)?, tokens_max)?;
        let count = SAMPLES.min(lines.len());
        let samples: Vec<_> = (0..count)
            .map(|index| lines[index * lines.len() / count].clone())
            .collect();
        let mut texts = Vec::new();
        for seed in 1..=seeds {
            let samples = match config.mask {
                Some(_) => samples.clone(),
                None => {
                    let own = samples.iter().skip(seed as usize - 1);
                    own.step_by(seeds as usize).cloned().collect()
                }
            };
            let asked = MeasureFidelity {
                model: ModelId(0),
                level: None,
                samples,
                seed,
            };
            let rows = hidden_rows(&loaded, &asked, &ops)?;
            texts.push((asked, rows));
        }
        Ok(Self { ops, loaded, texts })
    }

    /// Whether each token is predicted from those before it.
    #[must_use]
    pub fn is_autoregressive(&self) -> bool {
        self.loaded.config.shape.causal
    }

    /// Measures another checkpoint.
    ///
    /// # Errors
    /// When it can't be loaded.
    pub fn compare(&self, other: &Path) -> Result<Fidelity> {
        let other = Loaded::new(other, Level::Off, &self.ops)?;
        let seeds = self.texts.len();
        let mut found = Fidelity {
            kl: Vec::new(),
            same_top: 0.0,
            likelihood: 0.0,
        };
        for (asked, theirs) in &self.texts {
            let ours = hidden_rows(&other, asked, &self.ops)?;
            let of_seed = self.compare_rows(&other, [theirs, &ours], asked)?;
            found.kl.push(of_seed.kl);
            found.same_top += of_seed.same_top / seeds as f64;
            found.likelihood += of_seed.likelihood / seeds as f64;
        }
        Ok(found)
    }

    /// Hidden rows and LM head of the model, and of the other.
    fn compare_rows(
        &self,
        other: &Loaded,
        rows: [&Activation; 2],
        asked: &MeasureFidelity,
    ) -> Result<Comparison> {
        let weights = &self.loaded.weights;
        let samples = samples(asked, self.loaded.config.mask);
        let targets: Vec<u32> = samples
            .iter()
            .flat_map(|sample| sample.targets.iter().copied())
            .collect();
        let mut comparison = self
            .ops
            .start_comparison(&targets, weights.lm_head_part_rows())?;
        for (group, first) in weights.lm_head_parts() {
            let heads = [weights.acquire(group)?, other.weights.acquire(group)?];
            let [one, two] = heads.each_ref().map(|head| head.weight(TensorPart::LmHead));
            self.ops
                .compare_lm_heads(&mut comparison, rows, [&one, &two], first)?;
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

/// The lines of a text as ids of a model's tokenizer, cut to a length; those of one token say nothing.
///
/// # Errors
/// When the model has no tokenizer.
pub fn tokenized_lines(model: &Path, text: &str, tokens_max: usize) -> Result<Vec<Vec<u32>>> {
    let files = Checkpoint::open(&source(model))?.tokenizer()?;
    let files = files.ok_or("the model has no tokenizer")?;
    let tokenizer = Tokenizer::new(&files.tokenizer, files.config.as_deref())?;
    let mut samples = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut ids = tokenizer.encode(line)?;
        ids.truncate(tokens_max);
        if ids.len() > 1 {
            samples.push(ids);
        }
    }
    Ok(samples)
}

/// The figures of one seed.
struct Comparison {
    kl: f64,
    same_top: f64,
    likelihood: f64,
}

/// The hidden rows of the texts, before the LM head.
fn hidden_rows(loaded: &Loaded, asked: &MeasureFidelity, ops: &Ops) -> Result<Activation> {
    let samples = samples(asked, loaded.config.mask);
    let count = samples.iter().map(|sample| sample.rows.len()).sum();
    let shape = &loaded.config.shape;
    let reading = shape.causal.then(|| SampleReading {
        memory: SequenceShape::of(shape, Format::F32),
        rows: ROWS,
    });
    let never = AtomicBool::new(false);
    let mut kept = ops.persistent(count, shape.hidden_size)?;
    let mut at = 0;
    for sample in &samples {
        let model = (&loaded.model, &loaded.weights);
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
