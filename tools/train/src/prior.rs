//! A learned prior of latents: a diffusion transformer over posterior samples of one model.
//!
//! Papers: "Elucidating the Design Space of Diffusion-Based Generative Models" (Karras et al. 2022, arXiv 2206.00364) for
//! the parametrization, "Scalable Diffusion Models with Transformers" (Peebles and Xie 2023, arXiv 2212.09748) for the
//! network: a token for each latent vector, with a learned place, and layers whose norms are shifted, scaled and gated by
//! the noise level (adaLN, which begins as the identity).
//!
//! Latents are normalised by the mean and standard deviation of each of their elements, so their spread is 1. With noise of
//! standard deviation σ on them, x, the denoised latents are D(x; σ) = s·x + o·F(i·x; ln(σ)/4), where s = 1/(σ² + 1),
//! o = σ/√(σ² + 1), i = 1/√(σ² + 1), and F is the network.

pub mod command;
pub mod comparison;
pub mod training;

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor, Var};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};

use self::training::PriorOptions;
use crate::{
    file,
    ops::{self, Activation, Pack},
    optimizer::Rule,
    random::Random,
};

/// The name of the weights in the folder of a model.
pub const WEIGHTS_NAME: &str = "prior.safetensors";
/// The name of the shape in the folder of a model.
pub const CONFIG_NAME: &str = "prior.json";

/// The key of how it was trained, in the metadata of the weights.
const ORIGIN_KEY: &str = "training";

/// Added to variances before their root is taken.
const EPSILON: f32 = 1e-6;
/// The longest period of the noise level's sinusoids, relative to the shortest.
const PERIODS: f64 = 10_000.0;
/// What a noise level, ln(σ)/4, is multiplied with before its sinusoids.
const TIME_SCALE: f64 = 1000.0;

/// The shape of a prior.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PriorConfig {
    /// Latent vectors of a text.
    pub vectors: usize,
    /// Width of a latent vector.
    pub latent_width: usize,
    /// Width of the network.
    pub width: usize,
    /// Its layers.
    pub layers: usize,
    /// Its attention heads.
    pub heads: usize,
}

impl PriorConfig {
    /// Number of weights.
    #[must_use]
    pub fn parameters(&self) -> usize {
        let tensors = self.tensors().into_iter();
        tensors
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    }

    /// Every tensor, in order.
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let width = self.width;
        let mut tensors = vec![
            ("mean".to_owned(), vec![self.vectors, self.latent_width]),
            (
                "deviation".to_owned(),
                vec![self.vectors, self.latent_width],
            ),
            ("places".to_owned(), vec![self.vectors, width]),
        ];
        let mut linear = |name: &str, out: usize, into: usize| {
            tensors.push((format!("{name}.weight"), vec![out, into]));
            tensors.push((format!("{name}.bias"), vec![out]));
        };
        linear("input", width, self.latent_width);
        linear("time.0", width, width);
        linear("time.1", width, width);
        for layer in 0..self.layers {
            linear(&format!("layers.{layer}.modulation"), 6 * width, width);
            for part in ["query", "key", "value", "out"] {
                linear(&format!("layers.{layer}.{part}"), width, width);
            }
            linear(&format!("layers.{layer}.up"), 4 * width, width);
            linear(&format!("layers.{layer}.down"), width, 4 * width);
        }
        linear("final.modulation", 2 * width, width);
        linear("output", self.latent_width, width);
        tensors
    }
}

impl Rule for PriorConfig {
    fn rate_scale(&self, _name: &str) -> f64 {
        1.0
    }

    fn decays(&self, name: &str, _shape: &[usize]) -> bool {
        name.ends_with(".weight")
    }
}

/// How a prior was trained; the metadata of its file has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// How.
    #[serde(flatten)]
    pub options: PriorOptions,
    /// Posteriors that it was trained on.
    pub posteriors: usize,
}

/// A prior with trainable weights.
pub struct Prior {
    /// Its shape.
    pub config: PriorConfig,
    /// How it was trained, if it was and its file says so.
    pub origin: Option<Origin>,
    variables: Vec<(String, Var)>,
    tensors: BTreeMap<String, Tensor>,
}

impl Prior {
    /// A prior that has learned nothing, for latents with these means and standard deviations.
    pub fn random(
        config: PriorConfig,
        mean: Vec<f32>,
        deviation: Vec<f32>,
        seed: u64,
    ) -> Result<Self> {
        let mut random = Random::new(seed, u64::MAX);
        let mut weights: BTreeMap<_, _> = config
            .tensors()
            .into_iter()
            .map(|(name, shape)| {
                let count = shape.iter().product();
                // Each layer begins as the identity, and the network says nothing yet.
                let is_zero = name.ends_with("bias")
                    || name.contains("modulation")
                    || name.starts_with("output");
                let spread = match *shape {
                    _ if is_zero => 0.0,
                    [_, _] if name == "places" => 0.02,
                    [_, into] => (into as f64).sqrt().recip(),
                    _ => 0.0,
                };
                let values = (0..count)
                    .map(|_| (random.normal() * spread) as f32)
                    .collect();
                (name, values)
            })
            .collect();
        weights.insert("mean".to_owned(), mean);
        weights.insert("deviation".to_owned(), deviation);
        Self::from_weights(config, weights)
    }

    /// A prior with the given weights.
    pub fn from_weights(
        config: PriorConfig,
        mut weights: BTreeMap<String, Vec<f32>>,
    ) -> Result<Self> {
        ensure!(
            config.heads > 0
                && config.width.is_multiple_of(config.heads)
                && config.width.is_multiple_of(2),
            "the width of a prior must be even and a multiple of its heads"
        );
        let mut variables = Vec::new();
        let mut tensors = BTreeMap::new();
        for (name, shape) in config.tensors() {
            let values = weights
                .remove(&name)
                .with_context(|| format!("the prior lacks {name}"))?;
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu)
                .with_context(|| format!("load {name}"))?;
            // Means and deviations are measured, not learned.
            if name == "mean" || name == "deviation" {
                tensors.insert(name, tensor);
                continue;
            }
            let variable = Var::from_tensor(&tensor)?;
            tensors.insert(name.clone(), variable.as_tensor().clone());
            variables.push((name, variable));
        }
        Ok(Self {
            config,
            origin: None,
            variables,
            tensors,
        })
    }

    /// What is learned, by name.
    #[must_use]
    pub fn variables(&self) -> &[(String, Var)] {
        &self.variables
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.tensors
            .get(name)
            .with_context(|| format!("the prior lacks {name}"))
    }

    /// Mean and standard deviation of each element of a text's latents.
    pub fn scale(&self) -> Result<[Vec<f32>; 2]> {
        let values =
            |name: &str| -> Result<Vec<f32>> { Ok(self.tensor(name)?.flatten_all()?.to_vec1()?) };
        Ok([values("mean")?, values("deviation")?])
    }

    fn linear(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let projected = ops::linear(x, self.tensor(&format!("{name}.weight"))?)?;
        let bias = self.tensor(&format!("{name}.bias"))?;
        Ok(ops::activate(&projected, Some(bias), Activation::Identity)?)
    }

    /// Denoised latents of texts, one vector a row, normalised like `x`; each text has its own standard deviation of noise.
    pub fn denoise(&self, x: &Tensor, deviations: &[f64]) -> Result<Tensor> {
        let factors = |factor: &dyn Fn(f64) -> f64| -> Result<Tensor> {
            let rows = deviations.iter().flat_map(|deviation| {
                std::iter::repeat_n(factor(*deviation) as f32, self.config.vectors)
            });
            let rows: Vec<f32> = rows.collect();
            Ok(Tensor::from_vec(rows, (x.dim(0)?, 1), x.device())?)
        };
        let square = |deviation: f64| deviation * deviation + 1.0;
        let skip = factors(&|deviation| square(deviation).recip())?;
        let out = factors(&|deviation| deviation / square(deviation).sqrt())?;
        let into = factors(&|deviation| square(deviation).sqrt().recip())?;
        let found = self.network(&x.broadcast_mul(&into)?, deviations)?;
        Ok((x.broadcast_mul(&skip)? + found.broadcast_mul(&out)?)?)
    }

    /// F: `[texts · vectors, latent width]`.
    fn network(&self, x: &Tensor, deviations: &[f64]) -> Result<Tensor> {
        let PriorConfig {
            vectors,
            width,
            heads,
            ..
        } = self.config;
        let texts = deviations.len();
        let pack = Pack::new(vec![vectors; texts]);
        let time = self.linear(&self.sinusoids(deviations)?, "time.0")?;
        let time = silu(&self.linear(&silu(&time)?, "time.1")?)?;
        // Of each text, one row for each of its vectors.
        let spread = |part: &Tensor| -> Result<Tensor> {
            let part = part.unsqueeze(1)?.expand((texts, vectors, width))?;
            Ok(part.reshape((texts * vectors, width))?)
        };
        let modulate = |x: &Tensor, shift: &Tensor, scale: &Tensor| -> Result<Tensor> {
            let ones = Tensor::ones(width, DType::F32, x.device())?;
            let normed = ops::group_norm(x, &ones, &ones.zeros_like()?, 1, EPSILON)?;
            Ok(((normed * (spread(scale)? + 1.0)?)? + spread(shift)?)?)
        };
        let places = self.tensor("places")?.unsqueeze(0)?;
        let x = self.linear(x, "input")?.reshape((texts, vectors, width))?;
        let mut x = x
            .broadcast_add(&places)?
            .reshape((texts * vectors, width))?;
        for layer in 0..self.config.layers {
            let name = |part: &str| format!("layers.{layer}.{part}");
            let parts = self.linear(&time, &name("modulation"))?.chunk(6, 1)?;
            let normed = modulate(&x, &parts[0], &parts[1])?;
            let mixed = ops::attention(
                &self.linear(&normed, &name("query"))?,
                &self.linear(&normed, &name("key"))?,
                &self.linear(&normed, &name("value"))?,
                &pack,
                heads,
                false,
            )?;
            x = (x + (self.linear(&mixed, &name("out"))? * spread(&parts[2])?)?)?;
            let normed = modulate(&x, &parts[3], &parts[4])?;
            let inner = silu(&self.linear(&normed, &name("up"))?)?;
            x = (x + (self.linear(&inner, &name("down"))? * spread(&parts[5])?)?)?;
        }
        let parts = self.linear(&time, "final.modulation")?.chunk(2, 1)?;
        self.linear(&modulate(&x, &parts[0], &parts[1])?, "output")
    }

    /// Sines and cosines of the noise levels: `[texts, width]`.
    fn sinusoids(&self, deviations: &[f64]) -> Result<Tensor> {
        let half = self.config.width / 2;
        let waves = deviations.iter().flat_map(|deviation| {
            let level = TIME_SCALE * deviation.ln() / 4.0;
            let angle = move |wave: usize| level * PERIODS.powf(-(wave as f64) / half as f64);
            let sines = (0..half).map(move |wave| angle(wave).sin() as f32);
            sines.chain((0..half).map(move |wave| angle(wave).cos() as f32))
        });
        let waves: Vec<f32> = waves.collect();
        Ok(Tensor::from_vec(
            waves,
            (deviations.len(), self.config.width),
            &Device::Cpu,
        )?)
    }

    /// Writes shape and weights, in F32, into the folder of a model.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let parts = self.config.tensors().into_iter().map(|(name, shape)| {
            let values = self.tensor(&name)?.flatten_all()?.to_vec1::<f32>()?;
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            Ok((name, shape, bytes))
        });
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let views = parts.iter().map(|(name, shape, bytes)| {
            Ok((
                name.as_str(),
                TensorView::new(Dtype::F32, shape.clone(), bytes)?,
            ))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let mut metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        if let Some(origin) = &self.origin {
            metadata.insert(ORIGIN_KEY.to_owned(), serde_json::to_string(origin)?);
        }
        file::replace(
            &folder.join(WEIGHTS_NAME),
            safetensors::serialize(views, Some(metadata))?,
        )?;
        let json = serde_json::to_string_pretty(&self.config)? + "\n";
        file::replace(&folder.join(CONFIG_NAME), json)
    }

    /// Reads what [`Self::write`] wrote.
    pub fn read(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).with_context(|| format!("read {}", path.display()))
        };
        let config: PriorConfig = serde_json::from_slice(&read(CONFIG_NAME)?)?;
        let file = read(WEIGHTS_NAME)?;
        let tensors = SafeTensors::deserialize(&file).context("understand the prior")?;
        let weights = config.tensors().into_iter().map(|(name, _)| {
            let view = tensors
                .tensor(&name)
                .with_context(|| format!("find {name}"))?;
            let values = view.data().chunks_exact(4);
            let values =
                values.map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
            Ok((name, values.collect()))
        });
        let weights = weights.collect::<Result<_>>()?;
        let (_, header) = SafeTensors::read_metadata(&file).context("read the prior's header")?;
        let origin = header
            .metadata()
            .as_ref()
            .and_then(|all| all.get(ORIGIN_KEY));
        let origin = origin.map(|text| serde_json::from_str(text));
        Ok(Self {
            origin: origin
                .transpose()
                .context("read how the prior was trained")?,
            ..Self::from_weights(config, weights)?
        })
    }
}

fn silu(x: &Tensor) -> Result<Tensor> {
    Ok((x * ops::activate(x, None, Activation::Sigmoid)?)?)
}
