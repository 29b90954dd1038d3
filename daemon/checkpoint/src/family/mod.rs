//! Model families: what each one's configuration says, in the terms that all of them are computed by.
//!
//! A family is a way to read a configuration and to name tensors, and nothing else: the layers of all of them are those of
//! `model::transformer`. A [`ModelConfig`] can be put together from any source; `config.json` is one.

mod hugging_face;
mod keys;
mod llada;
mod published;

use serde_json::{Map, Value};
use sluice_weights::{Rope, Shape};

use self::keys::shortened;
pub use self::published::{PUBLISHED_SHAPES, PublishedShape};
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
    /// Masked diffusion with Qwen2's layers.
    Dream,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 5] = [
        Self::Llada,
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Dream,
    ];

    /// The name that screens and `config.json`'s `model_type` use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llada => "llada",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Dream => "Dream",
        }
    }

    /// Of `config.json`'s `architectures`, where it has no `model_type`.
    fn architecture(self) -> &'static str {
        match self {
            Self::Llada => "LLaDAModelLM",
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Dream => "DreamModel",
        }
    }
}

/// A model without its weights: everything that its passes depend on besides them.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Where it belongs.
    pub family: Family,
    /// Its sizes, and whether it is causal, tied and has biases.
    pub shape: Shape,
    /// Ids are below this; at most the shape's rows of embedding and head.
    pub vocab_size: usize,
    /// How positions turn queries and keys.
    pub rope: Rope,
    /// What is added to the mean square in norms.
    pub epsilon: f32,
    /// The mask; `None` for causal models, which have none, and for them alone.
    pub mask: Option<MaskToken>,
    /// Ids that end a text; the first fills what is left after it. May be empty.
    pub eos_token_ids: Vec<u32>,
}

/// How a model that fills masks does so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskToken {
    /// Its id.
    pub token_id: u32,
    /// Whether the logits of a position are those of the row before it (of the first row for the first position), as in
    /// models that were made of causal ones.
    pub shifted: bool,
}

impl MaskToken {
    /// The row whose logits are those of a position.
    #[must_use]
    pub fn row_of(&self, position: usize) -> usize {
        match self.shifted {
            true => position.saturating_sub(1),
            false => position,
        }
    }
}

impl ModelConfig {
    /// A configuration of this shape, with usual values for what has no size: for plans of shapes without a checkpoint.
    #[must_use]
    pub fn of(family: Family, shape: &Shape) -> Self {
        Self {
            family,
            vocab_size: shape.padded_vocab_size,
            rope: Rope::plain(500_000.0, shape.head_dim),
            epsilon: 1e-5,
            mask: (!shape.causal).then_some(MaskToken {
                token_id: 0,
                shifted: family == Family::Dream,
            }),
            eos_token_ids: Vec::new(),
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
            family => hugging_face::read(family, config, generation),
        }
    }
}

/// The family that `model_type` names, else the first of `architectures`.
fn family(config: &Map<String, Value>) -> Result<Family, CheckpointError> {
    let model_type = config.get("model_type").and_then(Value::as_str);
    let architecture = config
        .get("architectures")
        .and_then(|list| list.get(0))
        .and_then(Value::as_str);
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
