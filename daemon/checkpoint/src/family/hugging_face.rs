//! `config.json` as Hugging Face's transformers writes it for Llama and its relatives: Llama 2 and 3, TinyLlama,
//! SmolLM2, Mistral, Qwen2, 2.5 and 3, Dream, Nemotron-Labs-Diffusion, and models that were made of them.
//!
//! Papers: Touvron et al. 2023 (arXiv 2302.13971), Jiang et al. 2023 (arXiv 2310.06825), Yang et al. 2024
//! (arXiv 2407.10671 and, for Qwen3, 2505.09388), Ye et al. 2025, "Dream 7B" (arXiv 2508.15487).
//! References: `LlamaForCausalLM`, `MistralForCausalLM` and `Qwen2ForCausalLM` of transformers 4.49, `Qwen3ForCausalLM` of
//! 5.23, and `DreamModel` as published with Dream-org/Dream-v0-Instruct-7B.
//!
//! They differ in few things: Qwen2 and Dream have biases for queries, keys and values. Qwen3 has none, and norms each head
//! of queries and keys before it is rotated. Dream has no causal mask and predicts masked positions; a position's logits are
//! in the row before it, as in the Qwen2 that it was made from.
//!
//! Difference from the references: where attention has a sliding window, the context ends where the window would begin
//! to hide positions, so none is ever outside of it.

use serde_json::{Map, Value};
use sluice_weights::{
    CONTEXT_LENGTH_MAX, HIDDEN_SIZE_MAX, LayerKind, Llama3Scaling, QueryScale, Rope, Shape,
    TensorNaming, YarnScaling,
};

use super::{
    BlockDiffusion, Family, MaskToken, ModelConfig,
    keys::{self, ConfigKeys, LAYERS_MAX, VOCAB_SIZE_MAX, problem, shortened},
    mixture,
};
use crate::CheckpointError;

/// transformers' default if the file has no value.
const ROPE_THETA: f32 = 10_000.0;
/// Mask ids of published vocabularies, for configurations that name none.
const SDAR_MASK: usize = 151_669;
const FAST_DLLM_MASK: usize = 151_665;
const LLADA_MOE_MASK: usize = 156_895;
/// RND1's padding, of the same vocabulary as SDAR's mask.
const RND1_PADDING: usize = 151_643;
/// Longest block of a block diffusion model: a pass computes all of its positions at once.
const BLOCK_LENGTH_MAX: usize = 4096;
/// The key of the context before it was extended.
const ORIGINAL_CONTEXT: &str = "original_max_position_embeddings";
/// transformers' default for norms.
const EPSILON: f32 = 1e-6;

/// Reads `config.json` and, if there is one, `generation_config.json` of this family.
pub(super) fn read(
    family: Family,
    config: &Map<String, Value>,
    generation: Option<&Map<String, Value>>,
) -> Result<ModelConfig, CheckpointError> {
    // Variants first: sizes of a model that cannot be run don't matter.
    check_variant(family, config)?;
    let keys = ConfigKeys(config);
    let width = keys.size("hidden_size", HIDDEN_SIZE_MAX)?;
    let heads = keys.size("num_attention_heads", HIDDEN_SIZE_MAX)?;
    // Files from before grouped-query attention have no such key: each query head has its own.
    let kv_heads = keys
        .optional_size("num_key_value_heads", heads)?
        .unwrap_or(heads);
    keys::check_kv_heads("num_key_value_heads", heads, kv_heads)?;
    let head_dim = head_dim(&keys, width, heads)?;
    let vocabulary = keys.size("vocab_size", VOCAB_SIZE_MAX)?;
    let mut eos_token_ids = keys::eos_token_ids(config, generation, vocabulary)?;
    // LLaDA2.0's files name the token that ends a text as the one that fills what is behind it.
    if let (Family::Llada2, true) = (family, eos_token_ids.is_empty()) {
        let filler = keys.optional_size("pad_token_id", vocabulary - 1)?;
        eos_token_ids.extend(filler.map(|id| id as u32));
    }
    let mask = match family {
        Family::Dream
        | Family::Sdar
        | Family::SdarMoe
        | Family::FastDllm
        | Family::LladaMoe
        | Family::Llada2
        | Family::Rnd1
        | Family::Nemotron => Some(mask(family, &keys, vocabulary, &eos_token_ids)?),
        _ => None,
    };
    let layers = keys.size("num_hidden_layers", LAYERS_MAX)?;
    let mixture = mixture::read(family, &keys, layers)?;
    let dense_width = match family {
        Family::LladaMoe => "dense_intermediate_size",
        _ => "intermediate_size",
    };
    let shape = Shape {
        naming: match family {
            Family::Llada2 => TensorNaming::Llada2,
            Family::Nemotron => TensorNaming::Nemotron,
            _ => TensorNaming::HuggingFace,
        },
        layers,
        hidden_size: width,
        attention_heads: heads,
        kv_heads,
        head_dim,
        intermediate_size: match &mixture {
            // The width of an MLP that no layer has.
            Some((experts, _)) if (0..layers).all(|layer| experts.are_in(layer)) => {
                experts.intermediate_size
            }
            _ => keys.size(dense_width, HIDDEN_SIZE_MAX)?,
        },
        padded_vocab_size: vocabulary,
        context_length: context_length(&keys)?,
        causal: mask.is_none(),
        // Absent means false, as in these families' configuration classes.
        tied: keys.flag("tie_word_embeddings")?,
        // `attention_bias` is refused above: Qwen2's biases are part of its architecture, and its output projection has
        // none.
        biases: matches!(family, Family::Qwen2 | Family::Dream | Family::FastDllm),
        qk_norms: mixture.is_some() || matches!(family, Family::Qwen3 | Family::Sdar),
        layer_kind: match mixture {
            Some((experts, _)) => LayerKind::Mixture(experts),
            None => LayerKind::Attention,
        },
    };
    let rotated = match family {
        Family::Llada2 => mixture::rotated(&keys, head_dim)?,
        _ => head_dim,
    };
    Ok(ModelConfig {
        family,
        vocab_size: vocabulary,
        rope: Some(rope(family, &keys, rotated)?.of_heads(head_dim)),
        full_rope: None,
        soft_cap: None,
        router: mixture.map(|(_, router)| router),
        shape,
        epsilon: keys.positive("rms_norm_eps", EPSILON)?,
        mask,
        eos_token_ids,
        bos_token_id: keys::bos_token_id(config, generation, vocabulary),
        inference: None,
        sentences: None,
    })
}

/// How a masked diffusion model of this family predicts.
fn mask(
    family: Family,
    keys: &ConfigKeys<'_>,
    vocabulary: usize,
    eos_token_ids: &[u32],
) -> Result<MaskToken, CheckpointError> {
    let published = match family {
        // Not in all published configurations: SDAR's has it, and an older copy of it has not.
        Family::Sdar | Family::SdarMoe | Family::Rnd1 => Some(SDAR_MASK),
        Family::FastDllm => Some(FAST_DLLM_MASK),
        Family::LladaMoe | Family::Llada2 => Some(LLADA_MOE_MASK),
        _ => None,
    };
    let blocks = family.blocks().map(|usual| {
        let key = match family {
            Family::FastDllm => "bd_size",
            _ => "block_size",
        };
        let length = keys.optional_size(key, BLOCK_LENGTH_MAX)?;
        let length = length.unwrap_or(usual.length);
        let whole = usual.filled_together == usual.length;
        let filled_together = match whole {
            true => length,
            false => usual.filled_together,
        };
        match length.is_multiple_of(filled_together) {
            true => Ok(BlockDiffusion {
                length,
                filled_together,
                ..usual
            }),
            false => Err(problem(
                key,
                format!("is {length}, not a multiple of the {filled_together} positions that are filled together"),
            )),
        }
    });
    Ok(MaskToken {
        token_id: Some(keys.mask_token_id(vocabulary, eos_token_ids, published)?),
        shifted: family.is_shifted(),
        blocks: blocks.transpose()?,
        reserved: match family {
            Family::Rnd1 => Some(reserved(keys, vocabulary)?),
            _ => None,
        },
    })
}

/// RND1's token behind the part to fill: its padding.
fn reserved(keys: &ConfigKeys<'_>, vocabulary: usize) -> Result<u32, CheckpointError> {
    let padding = keys.optional_size("pad_token_id", vocabulary - 1)?;
    let published = Some(RND1_PADDING).filter(|&id| id < vocabulary);
    let id = padding.or(published);
    Ok(id.ok_or_else(|| problem("pad_token_id", "is missing"))? as u32)
}

fn check_variant(family: Family, config: &Map<String, Value>) -> Result<(), CheckpointError> {
    let expected = [
        ("hidden_act", "silu".into()),
        ("attention_bias", false.into()),
        ("mlp_bias", false.into()),
        ("rope_interleaved", false.into()),
    ];
    keys::check_variant(config, &expected)?;
    match family {
        Family::Llada2 => {}
        _ => keys::check_variant(config, &[("partial_rotary_factor", 1.0.into())])?,
    }
    keys::check_unquantized(config)
}

fn head_dim(keys: &ConfigKeys<'_>, width: usize, heads: usize) -> Result<usize, CheckpointError> {
    let (key, head_dim) = match keys.optional_size("head_dim", HIDDEN_SIZE_MAX)? {
        Some(head_dim) => ("head_dim", head_dim),
        None if width.is_multiple_of(heads) => ("num_attention_heads", width / heads),
        None => {
            return Err(problem(
                "num_attention_heads",
                format!("is {heads}, which does not divide the hidden size {width}"),
            ));
        }
    };
    // RoPE rotates pairs, so heads have even dimension.
    if !head_dim.is_multiple_of(2) || heads * head_dim > HIDDEN_SIZE_MAX {
        return Err(problem(
            key,
            format!(
                "gives {heads} attention heads of dimension {head_dim}; the dimension must be even, and all heads together at most \
                 {HIDDEN_SIZE_MAX}"
            ),
        ));
    }
    keys::check_head_dim(key, "gives", head_dim)?;
    Ok(head_dim)
}

/// Most positions: those that the model was trained for, as far as a sliding window sees all of them.
fn context_length(keys: &ConfigKeys<'_>) -> Result<usize, CheckpointError> {
    let positions = keys.size("max_position_embeddings", usize::MAX)?;
    // Qwen2's files have a window even where it is switched off.
    let window = match keys.0.get("use_sliding_window") {
        Some(Value::Bool(false)) => None,
        _ => keys.optional_size("sliding_window", usize::MAX)?,
    };
    Ok(positions
        .min(window.unwrap_or(positions))
        .min(CONTEXT_LENGTH_MAX))
}

/// RoPE's frequencies, from older files (`rope_theta`, `rope_scaling`) or newer ones (`rope_parameters`).
fn rope(family: Family, keys: &ConfigKeys<'_>, head_dim: usize) -> Result<Rope, CheckpointError> {
    let empty = Map::new();
    let nested = |key| keys.0.get(key).and_then(Value::as_object);
    // Where a file has both, the newer key counts.
    let (key, scaling) = match (nested("rope_parameters"), nested("rope_scaling")) {
        (Some(parameters), _) => ("rope_parameters", parameters),
        (None, Some(scaling)) => ("rope_scaling", scaling),
        (None, None) => ("rope_scaling", &empty),
    };
    let inner = ConfigKeys(scaling);
    // Newer files have the base inside `rope_parameters`, older ones beside `rope_scaling`.
    let theta = inner.positive("rope_theta", keys.positive("rope_theta", ROPE_THETA)?)?;
    // Older files call the key `type`.
    let kind = scaling.get("rope_type").or_else(|| scaling.get("type"));
    let rope = match kind.unwrap_or(&Value::Null) {
        Value::Null => Ok(Rope::plain(theta, head_dim)),
        Value::String(kind) if kind == "default" => Ok(Rope::plain(theta, head_dim)),
        Value::String(kind) if kind == "llama3" => {
            let number = |key| inner.needed_positive(key);
            let scaling = Llama3Scaling {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_context: number(ORIGINAL_CONTEXT)?,
            };
            // The interpolation divides by their difference.
            if scaling.high_freq_factor <= scaling.low_freq_factor {
                return Err(problem(
                    "high_freq_factor",
                    "is not greater than low_freq_factor",
                ));
            }
            Ok(Rope::llama3(theta, head_dim, scaling))
        }
        Value::String(kind) if kind == "yarn" && family == Family::Nemotron => {
            yarn(&inner, theta, head_dim)
        }
        other => Err(problem(
            key,
            format!(
                "is of type {}; only default and llama3 are supported",
                shortened(&other.to_string())
            ),
        )),
    }?;
    Ok(Rope {
        query_scale: match family {
            Family::Nemotron => query_scale(&inner)?,
            _ => None,
        },
        ..rope
    })
}

/// YaRN, as Ministral 3 has it (`Ministral3ForCausalLM` of transformers 5.23).
fn yarn(keys: &ConfigKeys<'_>, theta: f32, head_dim: usize) -> Result<Rope, CheckpointError> {
    // With equal values cosines and sines are not scaled.
    let mscale = ["mscale", "mscale_all_dim"].map(|key| keys.0.get(key).and_then(Value::as_f64));
    if mscale[0].is_none() || mscale[0] != mscale[1] {
        return Err(problem("mscale", "is missing, or is not mscale_all_dim"));
    }
    keys::check_variant(keys.0, &[("truncate", true.into())])?;
    let scaling = YarnScaling {
        factor: keys.needed_positive("factor")?,
        beta_fast: keys.positive("beta_fast", 32.0)?,
        beta_slow: keys.positive("beta_slow", 1.0)?,
        original_context: keys.needed_positive(ORIGINAL_CONTEXT)?,
    };
    Ok(Rope::yarn(theta, head_dim, scaling))
}

/// How Ministral 3's queries grow with their position.
fn query_scale(keys: &ConfigKeys<'_>) -> Result<Option<QueryScale>, CheckpointError> {
    match keys.0.get("llama_4_scaling_beta") {
        None | Some(Value::Null) => Ok(None),
        Some(_) => Ok(Some(QueryScale {
            beta: keys.needed_positive("llama_4_scaling_beta")?,
            original_context: keys.size(ORIGINAL_CONTEXT, CONTEXT_LENGTH_MAX)?,
        })),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn small(model_type: &str) -> Value {
        json!({
            "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 300, "max_position_embeddings": 256,
            "mask_token_id": 298, "eos_token_id": 2,
        })
    }

    fn read(model_type: &str, change: impl FnOnce(&mut Value)) -> Result<ModelConfig, String> {
        let mut config = small(model_type);
        change(&mut config);
        ModelConfig::read(config.as_object().unwrap(), None).map_err(|error| error.to_string())
    }

    #[test]
    fn families_differ_in_biases_and_masks() {
        for (name, biases, mask) in [
            ("llama", false, false),
            ("mistral", false, false),
            ("qwen2", true, false),
            ("qwen3", false, false),
            ("Dream", true, true),
        ] {
            let config = read(name, |_| {}).unwrap();
            assert_eq!(config.family.name(), name);
            assert_eq!((config.shape.biases, config.shape.causal), (biases, !mask));
            let expected = mask.then_some(MaskToken {
                token_id: Some(298),
                shifted: true,
                blocks: None,
                reserved: None,
            });
            assert_eq!(config.mask, expected);
        }
    }

    #[test]
    fn heads_may_have_a_size_of_their_own() {
        let config = read("llama", |config| config["head_dim"] = 20.into()).unwrap();
        assert_eq!((config.shape.head_dim, config.shape.hidden_size), (20, 64));
        assert_eq!(config.rope, Some(Rope::plain(10_000.0, 20)));
        assert_eq!(read("llama", |_| {}).unwrap().shape.head_dim, 16);
    }

    #[test]
    fn rotations_are_read_from_old_files_and_new_ones() {
        let scaling = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        });
        let old = read("llama", |config| {
            config["rope_theta"] = 500_000.0.into();
            config["rope_scaling"] = scaling.clone();
        });
        let new = read("llama", |config| {
            config["rope_parameters"] = scaling.clone();
            config["rope_parameters"]["rope_theta"] = 500_000.0.into();
        });
        let rope = old.unwrap().rope;
        assert_eq!(rope, new.unwrap().rope);
        assert_ne!(rope, Some(Rope::plain(500_000.0, 16)));
        let default = read("llama", |config| {
            config["rope_scaling"] = json!({"type": "default"});
        });
        assert_eq!(default.unwrap().rope, Some(Rope::plain(10_000.0, 16)));
    }

    #[test]
    fn ministral_s_rotation_is_read_for_its_family_alone() {
        let scaling = json!({
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.1,
        });
        let name = "nemotron_labs_diffusion";
        let with = |key: &str, value: Value| {
            read(name, |config| {
                config["rope_parameters"] = scaling.clone();
                config["rope_parameters"][key] = value;
            })
        };
        let config = with("rope_type", "yarn".into()).unwrap();
        let blocks = config.mask.unwrap().blocks.unwrap();
        assert_eq!((blocks.length, blocks.causal_attention_before), (32, true));
        let rope = config.rope.unwrap();
        assert_eq!(rope.query_scale.unwrap().at(40), 1.0 + 0.1 * 2f32.ln());
        assert_ne!(rope.frequencies, Rope::plain(1e6, 16).frequencies);
        assert_eq!(
            with("mscale", 0.7.into()).unwrap_err(),
            "config.json: mscale is missing, or is not mscale_all_dim"
        );
        assert_eq!(
            with("factor", Value::Null).unwrap_err(),
            "config.json: factor is missing"
        );
        let other = read("llama", |config| {
            config["rope_parameters"] = scaling.clone();
        });
        assert!(other.unwrap_err().contains("is of type \"yarn\""));
    }

    #[test]
    fn rnd1_s_padding_stands_behind_the_answer() {
        let reserved = |padding: Value| {
            let config = read("rnd1", |config| {
                config["num_experts"] = 8.into();
                config["num_experts_per_tok"] = 2.into();
                config["moe_intermediate_size"] = 16.into();
                config["pad_token_id"] = padding;
            });
            config.map(|config| config.mask.unwrap())
        };
        let mask = reserved(7.into()).unwrap();
        assert_eq!((mask.reserved, mask.shifted), (Some(7), true));
        // The published one doesn't fit a small vocabulary.
        assert_eq!(
            reserved(Value::Null).unwrap_err(),
            "config.json: pad_token_id is missing"
        );
    }

    #[test]
    fn a_window_ends_the_context_where_it_would_bite() {
        let context = |config: Result<ModelConfig, String>| config.unwrap().shape.context_length;
        let window = |config: &mut Value| config["sliding_window"] = 100.into();
        assert_eq!(context(read("mistral", window)), 100);
        let unused = read("qwen2", |config| {
            window(config);
            config["use_sliding_window"] = false.into();
        });
        assert_eq!(context(unused), 256);
        let wide = |config: &mut Value| config["sliding_window"] = 4096.into();
        assert_eq!(context(read("mistral", wide)), 256);
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        let refusal =
            |key: &str, value: Value| read("llama", |config| config[key] = value).unwrap_err();
        assert_eq!(
            refusal("hidden_act", "gelu".into()),
            "config.json: hidden_act is \"gelu\"; only \"silu\" is supported"
        );
        assert_eq!(
            refusal("attention_bias", true.into()),
            "config.json: attention_bias is true; only false is supported"
        );
        assert_eq!(
            refusal("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
            "config.json: rope_scaling is of type \"yarn\"; only default and llama3 are supported"
        );
        assert_eq!(
            refusal("rope_scaling", json!({"rope_type": "llama3"})),
            "config.json: factor is missing"
        );
        assert_eq!(
            refusal("num_key_value_heads", 3.into()),
            "config.json: num_key_value_heads is 3, which does not divide the 4 attention heads"
        );
        assert_eq!(
            refusal("num_attention_heads", 7.into()),
            "config.json: num_key_value_heads is 2, which does not divide the 7 attention heads"
        );
        assert_eq!(
            refusal("head_dim", 15.into()),
            "config.json: head_dim gives 4 attention heads of dimension 15; the dimension must be even, and all heads together at most 65536"
        );
        assert_eq!(
            refusal("head_dim", 1026.into()),
            "config.json: head_dim gives a head dimension of 1026; the maximum is 1024"
        );
        assert_eq!(
            refusal("max_position_embeddings", 0.into()),
            format!(
                "config.json: max_position_embeddings is 0, not a whole number from 1 to {}",
                usize::MAX
            )
        );
        assert!(refusal("quantization_config", json!({"bits": 4})).contains("quantized"));
        assert_eq!(
            read("Dream", |config| config["eos_token_id"] = 298.into()).unwrap_err(),
            "config.json: eos_token_id is also the mask token's id"
        );
    }
}
