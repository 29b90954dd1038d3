//! The shape of a causal model with the keys of Hugging Face's `LlamaConfig`.
//!
//! LLaDA's layers are Llama's but for the mask of attention (arXiv 2302.13971): the same norms, rotary embedding by
//! halves, gated layers and weights without biases. So a causal network is a Llama with all heads of its own keys and an
//! LM head of its own.

use serde::Deserialize;
use serde_json::{Value, json};

use super::TransformerConfig;

/// The `model_type` of such a file.
pub const MODEL_TYPE: &str = "llama";

/// The keys that say what [`TransformerConfig`] says.
#[derive(Deserialize)]
struct Keys {
    hidden_size: usize,
    num_attention_heads: usize,
    num_hidden_layers: usize,
    intermediate_size: usize,
    vocab_size: usize,
    rope_theta: f64,
    rms_norm_eps: f64,
    max_position_embeddings: usize,
}

/// The shape that a `config.json` with Llama's keys describes, as [`to_json`] writes them.
pub fn from_json(json: Value) -> serde_json::Result<TransformerConfig> {
    let keys: Keys = serde_json::from_value(json)?;
    Ok(TransformerConfig {
        d_model: keys.hidden_size,
        n_heads: keys.num_attention_heads,
        n_layers: keys.num_hidden_layers,
        mlp_hidden_size: keys.intermediate_size,
        vocab_size: keys.vocab_size,
        rope_theta: keys.rope_theta,
        rms_norm_eps: keys.rms_norm_eps,
        max_sequence_length: keys.max_position_embeddings,
        causal: true,
    })
}

/// The whole `config.json`.
#[must_use]
pub fn to_json(config: &TransformerConfig, bos_id: Option<u32>, eos_ids: &[u32]) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": bos_id,
        "eos_token_id": eos_ids,
        "head_dim": config.d_model / config.n_heads,
        "hidden_act": "silu",
        "hidden_size": config.d_model,
        "initializer_range": 0.02,
        "intermediate_size": config.mlp_hidden_size,
        "max_position_embeddings": config.max_sequence_length,
        "mlp_bias": false,
        "model_type": MODEL_TYPE,
        "num_attention_heads": config.n_heads,
        "num_hidden_layers": config.n_layers,
        "num_key_value_heads": config.n_heads,
        "pad_token_id": eos_ids.last(),
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": null,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
        "use_cache": true,
        "vocab_size": config.vocab_size,
    })
}
