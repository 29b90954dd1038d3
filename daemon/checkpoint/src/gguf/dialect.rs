//! What programs write into GGUF files under the name of an architecture: whose model it is, where its keys are, and how
//! its tensors are called and laid out.
//!
//! Two dialects hold LLaDA. llama.cpp's (`llada`) stores the rows of queries and keys in the order that its rotation of
//! neighbouring pairs wants, as it does for `llama`; diffuse-cpp's (`diffuse`) leaves them as the model was published.

use super::{super::CheckpointError, metadata::Metadata};

/// Whose model it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GgufFamily {
    Llada,
    Llama,
    Qwen2,
    Dream,
}

/// How a file says what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dialect {
    pub(super) model: GgufFamily,
    /// Before the keys of sizes.
    prefix: &'static str,
    /// Key of the mask's id, for models that have one.
    pub(super) mask_key: &'static str,
    /// Whether each head of queries and keys has the rows of its two halves in turn, for a rotation of neighbours.
    pub(super) is_interleaved: bool,
}

const ARCHITECTURE_KEY: &str = "general.architecture";
/// What diffuse-cpp calls every model, and where it says which.
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
            "qwen2" => Ok(llama_cpp(GgufFamily::Qwen2, "qwen2", false)),
            "dream" => Ok(llama_cpp(GgufFamily::Dream, "dream", false)),
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

    /// A key of the architecture's.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// What the engine calls a tensor that the file calls so; `None` for what such models don't have.
    pub(super) fn engine_name(&self, file_name: &str) -> Option<String> {
        let column = self.column();
        if let Some(name) = WHOLE.iter().find(|names| names[0] == file_name) {
            return Some(name[column].to_owned());
        }
        let (layer, part) = file_name.strip_prefix("blk.")?.split_once('.')?;
        let number: usize = layer.parse().ok()?;
        // "01" and "+1" are no layers.
        if number.to_string() != layer {
            return None;
        }
        let (part, kind) = part.rsplit_once('.')?;
        let names = LAYER.iter().find(|names| names[0] == part)?;
        let has_biases = matches!(part, "attn_q" | "attn_k" | "attn_v");
        (kind == "weight" || (kind == "bias" && has_biases && column == HUGGING_FACE))
            .then(|| format!("{}{layer}.{}.{kind}", LAYERS[column], names[column]))
    }

    /// What the file calls a tensor that the engine calls so.
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

/// Columns of the names below.
const LLADA: usize = 1;
const HUGGING_FACE: usize = 2;

/// Before a layer's number.
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
