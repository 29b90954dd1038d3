//! The dialects in which programs write GGUF files, by architecture: the family, the prefix of keys, and names and
//! layout of tensors.
//!
//! There are two dialects for LLaDA. llama.cpp's (`llada`) stores rows of queries and keys in the order that its RoPE
//! of neighbouring pairs needs, as it does for `llama`; diffuse-cpp's (`diffuse`) keeps the published order.

use super::{super::CheckpointError, metadata::Metadata};

/// The family that a file's model belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GgufFamily {
    Llada,
    Llama,
    Qwen2,
    Dream,
}

/// How a file describes its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dialect {
    pub(super) model: GgufFamily,
    /// Prefix of the keys of sizes.
    prefix: &'static str,
    /// Key of the mask's id, for models that have one.
    pub(super) mask_key: &'static str,
    /// Whether rows of the two halves of each head of queries and keys alternate, as RoPE of neighbouring pairs needs
    /// it.
    pub(super) is_interleaved: bool,
}

const ARCHITECTURE_KEY: &str = "general.architecture";
/// diffuse-cpp's architecture for all models, and the key that says which model it is.
const DIFFUSE: &str = "diffuse";
const DIFFUSE_MODEL_KEY: &str = "diffuse.model_type";
const KNOWN: &str = "llama, qwen2, llada, dream, and diffuse with one of the last two";

impl Dialect {
    pub(super) fn of(metadata: &Metadata) -> Result<Self, CheckpointError> {
        let architecture = metadata
            .text(ARCHITECTURE_KEY)?
            .ok_or_else(|| metadata.problem(ARCHITECTURE_KEY, "is missing"))?;
        let llama_cpp = |model, prefix, is_interleaved| Self {
            model,
            prefix,
            mask_key: "tokenizer.ggml.mask_token_id",
            is_interleaved,
        };
        let diffuse = |model| Self {
            model,
            prefix: DIFFUSE,
            mask_key: "diffuse.mask_token_id",
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
            "dream" => Ok(llama_cpp(GgufFamily::Dream, "dream", false)),
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

    /// The engine's name for a tensor of the file; `None` if such models don't have it.
    pub(super) fn engine_name(&self, file_name: &str) -> Option<String> {
        let column = self.column();
        if let Some(name) = WHOLE.iter().find(|names| names[0] == file_name) {
            return Some(name[column].to_owned());
        }
        let (layer, part) = file_name.strip_prefix("blk.")?.split_once('.')?;
        let number: usize = layer.parse().ok()?;
        // Other spellings, such as "01" and "+1", are no layers: two tensors must not get the same name.
        if number.to_string() != layer {
            return None;
        }
        let (part, kind) = part.rsplit_once('.')?;
        let names = LAYER.iter().find(|names| names[0] == part)?;
        let has_biases = matches!(part, "attn_q" | "attn_k" | "attn_v");
        // LLaDA's layers have no biases.
        (kind == "weight" || (kind == "bias" && has_biases && column == HUGGING_FACE))
            .then(|| format!("{}{layer}.{}.{kind}", LAYERS[column], names[column]))
    }

    /// The file's name for a tensor of the engine.
    pub(super) fn file_name(&self, engine_name: &str) -> Option<String> {
        let column = self.column();
        if let Some(name) = WHOLE.iter().find(|names| names[column] == engine_name) {
            return Some(name[0].to_owned());
        }
        let (layer, part) = engine_name.strip_prefix(LAYERS[column])?.split_once('.')?;
        let (part, kind) = part.rsplit_once('.')?;
        let names = LAYER.iter().find(|names| names[column] == part)?;
        Some(format!("blk.{layer}.{}.{kind}", names[0]))
    }

    fn column(&self) -> usize {
        match self.model {
            GgufFamily::Llada => LLADA,
            GgufFamily::Llama | GgufFamily::Qwen2 | GgufFamily::Dream => HUGGING_FACE,
        }
    }
}

/// Columns of the tables below.
const LLADA: usize = 1;
const HUGGING_FACE: usize = 2;

/// Prefix of a layer's index.
const LAYERS: [&str; 3] = ["blk.", "model.transformer.blocks.", "model.layers."];

const WHOLE: [[&str; 3]; 3] = [
    [
        "token_embd.weight",
        "model.transformer.wte.weight",
        "model.embed_tokens.weight",
    ],
    [
        "output_norm.weight",
        "model.transformer.ln_f.weight",
        "model.norm.weight",
    ],
    [
        "output.weight",
        "model.transformer.ff_out.weight",
        "lm_head.weight",
    ],
];

const LAYER: [[&str; 3]; 9] = [
    ["attn_norm", "attn_norm", "input_layernorm"],
    ["attn_q", "q_proj", "self_attn.q_proj"],
    ["attn_k", "k_proj", "self_attn.k_proj"],
    ["attn_v", "v_proj", "self_attn.v_proj"],
    ["attn_output", "attn_out", "self_attn.o_proj"],
    ["ffn_norm", "ff_norm", "post_attention_layernorm"],
    ["ffn_gate", "ff_proj", "mlp.gate_proj"],
    ["ffn_up", "up_proj", "mlp.up_proj"],
    ["ffn_down", "ff_out", "mlp.down_proj"],
];
