//! Model families: reads each one's configuration into the terms that all of them are computed by.
//!
//! A family is a way to read a configuration and to name tensors; its layers are of one of the engine's kinds
//! (`LayerKind`). A [`ModelConfig`] can come from any source; `config.json` is one.

mod encoder;
mod gemma;
mod hugging_face;
mod keys;
mod latent;
mod llada;
mod mixture;
mod published;
mod rwkv7;

use serde_json::{Map, Value};
use sluice_weights::{LayerKind, Rope, Router, Shape};

pub use self::encoder::{Pooling, SentenceVectors};
pub(crate) use self::encoder::{SentenceFiles, complete, pooling_folder};
use self::keys::shortened;
pub use self::published::{PUBLISHED_SHAPES, PublishedShape};
pub(crate) use self::{keys::LAYERS_MAX, mixture::EXPERTS_MAX};
use super::CheckpointError;

/// A family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Masked diffusion, as GSAI-ML publishes it.
    Llada,
    /// Llama 2 and 3, TinyLlama, SmolLM2.
    Llama,
    /// Llama with a sliding window.
    Mistral,
    /// Qwen2 and 2.5: Llama with biases.
    Qwen2,
    /// Qwen2 with a norm of each head of queries and keys in the place of biases.
    Qwen3,
    /// Qwen3 with mixtures of experts.
    Qwen3Moe,
    /// Masked diffusion with Qwen2's layers.
    Dream,
    /// Block diffusion with Qwen3's layers: SDAR, TraDo.
    Sdar,
    /// Block diffusion with Qwen3-MoE's layers.
    SdarMoe,
    /// Block diffusion with Qwen2's layers: Fast-dLLM v2.
    FastDllm,
    /// Masked diffusion with mixtures of experts.
    LladaMoe,
    /// Block diffusion with mixtures of experts, LLaDA2.0.
    Llada2,
    /// Masked diffusion with Qwen3-MoE's layers.
    Rnd1,
    /// Block diffusion behind text that is read causally, with Ministral 3's layers: Nemotron-Labs-Diffusion.
    Nemotron,
    /// Autoregressive, with a state of fixed size in the place of a KV cache.
    Rwkv7,
    /// Autoregressive within a window, with latents that are inferred from the prompt.
    LatentThought,
    /// Canvases of random tokens that are denoised, behind text that is read causally.
    DiffusionGemma,
    /// Sentence encoders with BERT's layers.
    Bert,
    /// Sentence encoders that are a table of tokens' vectors alone.
    Model2Vec,
}

impl Family {
    /// Every supported family.
    pub const ALL: [Self; 19] = [
        Self::Llada,
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Qwen3Moe,
        Self::Dream,
        Self::Sdar,
        Self::SdarMoe,
        Self::FastDllm,
        Self::LladaMoe,
        Self::Llada2,
        Self::Rnd1,
        Self::Nemotron,
        Self::Rwkv7,
        Self::LatentThought,
        Self::DiffusionGemma,
        Self::Bert,
        Self::Model2Vec,
    ];

    /// The name that screens and `config.json`'s `model_type` use; LLaDA-MoE's files have LLaDA's.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llada => "llada",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Dream => "Dream",
            Self::Sdar => "sdar",
            Self::SdarMoe => "sdar_moe",
            Self::FastDllm => "Fast_dLLM_Qwen",
            Self::LladaMoe => "llada_moe",
            Self::Llada2 => "llada2_moe",
            Self::Rnd1 => "rnd1",
            Self::Nemotron => "nemotron_labs_diffusion",
            Self::Rwkv7 => "rwkv7",
            Self::LatentThought => "ltm",
            Self::DiffusionGemma => "diffusion_gemma",
            Self::Bert => "bert",
            Self::Model2Vec => "model2vec",
        }
    }

    /// The blocks of a block diffusion model, where its configuration names no others.
    fn blocks(self) -> Option<BlockDiffusion> {
        let (length, filled_together) = match self {
            Self::Sdar | Self::SdarMoe => (4, 4),
            Self::FastDllm => (32, 8),
            Self::Llada2 | Self::Nemotron => (32, 32),
            Self::DiffusionGemma => (256, 256),
            _ => return None,
        };
        Some(BlockDiffusion {
            length,
            filled_together,
            causal_attention_before: matches!(self, Self::Nemotron | Self::DiffusionGemma),
        })
    }

    /// Whether a masked diffusion model of it has a position's logits in the row before.
    fn is_shifted(self) -> bool {
        matches!(self, Self::Dream | Self::FastDllm | Self::Rnd1)
    }

    /// Its name in `config.json`'s `architectures`, which is used where there is no `model_type`.
    fn architecture(self) -> &'static str {
        match self {
            Self::Llada => "LLaDAModelLM",
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen3Moe => "Qwen3MoeForCausalLM",
            Self::Dream => "DreamModel",
            Self::Sdar => "SDARForCausalLM",
            Self::SdarMoe => "SDARMoeForCausalLM",
            Self::FastDllm => "Fast_dLLM_QwenForCausalLM",
            Self::LladaMoe => "LLaDAMoEModelLM",
            Self::Llada2 => "LLaDA2MoeModelLM",
            Self::Rnd1 => "RND1LM",
            Self::Nemotron => "NemotronLabsDiffusionModel",
            Self::Rwkv7 => "RWKV7ForCausalLM",
            Self::LatentThought => "LatentThoughtModel",
            Self::DiffusionGemma => "DiffusionGemmaForBlockDiffusion",
            Self::Bert => "BertModel",
            Self::Model2Vec => "StaticModel",
        }
    }
}

/// A model without its weights: everything else that its passes depend on.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family that it belongs to.
    pub family: Family,
    /// Its sizes, and whether it is autoregressive, has a tied LM head, and has biases.
    pub shape: Shape,
    /// Number of tokens; at most the rows of embedding and LM head.
    pub vocab_size: usize,
    /// Rotary embedding of queries and keys; `None` for layers without positions.
    pub rope: Option<Rope>,
    /// That of layers that see all, where others have a window; `None` where all layers have the same.
    pub full_rope: Option<Rope>,
    /// What logits are bounded by, smoothly; `None`: they are not.
    pub soft_cap: Option<f32>,
    /// How experts are chosen; `None` for models without any.
    pub router: Option<Router>,
    /// Added to the mean square in norms.
    pub epsilon: f32,
    /// The mask token of a masked diffusion model; `None` for autoregressive models.
    pub mask: Option<MaskToken>,
    /// Ids that end a text; the first one fills what is left after it. May be empty.
    pub eos_token_ids: Vec<u32>,
    /// The id that texts begin with in training; `None` where `bos_token_id` names none below `vocab_size`.
    pub bos_token_id: Option<u32>,
    /// How a latent thought model's latents are to be inferred; `None` for other models.
    pub inference: Option<LatentInference>,
    /// How a sentence encoder makes vectors of texts; `None` for other models.
    pub sentences: Option<SentenceVectors>,
}

/// How latents are to be inferred: as in the training that made the model use them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentInference {
    /// Steps of AdamW.
    pub steps: usize,
    /// Learning rate of the first step.
    pub learning_rate: f32,
    /// Where log variances begin.
    pub initial_log_variance: f32,
    /// What the KL divergence from the prior counts in each step. A bound always has all of it.
    pub kl_weight: f32,
}

impl Default for LatentInference {
    /// The reference's, at the end of its training.
    fn default() -> Self {
        Self {
            steps: 16,
            learning_rate: 0.34,
            initial_log_variance: -5.0,
            kl_weight: 1.0,
        }
    }
}

/// How a masked diffusion model predicts masked positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskToken {
    /// Id of the mask token; `None` where random tokens stand in its place, as in DiffusionGemma.
    pub token_id: Option<u32>,
    /// Whether the logits of a position are those of the row before it (of the first row for the first position), as in
    /// models that were made from autoregressive ones.
    pub shifted: bool,
    /// The blocks of a block diffusion model; `None` where each position sees the whole canvas.
    pub blocks: Option<BlockDiffusion>,
    /// The token that stands behind the part to fill from the start, as in RND1's training; `None` for other models.
    pub reserved: Option<u32>,
}

/// Block diffusion: attention is causal between blocks and full inside one (Arriola et al. 2025, arXiv 2503.09573). Blocks are
/// counted from position 0, those of the prompt included, unless what stands before the open block is read causally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockDiffusion {
    /// Positions of a block.
    pub length: usize,
    /// Positions of a block that are filled before those behind them: all, or an even share.
    pub filled_together: usize,
    /// Whether what stands before the open block is read causally, each position seeing only those before it. The first
    /// block then begins behind the prompt, wherever that ends, and the last row before a block predicts its first token.
    pub causal_attention_before: bool,
}

impl MaskToken {
    /// Id of the mask token.
    ///
    /// # Panics
    /// When random tokens stand in its place: whatever masks tokens is refused for such a model.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.token_id
            .expect("what masks tokens was checked against the model")
    }

    /// Whether random tokens stand in the place of masks.
    #[must_use]
    pub fn is_random(&self) -> bool {
        self.token_id.is_none()
    }

    /// Positions of a block of a block diffusion model.
    #[must_use]
    pub fn diffusion_block(&self) -> Option<u32> {
        let length = self.blocks?.length;
        u32::try_from(length).ok()
    }

    /// The row whose logits predict a position.
    #[must_use]
    pub fn row_of(&self, position: usize) -> usize {
        match self.shifted {
            true => position.saturating_sub(1),
            false => position,
        }
    }
}

impl ModelConfig {
    /// A configuration of this shape with usual values for everything else, for plans without a checkpoint.
    #[must_use]
    pub fn of(family: Family, shape: &Shape) -> Self {
        Self {
            family,
            vocab_size: shape.padded_vocab_size,
            // LLaDA's and Llama 3's base; memory and time don't depend on it.
            rope: match shape.layer_kind {
                LayerKind::Attention | LayerKind::Mixture(_) | LayerKind::LatentThought(_) => {
                    Some(Rope::plain(500_000.0, shape.head_dim))
                }
                LayerKind::Gemma(_) => Some(Rope::plain(10_000.0, shape.head_dim)),
                LayerKind::Rwkv7(_) | LayerKind::Encoder(_) => None,
            },
            full_rope: match shape.layer_kind {
                LayerKind::Gemma(gemma) => Some(Rope::proportional(1e6, gemma.full_head_dim, 0.25)),
                _ => None,
            },
            soft_cap: (family == Family::DiffusionGemma).then_some(30.0),
            router: match shape.layer_kind {
                LayerKind::Mixture(_) if family == Family::Llada2 => Some(Router::SigmoidGroups {
                    groups: 8,
                    kept_groups: 4,
                    scale: 2.5,
                }),
                LayerKind::Mixture(_) => Some(Router::Softmax {
                    renormalizes: family != Family::LladaMoe,
                }),
                LayerKind::Gemma(_) => Some(gemma::router(shape.hidden_size)),
                _ => None,
            },
            epsilon: 1e-5,
            mask: (!shape.causal && !matches!(shape.layer_kind, LayerKind::Encoder(_))).then_some(
                MaskToken {
                    token_id: (family != Family::DiffusionGemma).then_some(0),
                    shifted: family.is_shifted(),
                    blocks: family.blocks(),
                    reserved: (family == Family::Rnd1).then_some(0),
                },
            ),
            eos_token_ids: Vec::new(),
            bos_token_id: None,
            inference: match shape.layer_kind {
                LayerKind::LatentThought(_) => Some(LatentInference::default()),
                _ => None,
            },
            sentences: match shape.layer_kind {
                LayerKind::Encoder(_) => Some(SentenceVectors {
                    pooling: Pooling::Mean,
                    are_normalized: true,
                }),
                _ => None,
            },
            shape: shape.clone(),
        }
    }

    /// Reads `config.json` and, if there is one, `generation_config.json`.
    ///
    /// # Errors
    /// An unknown architecture, or the key that is missing, makes no sense, or asks for what isn't computed here.
    pub fn read(
        config: &Map<String, Value>,
        generation: Option<&Map<String, Value>>,
    ) -> Result<Self, CheckpointError> {
        match family(config)? {
            Family::Llada => llada::read(config, generation),
            Family::Rwkv7 => rwkv7::read(config, generation),
            Family::LatentThought => latent::read(config, generation),
            Family::DiffusionGemma => gemma::read(config, generation),
            Family::Bert => encoder::read(config),
            Family::Model2Vec => encoder::read_static(config),
            family => hugging_face::read(family, config, generation),
        }
    }
}

/// The family that `model_type` names, or else the first of `architectures`.
fn family(config: &Map<String, Value>) -> Result<Family, CheckpointError> {
    let model_type = config.get("model_type").and_then(Value::as_str);
    let architecture = config
        .get("architectures")
        .and_then(|list| list.get(0))
        .and_then(Value::as_str);
    // LLaDA-MoE has LLaDA's `model_type`.
    let experts = config.get("num_experts").and_then(Value::as_u64);
    let has_experts =
        experts.unwrap_or(0) > 0 || architecture == Some(Family::LladaMoe.architecture());
    if model_type == Some(Family::Llada.name()) && has_experts {
        return Ok(Family::LladaMoe);
    }
    // `model_type` decides alone where it counts: fine-tunes may have an architecture of their own name.
    let is_named = |family: &&Family| match (model_type, architecture) {
        (Some(model_type), _) => model_type == family.name(),
        (None, Some(architecture)) => architecture == family.architecture(),
        (None, None) => false,
    };
    if let Some(family) = Family::ALL.iter().find(is_named) {
        return Ok(*family);
    }
    let found = match model_type.or(architecture) {
        Some(name) => format!("{:?}", shortened(name)),
        None => "(config.json has neither model_type nor architectures)".to_owned(),
    };
    Err(CheckpointError::UnknownArchitecture {
        found,
        known: Family::ALL.map(Family::name).join(", "),
    })
}
