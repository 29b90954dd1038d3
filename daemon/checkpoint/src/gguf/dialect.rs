//! The dialects in which programs write GGUF files, by architecture: the family, the prefix of keys, and names and
//! layout of tensors.
//!
//! There are two dialects for LLaDA. llama.cpp's (`llada`) stores rows of queries and keys in the order that its RoPE
//! of neighbouring pairs needs, as it does for `llama`; diffuse-cpp's (`diffuse`) keeps the published order.

use super::{
    super::CheckpointError,
    metadata::Metadata,
    names::{self, Names},
};

/// The family that a file's model belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GgufFamily {
    Llada,
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    LladaMoe,
    Dream,
    Rwkv7,
}

impl GgufFamily {
    fn names(self) -> &'static Names {
        match self {
            Self::Llada => &names::LLADA,
            Self::Llama | Self::Qwen2 | Self::Qwen3 | Self::Dream => &names::HUGGING_FACE,
            Self::Qwen3Moe | Self::LladaMoe => &names::MIXTURE,
            Self::Rwkv7 => &names::RWKV7,
        }
    }

    /// Whether it is autoregressive: it fills no masks.
    pub(super) fn is_causal(self) -> bool {
        matches!(
            self,
            Self::Llama | Self::Qwen2 | Self::Qwen3 | Self::Qwen3Moe | Self::Rwkv7
        )
    }

    /// Whether its layers have mixtures of experts.
    pub(super) fn has_experts(self) -> bool {
        matches!(self, Self::Qwen3Moe | Self::LladaMoe)
    }
}

/// How a file describes its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dialect {
    pub(super) model: GgufFamily,
    /// Prefix of the keys of sizes.
    prefix: &'static str,
    /// Key of the mask's id, for models that have one.
    pub(super) mask_key: &'static str,
    /// Names of its tensors.
    pub(super) names: &'static Names,
    /// Whether rows of the two halves of each head of queries and keys alternate, as RoPE of neighbouring pairs needs
    /// it.
    pub(super) is_interleaved: bool,
}

const ARCHITECTURE_KEY: &str = "general.architecture";
/// diffuse-cpp's architecture for all models, and the key that says which model it is.
const DIFFUSE: &str = "diffuse";
const DIFFUSE_MODEL_KEY: &str = "diffuse.model_type";
const KNOWN: &str = "llama, qwen2, qwen3, qwen3moe, rwkv7, llada-moe, llada, dream, and diffuse with one of the last two";

impl Dialect {
    pub(super) fn of(metadata: &Metadata) -> Result<Self, CheckpointError> {
        let architecture = metadata
            .text(ARCHITECTURE_KEY)?
            .ok_or_else(|| metadata.problem(ARCHITECTURE_KEY, "is missing"))?;
        let llama_cpp = |model: GgufFamily, prefix, is_interleaved| Self {
            model,
            prefix,
            mask_key: "tokenizer.ggml.mask_token_id",
            names: model.names(),
            is_interleaved,
        };
        let diffuse = |model: GgufFamily| Self {
            model,
            prefix: DIFFUSE,
            mask_key: "diffuse.mask_token_id",
            names: model.names(),
            is_interleaved: false,
        };
        let unknown = |name: &str| CheckpointError::UnknownArchitecture {
            found: format!("{:?}", name.chars().take(100).collect::<String>()),
            known: KNOWN.to_owned(),
        };
        match architecture {
            "llada" => Ok(llama_cpp(GgufFamily::Llada, "llada", true)),
            "llama" => Ok(llama_cpp(GgufFamily::Llama, "llama", true)),
            // llama.cpp rotates halves for these, so their rows are in the published order.
            "qwen2" => Ok(llama_cpp(GgufFamily::Qwen2, "qwen2", false)),
            "qwen3" => Ok(llama_cpp(GgufFamily::Qwen3, "qwen3", false)),
            "qwen3moe" => Ok(llama_cpp(GgufFamily::Qwen3Moe, "qwen3moe", false)),
            "llada-moe" => Ok(llama_cpp(GgufFamily::LladaMoe, "llada-moe", false)),
            "dream" => Ok(llama_cpp(GgufFamily::Dream, "dream", false)),
            "rwkv7" => Ok(llama_cpp(GgufFamily::Rwkv7, "rwkv7", false)),
            // One architecture for all its models: only the key says which.
            DIFFUSE => match metadata.text(DIFFUSE_MODEL_KEY)? {
                Some("llada") => Ok(diffuse(GgufFamily::Llada)),
                Some("dream") => Ok(diffuse(GgufFamily::Dream)),
                Some(other) => Err(unknown(&format!("{DIFFUSE}/{other}"))),
                None => Err(metadata.problem(
                    DIFFUSE_MODEL_KEY,
                    "is missing: it says which model a file of diffuse-cpp holds",
                )),
            },
            other => Err(unknown(other)),
        }
    }

    /// A key below the architecture's prefix.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }
}
