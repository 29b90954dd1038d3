//! `config.json` of a shape, with the keys its family is read by.

use serde_json::{Value, json};

use super::Element;
use crate::{
    checkpoint::CheckpointError,
    model::{
        llada,
        shape::{Naming, Shape},
    },
};

/// LLaDA's ids for its own vocabulary; in any other the last two are taken.
const LLADA_VOCABULARY: usize = 126_464;
const LLADA_MASK: usize = 126_336;
const LLADA_END: usize = 126_081;
/// LLaDA's and Llama 3's. Random weights have learned no other.
const ROPE_THETA: f64 = 500_000.0;
const EPSILON: f64 = 1e-5;

/// Whether a checkpoint of this shape can be loaded: its configuration is read as the loader
/// reads it. Families that the engine doesn't load yet are taken as they are.
///
/// # Errors
/// What the loader would say.
pub fn check(shape: &Shape) -> Result<(), CheckpointError> {
    if shape.naming != Naming::Llada {
        return Ok(());
    }
    let config = config(shape, Element::Bf16);
    let keys = config.as_object().expect("written as one below");
    let read = llada::Config::read(keys, None)?;
    if read.head_dim() != shape.head_dim {
        return Err(CheckpointError::Config {
            key: "n_heads",
            problem: format!("gives heads of {}, not {}", read.head_dim(), shape.head_dim),
        });
    }
    Ok(())
}

pub(super) fn config(shape: &Shape, element: Element) -> Value {
    let mut config = match (shape.naming, shape.biases) {
        (Naming::Llada, _) => llada(shape),
        (Naming::HuggingFace, false) => llama(shape),
        (Naming::HuggingFace, true) => dream(shape),
    };
    config["torch_dtype"] = match element {
        Element::Bf16 => "bfloat16",
        Element::F16 => "float16",
        Element::F32 => "float32",
    }
    .into();
    config
}

fn llada(shape: &Shape) -> Value {
    let rows = shape.embedding_rows;
    let (mask, end) = match rows {
        LLADA_VOCABULARY => (Some(LLADA_MASK), Some(LLADA_END)),
        _ => (rows.checked_sub(1), rows.checked_sub(2)),
    };
    json!({
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "block_type": "llama",
        "block_group_size": 1,
        "activation_type": "silu",
        "layer_norm_type": "rms",
        "rms_norm_eps": EPSILON,
        "rope": true,
        "rope_theta": ROPE_THETA,
        "d_model": shape.width,
        "n_layers": shape.layers,
        "n_heads": shape.heads,
        "n_kv_heads": shape.kv_heads,
        "mlp_hidden_size": shape.mlp_width,
        "vocab_size": rows,
        "embedding_size": rows,
        "max_sequence_length": shape.context_length,
        "mask_token_id": mask,
        "eos_token_id": end,
        "pad_token_id": end,
        "weight_tying": shape.tied,
        "include_bias": false,
        "include_qkv_bias": shape.biases,
        "bias_for_layer_norm": false,
        "attention_layer_norm": false,
        "input_emb_norm": false,
        "scale_logits": false,
        "alibi": false,
    })
}

fn llama(shape: &Shape) -> Value {
    let mut config = hugging_face(shape);
    config["architectures"] = json!(["LlamaForCausalLM"]);
    config["model_type"] = "llama".into();
    config["head_dim"] = shape.head_dim.into();
    config["attention_bias"] = false.into();
    config["mlp_bias"] = false.into();
    config
}

/// The one family here whose queries, keys and values have biases.
fn dream(shape: &Shape) -> Value {
    let mut config = hugging_face(shape);
    config["architectures"] = json!(["DreamModel"]);
    config["model_type"] = "Dream".into();
    config["mask_token_id"] = shape.embedding_rows.saturating_sub(1).into();
    config
}

fn hugging_face(shape: &Shape) -> Value {
    json!({
        "hidden_act": "silu",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.mlp_width,
        "vocab_size": shape.embedding_rows,
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": shape.tied,
        "eos_token_id": shape.embedding_rows.saturating_sub(2),
    })
}
