//! Converts the configuration in a GGUF file to the `config.json` that it was made from, so that a family reads, and
//! refuses, both alike.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{
    super::CheckpointError, Gguf, dialect::GgufFamily, tensor::Tensor, tokenizer::BOS_KEY,
};
use crate::family::LAYERS_MAX;

/// A family's keys of numbers.
struct NumberKeys {
    /// Names of sizes: in `config.json`, and in GGUF below the architecture's prefix.
    sizes: &'static [[&'static str; 2]],
    floats: &'static [[&'static str; 2]],
}

static LLADA: NumberKeys = NumberKeys {
    sizes: &[
        ["d_model", "embedding_length"],
        ["n_layers", "block_count"],
        ["n_heads", "attention.head_count"],
        ["n_kv_heads", KV_HEADS],
        ["mlp_hidden_size", "feed_forward_length"],
        ["max_sequence_length", "context_length"],
    ],
    floats: &[
        ["rope_theta", ROPE_BASE],
        ["rms_norm_eps", "attention.layer_norm_rms_epsilon"],
    ],
};

/// Llama, Qwen2, Qwen3 and Dream.
static HUGGING_FACE: NumberKeys = NumberKeys {
    sizes: &[
        ["hidden_size", "embedding_length"],
        ["num_hidden_layers", "block_count"],
        ["num_attention_heads", "attention.head_count"],
        ["num_key_value_heads", KV_HEADS],
        ["intermediate_size", "feed_forward_length"],
        ["max_position_embeddings", "context_length"],
    ],
    floats: LLADA.floats,
};

/// Qwen3-MoE.
static QWEN3_MOE: NumberKeys = NumberKeys {
    sizes: &[
        ["hidden_size", "embedding_length"],
        ["num_hidden_layers", "block_count"],
        ["num_attention_heads", "attention.head_count"],
        ["num_key_value_heads", KV_HEADS],
        ["intermediate_size", DENSE_WIDTH],
        ["max_position_embeddings", "context_length"],
        ["num_experts", EXPERTS],
        ["num_experts_per_tok", "expert_used_count"],
        ["moe_intermediate_size", "expert_feed_forward_length"],
    ],
    floats: LLADA.floats,
};

/// LLaDA-MoE, whose `config.json` has names of its own for widths.
static LLADA_MOE: NumberKeys = NumberKeys {
    sizes: &[
        ["hidden_size", "embedding_length"],
        ["num_hidden_layers", "block_count"],
        ["num_attention_heads", "attention.head_count"],
        ["num_key_value_heads", KV_HEADS],
        ["dense_intermediate_size", DENSE_WIDTH],
        ["max_position_embeddings", "context_length"],
        ["num_experts", EXPERTS],
        ["num_experts_per_tok", "expert_used_count"],
        ["expert_intermediate_size", "expert_feed_forward_length"],
    ],
    floats: LLADA.floats,
};

/// There is no context length in it: llama.cpp writes a million, since there is none.
static RWKV7: NumberKeys = NumberKeys {
    sizes: &[
        ["hidden_size", "embedding_length"],
        ["num_hidden_layers", "block_count"],
        ["intermediate_size", "feed_forward_length"],
        ["head_dim", "wkv.head_size"],
        ["decay_low_rank_dim", "attention.decay_lora_rank"],
        ["a_low_rank_dim", "attention.iclr_lora_rank"],
        ["v_low_rank_dim", "attention.value_residual_mix_lora_rank"],
        ["gate_low_rank_dim", "attention.gate_lora_rank"],
    ],
    floats: &[["norm_eps", "attention.layer_norm_epsilon"]],
};

/// Keys that a file may omit: KV heads default to the query heads, RoPE's base to the family's.
const KV_HEADS: &str = "attention.head_count_kv";
const ROPE_BASE: &str = "rope.freq_base";
/// The width of MLPs, which mixtures may omit: in most of them no layer has one.
const DENSE_WIDTH: &str = "feed_forward_length";
const EXPERTS: &str = "expert_count";
/// Whether the weights of a row's experts are divided by their sum.
const NORMALIZES: &str = "expert_weights_norm";

impl NumberKeys {
    fn of(family: GgufFamily) -> &'static Self {
        match family {
            GgufFamily::Llada => &LLADA,
            GgufFamily::Llama | GgufFamily::Qwen2 | GgufFamily::Qwen3 | GgufFamily::Dream => {
                &HUGGING_FACE
            }
            GgufFamily::Qwen3Moe => &QWEN3_MOE,
            GgufFamily::LladaMoe => &LLADA_MOE,
            GgufFamily::Rwkv7 => &RWKV7,
        }
    }
}

/// Keys of variants that aren't supported, unless they have this value.
const VARIANTS: [(&str, f64); 12] = [
    ("rope.scale_linear", 1.0),
    (EXPERTS, 0.0),
    ("expert_shared_count", 0.0),
    ("expert_group_count", 1.0),
    ("expert_weights_scale", 1.0),
    // Softmax, as llama.cpp counts them.
    ("expert_gating_func", 1.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    // RWKV: the time mix and the channel mix have the token before each.
    ("token_shift_count", 2.0),
];

impl Gguf {
    /// The number of a key that only affects how tokens are chosen.
    pub(in super::super) fn number(&self, key: &str) -> Result<Option<f64>, String> {
        let number = self.metadata.float(key);
        number.map_err(|_| "is not a number".to_owned())
    }

    /// The keys of a `config.json`.
    ///
    /// # Errors
    /// Names the key that is missing or invalid, or asks for what isn't supported.
    pub fn config(&self) -> Result<Map<String, Value>, CheckpointError> {
        self.check_variant()?;
        let keys = NumberKeys::of(self.dialect.model);
        let mut config = Map::new();
        // Every size but the number of KV heads is required: a guess would give wrong results.
        for names in keys.sizes {
            let key = self.dialect.key(names[1]);
            match self.metadata.whole(&key)? {
                Some(size) => config.insert(names[0].to_owned(), size.into()),
                None if names[1] == KV_HEADS => continue,
                None if names[1] == DENSE_WIDTH && self.dialect.model.has_experts() => continue,
                None => return Err(self.metadata.problem(&key, "is missing")),
            };
        }
        for names in keys.floats {
            let key = self.dialect.key(names[1]);
            match self.metadata.float(&key)? {
                Some(number) => config.insert(names[0].to_owned(), number.into()),
                None if names[1] == ROPE_BASE => continue,
                None => return Err(self.metadata.problem(&key, "is missing")),
            };
        }
        if let Some(id) = self.mask_token_id()? {
            config.insert("mask_token_id".to_owned(), id.into());
        }
        config.insert("eos_token_id".to_owned(), self.end_token_ids()?.into());
        if let Some(id) = self.metadata.whole(BOS_KEY)? {
            config.insert("bos_token_id".to_owned(), id.into());
        }
        match self.dialect.model {
            GgufFamily::Llada => self.add_llada(&mut config)?,
            GgufFamily::Llama => self.add_others(&mut config, "llama")?,
            GgufFamily::Qwen2 => self.add_others(&mut config, "qwen2")?,
            GgufFamily::Qwen3 => self.add_others(&mut config, "qwen3")?,
            GgufFamily::Qwen3Moe => {
                self.add_others(&mut config, "qwen3_moe")?;
                self.add_qwen3_moe(&mut config)?;
            }
            GgufFamily::LladaMoe => {
                self.add_others(&mut config, "llada")?;
                self.add_llada_moe(&mut config)?;
            }
            GgufFamily::Dream => self.add_others(&mut config, "Dream")?,
            GgufFamily::Rwkv7 => self.add_rwkv7(&mut config)?,
        }
        Ok(config)
    }

    /// The file's key for a key of `config.json`, for messages.
    pub(super) fn key_of(&self, config_key: &str) -> String {
        let keys = NumberKeys::of(self.dialect.model);
        let names = keys.sizes.iter().chain(keys.floats);
        let mut found = names.filter(|names| names[0] == config_key);
        match (found.next(), config_key) {
            (Some(names), _) => self.dialect.key(names[1]),
            (None, "mask_token_id") => self.dialect.mask_key.to_owned(),
            (None, "eos_token_id") => "tokenizer.ggml.eos_token_id".to_owned(),
            (None, "head_dim") => self.dialect.key("attention.key_length"),
            (None, "vocab_size" | "embedding_size") => self.dialect.key("vocab_size"),
            (None, "sliding_window") => self.dialect.key("attention.sliding_window"),
            (None, "rope_scaling") => self.dialect.key("rope.scaling.type"),
            (None, "norm_topk_prob") => self.dialect.key(NORMALIZES),
            (None, other) => other.to_owned(),
        }
    }

    fn add_llada(&self, config: &mut Map<String, Value>) -> Result<(), CheckpointError> {
        // The number of rows comes from the tensor itself, since not every file has a key for it.
        let rows = self.padded_vocab_size()?;
        let tokens = self.metadata.texts(super::TOKENS_KEY)?;
        let named = self.metadata.whole(&self.dialect.key("vocab_size"))?;
        // The embedding is padded beyond the tokens, and only the tokens may be chosen.
        let vocabulary = match tokens {
            Some(tokens) => tokens.len() as u64,
            None => named.unwrap_or(rows),
        };
        let width = self.metadata.whole(&self.dialect.key("embedding_length"))?;
        let heads = self
            .metadata
            .whole(&self.dialect.key("attention.head_count"))?;
        if let (Some(length), Some(width), Some(heads)) = (self.head_dim()?, width, heads)
            && length.checked_mul(heads) != Some(width)
        {
            return Err(self.metadata.problem(
                &self.dialect.key("attention.key_length"),
                format!("is {length}; LLaDA's head dimension is the hidden size {width} divided by {heads} attention heads"),
            ));
        }
        config.insert("model_type".to_owned(), "llada".into());
        config.insert("vocab_size".to_owned(), vocabulary.into());
        config.insert("embedding_size".to_owned(), rows.into());
        config.insert("weight_tying".to_owned(), (!self.has_lm_head()).into());
        Ok(())
    }

    fn add_others(
        &self,
        config: &mut Map<String, Value>,
        model_type: &str,
    ) -> Result<(), CheckpointError> {
        config.insert("model_type".to_owned(), model_type.into());
        config.insert("vocab_size".to_owned(), self.padded_vocab_size()?.into());
        config.insert(
            "tie_word_embeddings".to_owned(),
            (!self.has_lm_head()).into(),
        );
        if let Some(length) = self.head_dim()? {
            config.insert("head_dim".to_owned(), length.into());
        }
        let window = self.dialect.key("attention.sliding_window");
        if let Some(window) = self.metadata.whole(&window)?.filter(|&window| window > 0) {
            config.insert("sliding_window".to_owned(), window.into());
        }
        let scaling = self.metadata.text(&self.dialect.key("rope.scaling.type"))?;
        if let Some(scaling) = scaling.filter(|&scaling| scaling != "none") {
            config.insert("rope_scaling".to_owned(), json!({ "rope_type": scaling }));
        }
        // Some relatives of Llama have biases. The family refuses them by this key: leaving them out would give wrong
        // results.
        let has_biases = |tensor: &Tensor| tensor.name.ends_with(".attn_q.bias");
        if self.dialect.model == GgufFamily::Llama && self.tensors.iter().any(has_biases) {
            config.insert("attention_bias".to_owned(), true.into());
        }
        Ok(())
    }

    fn add_qwen3_moe(&self, config: &mut Map<String, Value>) -> Result<(), CheckpointError> {
        let layers = self.layers_with_experts(config).into_iter().enumerate();
        let dense = layers.filter(|(_, has_experts)| !has_experts);
        let dense: Vec<_> = dense.map(|(layer, _)| layer).collect();
        config.insert("mlp_only_layers".to_owned(), dense.into());
        self.add_normalizes(config, true)
    }

    fn add_llada_moe(&self, config: &mut Map<String, Value>) -> Result<(), CheckpointError> {
        let layers = self.layers_with_experts(config).into_iter();
        let experts: Vec<_> = layers.map(u8::from).collect();
        config.insert("moe_layer_freq".to_owned(), experts.into());
        self.add_normalizes(config, false)
    }

    /// For each layer whether it has experts in the place of an MLP, which no key says.
    fn layers_with_experts(&self, config: &Map<String, Value>) -> Vec<bool> {
        let layers = config.get("num_hidden_layers").and_then(Value::as_u64);
        let layer_of = |tensor: &Tensor| {
            let layer = tensor.name.strip_prefix("blk.")?;
            layer.strip_suffix(".ffn_down.weight")?.parse().ok()
        };
        let dense: HashSet<u64> = self.tensors.iter().filter_map(layer_of).collect();
        // Bounded before memory is taken; a model of more layers is refused.
        let layers = layers.unwrap_or(0).min(LAYERS_MAX as u64);
        (0..layers).map(|layer| !dense.contains(&layer)).collect()
    }

    /// Whether the weights of a row's experts are divided by their sum. llama.cpp has no key for it where the architecture
    /// says it.
    fn add_normalizes(
        &self,
        config: &mut Map<String, Value>,
        usual: bool,
    ) -> Result<(), CheckpointError> {
        let named = self.metadata.bool(&self.dialect.key(NORMALIZES))?;
        config.insert("norm_topk_prob".to_owned(), named.unwrap_or(usual).into());
        Ok(())
    }

    fn add_rwkv7(&self, config: &mut Map<String, Value>) -> Result<(), CheckpointError> {
        config.insert("model_type".to_owned(), "rwkv7".into());
        config.insert("vocab_size".to_owned(), self.padded_vocab_size()?.into());
        config.insert(
            "tie_word_embeddings".to_owned(),
            (!self.has_lm_head()).into(),
        );
        Ok(())
    }

    /// The head dimension, if the file gives it.
    pub(super) fn head_dim(&self) -> Result<Option<u64>, CheckpointError> {
        let (key, value) = ("attention.key_length", "attention.value_length");
        let key_length = self.metadata.whole(&self.dialect.key(key))?;
        let value_length = self.metadata.whole(&self.dialect.key(value))?;
        // Files may give both; attention has one head dimension.
        match (key_length, value_length) {
            (key_length, None) => Ok(key_length),
            (Some(of_key), Some(of_value)) if of_key == of_value => Ok(key_length),
            (_, Some(length)) => Err(self.metadata.problem(
                &self.dialect.key(value),
                format!("is {length}; keys and values must have the same head dimension"),
            )),
        }
    }

    fn padded_vocab_size(&self) -> Result<u64, CheckpointError> {
        let embedding = self
            .tensors
            .iter()
            .find(|tensor| tensor.name == "token_embd.weight");
        match embedding.map(|tensor| &tensor.shape[..]) {
            Some([rows, _]) => Ok(*rows as u64),
            _ => Err(CheckpointError::MissingTensor {
                tensor: "token_embd.weight".to_owned(),
            }),
        }
    }

    fn has_lm_head(&self) -> bool {
        self.tensors
            .iter()
            .any(|tensor| tensor.name == "output.weight")
    }

    fn mask_token_id(&self) -> Result<Option<u64>, CheckpointError> {
        if self.dialect.model.is_causal() {
            return Ok(None);
        }
        let id = self.metadata.whole(self.dialect.mask_key)?;
        let hint = "is missing: the model fills masks, and the file does not say which token they are. Write a copy that does \
                    with gguf-py's gguf-new-metadata --special-token-by-id mask ID";
        id.map(Some)
            .ok_or_else(|| self.metadata.problem(self.dialect.mask_key, hint))
    }

    /// Ids that end a text, without repetition.
    fn end_token_ids(&self) -> Result<Vec<u64>, CheckpointError> {
        let mut ids = Vec::new();
        // Chat models have an end-of-turn token besides the end of text.
        for key in [
            "tokenizer.ggml.eos_token_id",
            "tokenizer.ggml.eot_token_id",
            "diffuse.eos_token_id",
        ] {
            ids.extend(self.metadata.whole(key)?.filter(|id| !ids.contains(id)));
        }
        Ok(ids)
    }

    /// Refuses variants that change the arithmetic: they would be run wrongly otherwise.
    fn check_variant(&self) -> Result<(), CheckpointError> {
        let refuse = |key: &str, found: String| {
            Err(self
                .metadata
                .problem(key, format!("is {found}, which is not supported")))
        };
        for (name, usual) in VARIANTS {
            if name == EXPERTS && self.dialect.model.has_experts() {
                continue;
            }
            let key = self.dialect.key(name);
            match self.metadata.float(&key)? {
                Some(found) if found != usual => return refuse(&key, found.to_string()),
                _ => {}
            }
        }
        // The architecture says how attention masks; a file that contradicts it is another model.
        let is_causal = self.dialect.model.is_causal();
        let key = self.dialect.key("attention.causal");
        if let Some(found) = self.metadata.bool(&key)?
            && found != is_causal
        {
            return refuse(&key, found.to_string());
        }
        // Dream's logits of a position are in the row before it. A file that says otherwise is another model.
        let shifts = self.dialect.model == GgufFamily::Dream;
        let key = "diffusion.shift_logits";
        if let Some(found) = self.metadata.bool(key)?
            && found != shifts
        {
            return refuse(key, found.to_string());
        }
        Ok(())
    }
}
