//! The shapes of the networks that can be trained, each written and read as its family's `config.json`.

pub mod latent_thought;
pub mod llama;
pub mod rwkv7;
pub mod transformer;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::{
    latent_thought::LatentThoughtConfig, rwkv7::Rwkv7Config, transformer::TransformerConfig,
};

/// The shape of a network of any kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
// A checkpoint has the keys of the kind alone; no two kinds have the same.
#[serde(untagged)]
pub enum ModelConfig {
    /// LLaDA, or Llama where attention is causal.
    Transformer(TransformerConfig),
    /// RWKV-7.
    Rwkv7(Rwkv7Config),
    /// A latent thought model.
    LatentThought(LatentThoughtConfig),
}

impl From<TransformerConfig> for ModelConfig {
    fn from(config: TransformerConfig) -> Self {
        Self::Transformer(config)
    }
}

impl From<Rwkv7Config> for ModelConfig {
    fn from(config: Rwkv7Config) -> Self {
        Self::Rwkv7(config)
    }
}

impl From<LatentThoughtConfig> for ModelConfig {
    fn from(config: LatentThoughtConfig) -> Self {
        Self::LatentThought(config)
    }
}

/// Ids of a vocabulary that a `config.json` tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begins a text.
    pub begin: Option<u32>,
    /// End a text, the usual one first.
    pub ends: Vec<u32>,
    /// Stands where nothing has been written yet.
    pub mask: Option<u32>,
}

impl ModelConfig {
    /// The shape that a `config.json` describes.
    pub fn from_json(json: Value) -> Result<Self> {
        Ok(match json["model_type"].as_str() {
            Some(llama::MODEL_TYPE) => llama::from_json(json)?.into(),
            Some(rwkv7::MODEL_TYPE) => serde_json::from_value::<Rwkv7Config>(json)?.into(),
            Some(latent_thought::MODEL_TYPE) => {
                serde_json::from_value::<LatentThoughtConfig>(json)?.into()
            }
            Some(transformer::MODEL_TYPE) => {
                serde_json::from_value::<TransformerConfig>(json)?.into()
            }
            other => bail!("models of type {other:?} can't be trained"),
        })
    }

    /// The whole `config.json`.
    pub fn to_json(&self, ids: &SpecialIds) -> Result<Value> {
        Ok(match self {
            Self::Transformer(config) if config.causal => {
                llama::to_json(config, ids.begin, &ids.ends)
            }
            Self::Transformer(config) => config.to_llada_json(
                ids.mask.context("the vocabulary has no mask")?,
                *ids.ends.last().context("the vocabulary has no end")?,
            ),
            Self::Rwkv7(config) => config.to_json(ids.begin, &ids.ends),
            Self::LatentThought(config) => config.to_json(ids.begin, &ids.ends),
        })
    }

    /// Refuses a shape that no network has.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Transformer(config) => config.check(),
            Self::Rwkv7(config) => config.check(),
            Self::LatentThought(config) => config.check(),
        }
    }

    /// Every tensor of the network by the trainer's name, in the order of a model's variables.
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        match self {
            Self::Transformer(config) => config.tensors(),
            Self::Rwkv7(config) => config.tensors(),
            Self::LatentThought(config) => config.tensors(),
        }
    }

    /// The names of the tensors in the family's files, in the same order.
    #[must_use]
    pub fn file_names(&self) -> Vec<String> {
        match self {
            Self::Transformer(config) => {
                let specs = config.shape().tensors().into_iter();
                specs.map(|spec| spec.name).collect()
            }
            _ => self.tensors().into_iter().map(|(name, _)| name).collect(),
        }
    }

    /// The tensors with a row for each token.
    #[must_use]
    pub fn token_tensors(&self) -> &'static [&'static str] {
        match self {
            Self::Transformer(_) => &[transformer::EMBEDDING, transformer::HEAD],
            Self::Rwkv7(_) => &[rwkv7::EMBEDDING, rwkv7::HEAD],
            Self::LatentThought(_) => &[latent_thought::EMBEDDING],
        }
    }

    /// Whether a tensor is the embedding.
    #[must_use]
    pub fn is_embedding(&self, name: &str) -> bool {
        self.token_tensors().first() == Some(&name)
    }

    /// Number of layers.
    #[must_use]
    pub fn layers(&self) -> usize {
        match self {
            Self::Transformer(config) => config.n_layers,
            Self::Rwkv7(config) => config.num_hidden_layers,
            Self::LatentThought(config) => config.n_layers,
        }
    }

    /// Width of the residual stream.
    #[must_use]
    pub fn width(&self) -> usize {
        match self {
            Self::Transformer(config) => config.d_model,
            Self::Rwkv7(config) => config.hidden_size,
            Self::LatentThought(config) => config.dim,
        }
    }

    /// Heads of each layer.
    #[must_use]
    pub fn heads(&self) -> usize {
        match self {
            Self::Transformer(config) => config.n_heads,
            Self::Rwkv7(config) => config.heads(),
            Self::LatentThought(config) => config.n_heads,
        }
    }

    /// Width inside the layers' second half.
    #[must_use]
    pub fn inner(&self) -> usize {
        match self {
            Self::Transformer(config) => config.mlp_hidden_size,
            Self::Rwkv7(config) => config.intermediate_size,
            Self::LatentThought(config) => config.inner(),
        }
    }

    /// Rows of the embedding and of the LM head.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Transformer(config) => config.vocab_size,
            Self::Rwkv7(config) => config.vocab_size,
            Self::LatentThought(config) => config.vocab_size,
        }
    }

    /// The same shape with a vocabulary of another size.
    #[must_use]
    pub fn with_vocab_size(mut self, size: usize) -> Self {
        match &mut self {
            Self::Transformer(config) => config.vocab_size = size,
            Self::Rwkv7(config) => config.vocab_size = size,
            Self::LatentThought(config) => config.vocab_size = size,
        }
        self
    }

    /// The longest sequence the network is meant for.
    #[must_use]
    pub fn length_max(&self) -> usize {
        match self {
            Self::Transformer(config) => config.max_sequence_length,
            Self::Rwkv7(config) => config.max_position_embeddings,
            Self::LatentThought(config) => config.max_seq_len,
        }
    }

    /// Whether a position sees only itself and those before it.
    #[must_use]
    pub fn causal(&self) -> bool {
        match self {
            Self::Transformer(config) => config.causal,
            Self::Rwkv7(_) | Self::LatentThought(_) => true,
        }
    }

    /// How the learning rate of a tensor relates to that of the others, as the official trainer of RWKV-7 has it.
    #[must_use]
    pub fn rate_scale(&self, name: &str) -> f64 {
        match self {
            // The decay of each channel.
            Self::Rwkv7(_) if name.ends_with("w_lora.lora.2.bias") => 2.0,
            _ => 1.0,
        }
    }

    /// Whether weight decay pulls a tensor towards zero.
    #[must_use]
    pub fn decays(&self, name: &str, shape: &[usize]) -> bool {
        match self {
            // Low-rank matrices, token shifts and the weights of the bonus are left alone.
            Self::Rwkv7(_) => {
                shape.len() == 2 && name.ends_with(".weight") && !name.contains("lora")
            }
            // Vectors, the weights of norms, are left alone.
            _ => shape.len() > 1,
        }
    }

    /// Number of weights.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.tensors()
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_read_back_from_its_config_and_from_a_checkpoint() {
        let ids = SpecialIds {
            begin: Some(506),
            ends: vec![511, 507],
            mask: Some(508),
        };
        let shapes = [
            ModelConfig::from(TransformerConfig::demonstration(512)),
            TransformerConfig {
                causal: true,
                ..TransformerConfig::demonstration(512)
            }
            .into(),
            Rwkv7Config::new(128, 2, 256, 512).into(),
            LatentThoughtConfig {
                dim: 64,
                n_layers: 2,
                n_heads: 4,
                hidden_dim: Some(96),
                multiple_of: 32,
                vocab_size: 512,
                max_seq_len: 128,
                max_z_len: 8,
                window_size: 16,
                norm_eps: 1e-5,
                rope_theta: 10_000.0,
            }
            .into(),
        ];
        for shape in shapes {
            let json = shape.to_json(&ids).expect("json");
            assert_eq!(ModelConfig::from_json(json).expect("read"), shape);
            let kept = serde_json::to_string(&shape).expect("write");
            assert_eq!(
                serde_json::from_str::<ModelConfig>(&kept).expect("read"),
                shape
            );
        }
        let other = serde_json::json!({ "model_type": "gpt2" });
        assert!(ModelConfig::from_json(other).is_err());
    }
}
