//! The keys of a mixture of experts in `config.json`: of Qwen3-MoE, SDAR-MoE and RND1, of LLaDA-MoE, and of LLaDA2.0.
//!
//! References: `Qwen3MoeForCausalLM` of transformers 5.23, and the classes as published with
//! inclusionAI/LLaDA-MoE-7B-A1B-Instruct and inclusionAI/LLaDA2.0-mini.

use serde_json::Value;
use sluice_weights::{ExpertShape, HIDDEN_SIZE_MAX, Router};

use super::{
    Family,
    keys::{self, ConfigKeys, problem},
};
use crate::CheckpointError;

/// Most experts of a layer.
pub(crate) const EXPERTS_MAX: usize = 1 << 12;

/// The experts of this family and how they are chosen; `None` for families without any.
pub(super) fn read(
    family: Family,
    keys: &ConfigKeys<'_>,
    layers: usize,
) -> Result<Option<(ExpertShape, Router)>, CheckpointError> {
    let mixture = match family {
        Family::Qwen3Moe | Family::SdarMoe | Family::Rnd1 => qwen3(keys, layers)?,
        Family::LladaMoe => llada(keys, layers)?,
        Family::Llada2 => llada2(keys, layers)?,
        _ => return Ok(None),
    };
    Ok(Some(mixture))
}

/// What is the same in all families; `width` is the key of an expert's width.
fn experts(
    keys: &ConfigKeys<'_>,
    width: &'static str,
    dense_layers: usize,
) -> Result<ExpertShape, CheckpointError> {
    let count = keys.size("num_experts", EXPERTS_MAX)?;
    Ok(ExpertShape {
        count,
        per_token: keys.size("num_experts_per_tok", count)?,
        intermediate_size: keys.size(width, HIDDEN_SIZE_MAX)?,
        shared_intermediate_size: 0,
        has_choice_bias: false,
        dense_layers,
        layer_step: 1,
    })
}

fn qwen3(keys: &ConfigKeys<'_>, layers: usize) -> Result<(ExpertShape, Router), CheckpointError> {
    keys::check_variant(keys.0, &[("shared_expert_intermediate_size", 0.into())])?;
    let dense = match keys.0.get("mlp_only_layers") {
        None | Some(Value::Null) => 0,
        Some(list) => first_layers("mlp_only_layers", list, layers)?,
    };
    let step = keys.optional_size("decoder_sparse_step", layers)?;
    let experts = ExpertShape {
        layer_step: step.unwrap_or(1),
        ..experts(keys, "moe_intermediate_size", dense)?
    };
    let renormalizes = keys.flag("norm_topk_prob")?;
    Ok((experts, Router::Softmax { renormalizes }))
}

fn llada(keys: &ConfigKeys<'_>, layers: usize) -> Result<(ExpertShape, Router), CheckpointError> {
    let expected = [
        ("clip_qkv", Value::Null),
        ("moe_router_enable_expert_bias", false.into()),
        ("moe_router_score_function", "softmax".into()),
        ("qk_layernorm", true.into()),
        ("routed_scaling_factor", 1.into()),
        ("router_num_group", 1.into()),
        ("router_topk_group", 1.into()),
        ("shared_expert_intermediate_size", 0.into()),
    ];
    keys::check_variant(keys.0, &expected)?;
    needed(keys, &["rms_norm_eps", "rope_theta"])?;
    let dense = match keys.0.get("moe_layer_freq") {
        None | Some(Value::Null) => 0,
        // For each layer whether it has experts.
        Some(Value::Array(list)) if list.len() == layers => {
            let dense = list.iter().take_while(|&layer| layer == 0).count();
            match list[dense..].iter().all(|layer| layer == 1) {
                true => dense,
                false => return Err(other_layers("moe_layer_freq")),
            }
        }
        Some(_) => {
            return Err(problem(
                "moe_layer_freq",
                format!("is no list of the {layers} layers"),
            ));
        }
    };
    let experts = experts(keys, "expert_intermediate_size", dense)?;
    let renormalizes = keys.flag("norm_topk_prob")?;
    Ok((experts, Router::Softmax { renormalizes }))
}

fn llada2(keys: &ConfigKeys<'_>, layers: usize) -> Result<(ExpertShape, Router), CheckpointError> {
    let expected = [
        ("expert_capacity", Value::Null),
        ("norm_head", false.into()),
        ("norm_softmax", false.into()),
        ("norm_topk_prob", true.into()),
        ("num_nextn_predict_layers", 0.into()),
        ("router_dtype", "fp32".into()),
        ("score_function", "sigmoid".into()),
        ("use_bias", false.into()),
        ("use_qk_norm", true.into()),
        ("use_qkv_bias", false.into()),
        ("use_rmsnorm", true.into()),
        ("using_split_qkv_in_self_attention", false.into()),
    ];
    keys::check_variant(keys.0, &expected)?;
    // The published classes' defaults are not the published models' values.
    let named = [
        "first_k_dense_replace",
        "num_shared_experts",
        "partial_rotary_factor",
        "rms_norm_eps",
        "rope_theta",
        "routed_scaling_factor",
    ];
    needed(keys, &named)?;
    let dense = keys.count("first_k_dense_replace", layers)?;
    let shared = keys.count("num_shared_experts", EXPERTS_MAX)?;
    let plain = experts(keys, "moe_intermediate_size", dense)?;
    let shared_intermediate_size = shared * plain.intermediate_size;
    if shared_intermediate_size > HIDDEN_SIZE_MAX {
        return Err(problem(
            "num_shared_experts",
            format!(
                "gives a width of {shared_intermediate_size}; the maximum is {HIDDEN_SIZE_MAX}"
            ),
        ));
    }
    // With one expert the published router leaves out what it does with several.
    if plain.per_token == 1 {
        return Err(problem(
            "num_experts_per_tok",
            "is 1; at least 2 are supported",
        ));
    }
    let groups = keys.size("n_group", plain.count)?;
    if !plain.count.is_multiple_of(groups) {
        return Err(problem(
            "n_group",
            format!(
                "is {groups}, which does not divide the {} experts",
                plain.count
            ),
        ));
    }
    let kept_groups = keys.size("topk_group", groups)?;
    let left = plain.count / groups * kept_groups;
    if left < plain.per_token {
        return Err(problem(
            "topk_group",
            format!(
                "leaves {left} experts, of which {} are to be chosen",
                plain.per_token
            ),
        ));
    }
    let has_choice_bias = match keys.0.get("moe_router_enable_expert_bias") {
        None | Some(Value::Null) => true,
        Some(_) => keys.flag("moe_router_enable_expert_bias")?,
    };
    let experts = ExpertShape {
        shared_intermediate_size,
        has_choice_bias,
        ..plain
    };
    let router = Router::SigmoidGroups {
        groups,
        kept_groups,
        scale: keys.needed_positive("routed_scaling_factor")?,
    };
    Ok((experts, router))
}

/// Elements of a head that LLaDA2.0 rotates.
pub(super) fn rotated(keys: &ConfigKeys<'_>, head_dim: usize) -> Result<usize, CheckpointError> {
    let factor = keys.needed_positive("partial_rotary_factor")?;
    let rotated = head_dim as f32 * factor;
    if rotated.fract() != 0.0 || rotated % 2.0 != 0.0 || factor > 1.0 {
        return Err(problem(
            "partial_rotary_factor",
            format!("is {factor}, which leaves no whole pairs of {head_dim} elements"),
        ));
    }
    let rotated = rotated as usize;
    match keys.optional_size("rotary_dim", head_dim)? {
        Some(found) if found != rotated => Err(problem(
            "rotary_dim",
            format!("is {found}, and partial_rotary_factor gives {rotated}"),
        )),
        _ => Ok(rotated),
    }
}

/// How many of the first layers a list of layers names.
fn first_layers(key: &'static str, list: &Value, layers: usize) -> Result<usize, CheckpointError> {
    let numbers = list.as_array().filter(|list| list.len() <= layers);
    let numbers = numbers.ok_or_else(|| problem(key, "is no list of layers"))?;
    let are_first = (0..numbers.len()).all(|layer| numbers.contains(&layer.into()));
    match are_first {
        true => Ok(numbers.len()),
        false => Err(other_layers(key)),
    }
}

fn other_layers(key: &'static str) -> CheckpointError {
    problem(
        key,
        "names layers without experts behind some that have them; only the first may have none",
    )
}

fn needed(keys: &ConfigKeys<'_>, names: &[&'static str]) -> Result<(), CheckpointError> {
    let is_missing = |key: &&&'static str| keys.0.get(**key).is_none_or(Value::is_null);
    match names.iter().find(is_missing) {
        Some(key) => Err(problem(key, "is missing")),
        None => Ok(()),
    }
}
