//! `config.json` of a shape, with the keys that its family is read by.

use serde_json::{Value, json};
use sluice_weights::{ExpertShape, LayerKind, Rwkv7Ranks, Shape, TensorNaming};

use super::SynthDType;
use crate::{
    CheckpointError,
    family::{Family, ModelConfig},
};

/// LLaDA's token ids for its own vocabulary; for other sizes the last two ids are used.
const LLADA_PADDED_VOCAB_SIZE: usize = 126_464;
const LLADA_MASK: usize = 126_336;
const LLADA_END: usize = 126_081;
/// The value of LLaDA and Llama 3. Random weights don't depend on it.
const ROPE_THETA: f64 = 500_000.0;
const EPSILON: f64 = 1e-5;

/// Checks that a checkpoint of this shape can be loaded, by reading its configuration as the loader does.
///
/// # Errors
/// The loader's error.
pub fn check(family: Option<Family>, shape: &Shape) -> Result<(), CheckpointError> {
    let config = config(family, shape, SynthDType::Bf16);
    let keys = config.as_object().expect("written as one below");
    let read = ModelConfig::read(keys, None)?;
    if read.shape == *shape && family.is_none_or(|family| read.family == family) {
        return Ok(());
    }
    // LLaDA's configuration has no key for the head dimension, so not every shape can be expressed.
    let (key, problem) = match (shape.naming, read.shape.head_dim) {
        (TensorNaming::Llada, found) if found != shape.head_dim => (
            "n_heads",
            format!("gives heads of {found}, not {}", shape.head_dim),
        ),
        _ => (
            "model_type",
            format!("is {}, which has no such shape", read.family.name()),
        ),
    };
    Err(CheckpointError::Config { key, problem })
}

pub(super) fn config(family: Option<Family>, shape: &Shape, element: SynthDType) -> Value {
    let mut config = match (shape.naming, shape.causal, shape.biases) {
        (TensorNaming::Llada, ..) => llada(shape),
        _ if family == Some(Family::LladaMoe) => llada_moe(shape),
        _ if family == Some(Family::FastDllm) => fast_dllm(shape),
        _ if let LayerKind::Mixture(experts) = &shape.layer_kind => mixture(shape, experts),
        (TensorNaming::HuggingFace, ..) if let LayerKind::Rwkv7(ranks) = &shape.layer_kind => {
            rwkv7(shape, ranks)
        }
        (TensorNaming::HuggingFace, true, false) if shape.qk_norms => {
            hugging_face(shape, "Qwen3ForCausalLM", "qwen3")
        }
        (TensorNaming::HuggingFace, true, false) => {
            hugging_face(shape, "LlamaForCausalLM", "llama")
        }
        (TensorNaming::HuggingFace, true, true) => hugging_face(shape, "Qwen2ForCausalLM", "qwen2"),
        (TensorNaming::HuggingFace, false, _) if shape.qk_norms => sdar(shape),
        (TensorNaming::HuggingFace, false, _) => dream(shape),
        (TensorNaming::LatentThought, ..) => latent_thought(shape),
        (TensorNaming::Nemotron, ..) => nemotron(shape),
        (TensorNaming::Gemma, ..) => gemma(shape),
        (TensorNaming::Bert | TensorNaming::PrefixedBert, ..) => bert(shape),
        (TensorNaming::Model2Vec, ..) => json!({
            "architectures": ["StaticModel"],
            "model_type": "model2vec",
            "vocab_size": shape.padded_vocab_size,
            "hidden_dim": shape.hidden_size,
            "normalize": true,
        }),
        // Its layers have experts.
        (TensorNaming::Llada2, ..) => hugging_face(shape, "LLaDA2MoeModelLM", "llada2_moe"),
    };
    if family == Some(Family::Rnd1) {
        // It has SDAR-MoE's shape.
        config["architectures"] = json!(["RND1LM"]);
        config["model_type"] = Family::Rnd1.name().into();
        config["pad_token_id"] = shape.padded_vocab_size.saturating_sub(2).into();
    }
    let dtype = match shape.naming {
        // Written by transformers 5.
        TensorNaming::Gemma => "dtype",
        _ => "torch_dtype",
    };
    config[dtype] = match element {
        SynthDType::Bf16 => "bfloat16",
        SynthDType::F16 => "float16",
        SynthDType::F32 => "float32",
    }
    .into();
    config
}

fn bert(shape: &Shape) -> Value {
    let mut config = json!({
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": shape.context_length,
        "num_attention_heads": shape.attention_heads,
        "num_hidden_layers": shape.layers,
        "position_embedding_type": "absolute",
        "vocab_size": shape.padded_vocab_size,
    });
    if let LayerKind::Encoder(encoder) = &shape.layer_kind {
        config["type_vocab_size"] = encoder.token_types.into();
    }
    config
}

fn llada(shape: &Shape) -> Value {
    let rows = shape.padded_vocab_size;
    let (mask, end) = match rows {
        LLADA_PADDED_VOCAB_SIZE => (Some(LLADA_MASK), Some(LLADA_END)),
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
        "d_model": shape.hidden_size,
        "n_layers": shape.layers,
        "n_heads": shape.attention_heads,
        "n_kv_heads": shape.kv_heads,
        "mlp_hidden_size": shape.intermediate_size,
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

/// A mixture of experts. Which family has such a shape, and no other, follows from its sizes.
fn mixture(shape: &Shape, experts: &ExpertShape) -> Value {
    let (architecture, model_type) = match (shape.naming, shape.causal) {
        (TensorNaming::Llada2, _) => ("LLaDA2MoeModelLM", "llada2_moe"),
        (_, true) => ("Qwen3MoeForCausalLM", "qwen3_moe"),
        (_, false) => ("SDARMoeForCausalLM", "sdar_moe"),
    };
    let mut config = hugging_face(shape, architecture, model_type);
    let more = json!({
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.intermediate_size,
        "norm_topk_prob": true,
    });
    let of_family = match shape.naming {
        TensorNaming::Llada2 => json!({
            "first_k_dense_replace": experts.dense_layers,
            "num_shared_experts": experts.shared_intermediate_size / experts.intermediate_size,
            "moe_router_enable_expert_bias": experts.has_choice_bias,
            "n_group": 8,
            "topk_group": 4,
            "routed_scaling_factor": 2.5,
            "score_function": "sigmoid",
            "partial_rotary_factor": 0.5,
        }),
        _ => json!({
            "decoder_sparse_step": experts.layer_step,
            "mlp_only_layers": (0..experts.dense_layers).collect::<Vec<_>>(),
        }),
    };
    for keys in [more, of_family] {
        let keys = keys.as_object().cloned().unwrap_or_default();
        config.as_object_mut().expect("made as one").extend(keys);
    }
    if !shape.causal {
        config["mask_token_id"] = shape.padded_vocab_size.saturating_sub(1).into();
    }
    config
}

/// LLaDA-MoE, whose keys are its own.
fn llada_moe(shape: &Shape) -> Value {
    let mut config = masked(hugging_face(shape, "LLaDAMoEModelLM", "llada"), shape);
    if let LayerKind::Mixture(experts) = &shape.layer_kind {
        let has_experts = (0..shape.layers).map(|layer| u8::from(experts.are_in(layer)));
        config["moe_layer_freq"] = has_experts.collect();
        config["num_experts"] = experts.count.into();
        config["num_experts_per_tok"] = experts.per_token.into();
        config["expert_intermediate_size"] = experts.intermediate_size.into();
        config["dense_intermediate_size"] = shape.intermediate_size.into();
        config["moe_router_score_function"] = "softmax".into();
        config["qk_layernorm"] = true.into();
    }
    config
}

fn fast_dllm(shape: &Shape) -> Value {
    let config = hugging_face(shape, "Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen");
    masked(config, shape)
}

fn rwkv7(shape: &Shape, ranks: &Rwkv7Ranks) -> Value {
    json!({
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "attn_mode": "chunk",
        "hidden_act": "sqrelu",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "head_dim": shape.head_dim,
        "num_heads": shape.attention_heads,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.padded_vocab_size,
        "decay_low_rank_dim": ranks.decay,
        "a_low_rank_dim": ranks.learning_rate,
        "v_low_rank_dim": ranks.value,
        "gate_low_rank_dim": ranks.gate,
        "norm_first": true,
        "norm_bias": true,
        "norm_eps": EPSILON,
        "tie_word_embeddings": shape.tied,
        "eos_token_id": 0,
    })
}

fn dream(shape: &Shape) -> Value {
    masked(hugging_face(shape, "DreamModel", "Dream"), shape)
}

fn sdar(shape: &Shape) -> Value {
    masked(hugging_face(shape, "SDARForCausalLM", "sdar"), shape)
}

fn nemotron(shape: &Shape) -> Value {
    let architecture = "NemotronLabsDiffusionModel";
    let mut config = hugging_face(shape, architecture, "nemotron_labs_diffusion");
    config["rope_parameters"] = json!({
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16_384,
        "llama_4_scaling_beta": 0.1,
    });
    masked(config, shape)
}

/// The configuration with the last id for the mask.
fn masked(mut config: Value, shape: &Shape) -> Value {
    config["mask_token_id"] = shape.padded_vocab_size.saturating_sub(1).into();
    config
}

fn latent_thought(shape: &Shape) -> Value {
    let LayerKind::LatentThought(latents) = shape.layer_kind else {
        return json!({"model_type": "ltm"});
    };
    json!({
        "architectures": ["LatentThoughtModel"],
        "model_type": "ltm",
        "dim": shape.hidden_size,
        "n_layers": shape.layers,
        "n_heads": shape.attention_heads,
        "n_kv_heads": shape.kv_heads,
        "hidden_dim": shape.intermediate_size,
        "vocab_size": shape.padded_vocab_size,
        "max_seq_len": shape.context_length,
        "max_z_len": latents.latents * shape.layers,
        "window_size": latents.window,
        "norm_eps": EPSILON,
        "rope_theta": 10_000.0,
        "eos_token_id": shape.padded_vocab_size.saturating_sub(1),
    })
}

/// DiffusionGemma, without the tower that sees.
fn gemma(shape: &Shape) -> Value {
    let architecture = "DiffusionGemmaForBlockDiffusion";
    let mut config = json!({
        "architectures": [architecture],
        "model_type": "diffusion_gemma",
        "canvas_length": 256.min(shape.context_length),
        "tie_word_embeddings": true,
    });
    let LayerKind::Gemma(gemma) = &shape.layer_kind else {
        return config;
    };
    let kind = |layer| match gemma.is_full(layer) {
        true => "full_attention",
        false => "sliding_attention",
    };
    config["text_config"] = json!({
        "model_type": "diffusion_gemma_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": 30.0,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.attention_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_global_key_value_heads": gemma.full_kv_heads,
        "global_head_dim": gemma.full_head_dim,
        "intermediate_size": shape.intermediate_size,
        "num_experts": gemma.experts.count,
        "top_k_experts": gemma.experts.per_token,
        "moe_intermediate_size": gemma.experts.intermediate_size,
        "layer_types": (0..shape.layers).map(kind).collect::<Vec<_>>(),
        "sliding_window": gemma.window,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1_000_000.0,
                "partial_rotary_factor": 0.25,
            },
        },
        "vocab_size": shape.padded_vocab_size,
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": 1e-6,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "tie_word_embeddings": true,
    });
    config
}

fn hugging_face(shape: &Shape, architecture: &str, model_type: &str) -> Value {
    json!({
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.attention_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.padded_vocab_size,
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": shape.tied,
        "eos_token_id": shape.padded_vocab_size.saturating_sub(2),
    })
}
