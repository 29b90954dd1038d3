//! Weights as a level deploys them, for training that should lose little by it (quantization-aware training).
//!
//! The forward pass runs with the deployed weights, and their gradients move the weights in full precision that they were
//! rounded from: the straight-through estimator (Bengio et al. 2013, arXiv 1308.3432). It only helps with the very values
//! that are deployed later, scales included, so formats come from the engine's plan for the level, and rounding is done by
//! the engine's own quantizer, which starts from the BF16 of the exported file. The block formats fit their scales to each
//! block, so nothing is clipped, and no gradient is zero for that reason.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use sluice_formats::Format;
use sluice_machine::Profile;
use sluice_plan::{Machine, Plan, PlanInput, WorkingMemory, Workload};
use sluice_shared::level::Level;
use sluice_weights::{SourceTensor, Storage};

use crate::{
    config::{ModelConfig, TransformerConfig, rwkv7},
    model::Model,
    parallel,
};

/// The format of an exported model.
const EXPORTED: Format = Format::Bf16;

/// How a run trains with the weights of a level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QuantizationOptions {
    /// The level.
    #[serde(with = "level_name")]
    pub level: Level,
    /// The last part of the run that does so, from 0 to 1.
    pub share: f64,
    /// Weight of the cross-entropy with the tokens.
    pub task_weight: f64,
    /// Weight of the KL divergence from the model in full precision with which that part begins.
    pub kl_weight: f64,
}

/// A level in the progress of a checkpoint, by the name that people type.
mod level_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use sluice_shared::level::Level;

    pub(super) fn serialize<S: Serializer>(
        level: &Level,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(level.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Level, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(D::Error::custom)
    }
}

/// The rounding that a level applies to the weights of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rounding {
    /// In the order of the network's variables.
    formats: Vec<Format>,
}

impl Rounding {
    /// The formats that a level gives an exported model of this shape.
    pub fn new(level: Level, config: &ModelConfig) -> Result<Self> {
        let formats = match config {
            ModelConfig::Transformer(config) => planned(level, config)?,
            _ => by_name(level, config),
        };
        ensure!(
            formats.iter().any(|format| *format != EXPORTED),
            "level {level} keeps the weights of this model as they are"
        );
        Ok(Self { formats })
    }

    /// The format of each variable.
    #[must_use]
    pub fn formats(&self) -> &[Format] {
        &self.formats
    }

    /// A network with the weights that the engine computes with at the level once this one is exported.
    pub fn apply(&self, model: &Model, threads: usize) -> Result<Model> {
        let variables: Vec<_> = model.variables().iter().zip(&self.formats).collect();
        let weights = parallel::map(threads, &variables, |((name, variable), format)| {
            let values = variable.flatten_all()?.to_vec1::<f32>()?;
            Ok((name.clone(), rounded(**format, &rounded(EXPORTED, &values))))
        })?;
        let weights = weights.into_iter().collect();
        Model::from_weights(model.config.clone(), weights, model.device())
    }
}

/// The formats of the engine's plan.
fn planned(level: Level, config: &TransformerConfig) -> Result<Vec<Format>> {
    let shape = config.shape();
    let sources = shape.tensors().into_iter().map(|spec| SourceTensor {
        spec,
        format: EXPORTED,
        compressed: None,
        compressed_copy: None,
        mixed: None,
    });
    let sources: Vec<_> = sources.collect();
    let plan = Plan::new(&PlanInput {
        shape: &shape,
        sources: &sources,
        choices: level.into(),
        budget_bytes: u64::MAX,
        workload: Workload::default(),
        working: WorkingMemory::default(),
        // Formats don't depend on the machine; threads and rates are for memory and times.
        machine: &Machine::unmeasured(Profile::cpu(1), 0),
    })?;
    let mut formats = vec![EXPORTED; sources.len()];
    for tensor in plan.groups.iter().flat_map(|group| &group.tensors) {
        if let Storage::Plain(format) = tensor.storage {
            formats[tensor.tensor] = format;
        }
    }
    Ok(formats)
}

/// The formats of networks whose shape the plan does not know: the level's in all matrices, but for embeddings and
/// RWKV-7's low-rank matrices, which the engine keeps plain at every level.
fn by_name(level: Level, config: &ModelConfig) -> Vec<Format> {
    let (matrices, head) = match level {
        Level::Moderate => (Format::Q8_0, Format::Q8_0),
        Level::Aggressive => (Format::Q4K, Format::Q6K),
        _ => (EXPORTED, EXPORTED),
    };
    let tensors = config.tensors().into_iter();
    let formats = tensors.map(|(name, shape)| match *shape {
        // An embedding that is the LM head, too, is one tensor.
        _ if config.is_embedding(&name) => EXPORTED,
        [_, width] if name == rwkv7::HEAD => head.for_width(width),
        [_, width] if config.decays(&name, &shape) => matrices.for_width(width),
        _ => EXPORTED,
    });
    formats.collect()
}

/// The values as a format stores them.
fn rounded(format: Format, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; format.bytes(values.len())];
    format.quantize(values, &mut bytes);
    let mut rounded = vec![0.0; values.len()];
    format.dequantize(&bytes, &mut rounded);
    rounded
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::config::{
        Rwkv7Config, TransformerConfig,
        transformer::{EMBEDDING, HEAD},
    };

    #[test]
    fn each_weight_has_the_format_of_the_level() {
        let config = TransformerConfig::demonstration(1280);
        for (level, matrices, head) in [
            (Level::Aggressive, Format::Q4K, Format::Q6K),
            (Level::Moderate, Format::Q8_0, Format::Q8_0),
        ] {
            for causal in [false, true] {
                let config = ModelConfig::from(TransformerConfig {
                    causal,
                    ..config.clone()
                });
                let rounding = Rounding::new(level, &config).expect("rounding");
                for ((name, shape), format) in config.tensors().iter().zip(rounding.formats()) {
                    let expected = match name.as_str() {
                        EMBEDDING => Format::Bf16,
                        HEAD => head,
                        _ if shape.len() == 1 => Format::Bf16,
                        _ => matrices,
                    };
                    assert_eq!(*format, expected, "{level}: {name}");
                }
            }
        }
        for level in [Level::Off, Level::Standard] {
            assert!(Rounding::new(level, &config.clone().into()).is_err());
        }
    }

    #[test]
    fn embeddings_vectors_and_low_rank_matrices_stay_plain() {
        let rwkv7 = ModelConfig::from(Rwkv7Config::new(256, 2, 512, 1280));
        let rounding = Rounding::new(Level::Aggressive, &rwkv7).expect("rounding");
        for ((name, _), format) in rwkv7.tensors().iter().zip(rounding.formats()) {
            let expected = match name.as_str() {
                "lm_head.weight" => Format::Q6K,
                name if name.ends_with("_proj.weight") => Format::Q4K,
                name if name.ends_with("ffn.key.weight") => Format::Q4K,
                name if name.ends_with("ffn.value.weight") => Format::Q4K,
                _ => Format::Bf16,
            };
            assert_eq!(*format, expected, "{name}");
        }
        for level in [Level::Off, Level::Standard] {
            assert!(Rounding::new(level, &rwkv7).is_err());
        }
    }

    fn weights(model: &Model) -> Vec<f32> {
        let variables = model.variables().iter();
        let weights = variables.map(|(_, variable)| {
            variable
                .flatten_all()
                .and_then(|flat| flat.to_vec1::<f32>())
        });
        let weights = weights.collect::<Result<Vec<_>, _>>().expect("weights");
        weights.concat()
    }

    fn model() -> Model {
        let config = TransformerConfig {
            n_layers: 1,
            ..TransformerConfig::demonstration(512)
        };
        Model::random(config, 3, 7, &Device::Cpu).expect("model")
    }

    #[test]
    fn threads_change_no_weight() {
        let model = model();
        let rounding = Rounding::new(Level::Aggressive, &model.config).expect("rounding");
        let rounded = |threads| weights(&rounding.apply(&model, threads).expect("apply"));
        assert_eq!(rounded(1), rounded(3));
    }

    #[test]
    fn rounded_weights_lose_little_by_rounding_them_again() {
        let rounding = Rounding::new(Level::Aggressive, &model().config).expect("rounding");
        let distance = |left: &Model, right: &Model| {
            let (left, right) = (weights(left), weights(right));
            let squares = left.iter().zip(&right);
            let squares = squares.map(|(left, right)| f64::from(left - right).powi(2));
            squares.sum::<f64>().sqrt()
        };
        let plain = model();
        let once = rounding.apply(&plain, 1).expect("apply");
        let twice = rounding.apply(&once, 1).expect("apply");
        let (first, second) = (distance(&plain, &once), distance(&once, &twice));
        assert!(second < 0.15 * first, "{second} after {first}");
    }
}
