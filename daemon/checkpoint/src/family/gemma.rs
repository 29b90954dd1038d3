//! `config.json` of DiffusionGemma, as transformers 5.23 writes it and as it is published: what is of the text model stands
//! in `text_config`. The vision tower is not read.
//!
//! Reference: `DiffusionGemmaForBlockDiffusion` of transformers 5.23. A prompt is read causally; behind it a canvas of
//! random tokens is denoised, which sees all of the prompt (in layers with a window its last tokens) and itself. The same
//! weights do both, but for a scalar of each layer.
//!
//! Difference from the reference: pictures are refused.

use serde_json::{Map, Value};
use sluice_weights::{
    CONTEXT_LENGTH_MAX, ExpertShape, GemmaShape, HIDDEN_SIZE_MAX, LayerKind, Rope, Router, Shape,
    TensorNaming,
};

use super::{
    BlockDiffusion, Family, MaskToken, ModelConfig,
    keys::{self, ConfigKeys, LAYERS_MAX, VOCAB_SIZE_MAX, problem, shortened},
    mixture::EXPERTS_MAX,
};
use crate::CheckpointError;

/// Longest canvas: the cache of layers with a window has room for as many rows of a pass.
const CANVAS_LENGTH_MAX: usize = 512;
/// The defaults of the configuration's class.
const CANVAS_LENGTH: usize = 256;
const EPSILON: f32 = 1e-6;
const THETA: f32 = 10_000.0;
const FULL_THETA: f32 = 1_000_000.0;
const FULL_SHARE: f32 = 0.25;
const FULL_HEAD_DIM: usize = 512;
const FULL_STEP: usize = 6;
const SOFT_CAP: f32 = 30.0;

/// Reads `config.json` and, if there is one, `generation_config.json`.
pub(super) fn read(
    config: &Map<String, Value>,
    generation: Option<&Map<String, Value>>,
) -> Result<ModelConfig, CheckpointError> {
    let text = config.get("text_config").and_then(Value::as_object);
    let text = text.ok_or_else(|| problem("text_config", "is missing"))?;
    check_variant(config, text)?;
    let keys = ConfigKeys(text);
    let width = keys.size("hidden_size", HIDDEN_SIZE_MAX)?;
    let heads = keys.size("num_attention_heads", HIDDEN_SIZE_MAX)?;
    let kv_heads = keys.size("num_key_value_heads", heads)?;
    keys::check_kv_heads("num_key_value_heads", heads, kv_heads)?;
    let head_dim = keys.size("head_dim", HIDDEN_SIZE_MAX)?;
    check_head_dim("head_dim", heads, head_dim)?;
    let layers = keys.size("num_hidden_layers", LAYERS_MAX)?;
    let full_step = full_step(text, layers)?;
    let (full_kv_heads, full_head_dim) = full_heads(&keys, (layers, full_step), heads, kv_heads)?;
    let vocabulary = keys.size("vocab_size", VOCAB_SIZE_MAX)?;
    let rope = |layers, kind| rope_parameters(text, layers, kind);
    let window_rope = rope("sliding_attention", "default")?;
    let full_rope = rope("full_attention", "proportional")?;
    let count = keys.size("num_experts", EXPERTS_MAX)?;
    let experts = ExpertShape {
        count,
        per_token: keys.size("top_k_experts", count)?,
        intermediate_size: keys.size("moe_intermediate_size", HIDDEN_SIZE_MAX)?,
        shared_intermediate_size: 0,
        has_choice_bias: false,
        dense_layers: 0,
        layer_step: 1,
    };
    let canvas = ConfigKeys(config).optional_size("canvas_length", CANVAS_LENGTH_MAX)?;
    let canvas = canvas.unwrap_or(CANVAS_LENGTH);
    let eos_token_ids = keys::eos_token_ids(text, generation, vocabulary)?;
    let shape = Shape {
        naming: TensorNaming::Gemma,
        layers,
        hidden_size: width,
        attention_heads: heads,
        kv_heads,
        head_dim,
        intermediate_size: keys.size("intermediate_size", HIDDEN_SIZE_MAX)?,
        padded_vocab_size: vocabulary,
        context_length: keys
            .size("max_position_embeddings", usize::MAX)?
            .min(CONTEXT_LENGTH_MAX),
        causal: false,
        tied: true,
        biases: false,
        qk_norms: true,
        layer_kind: LayerKind::Gemma(GemmaShape {
            experts,
            window: keys.size("sliding_window", CONTEXT_LENGTH_MAX)?,
            full_step,
            full_kv_heads,
            full_head_dim,
        }),
    };
    let share = ConfigKeys(&full_rope).positive("partial_rotary_factor", FULL_SHARE)?;
    if share > 1.0 || share * ((full_head_dim / 2) as f32) < 1.0 {
        return Err(problem(
            "partial_rotary_factor",
            format!(
                "is {share}: of {} pairs some have to rotate",
                full_head_dim / 2
            ),
        ));
    }
    Ok(ModelConfig {
        family: Family::DiffusionGemma,
        vocab_size: vocabulary,
        rope: Some(Rope::plain(
            ConfigKeys(&window_rope).positive("rope_theta", THETA)?,
            head_dim,
        )),
        full_rope: Some(Rope::proportional(
            ConfigKeys(&full_rope).positive("rope_theta", FULL_THETA)?,
            full_head_dim,
            share,
        )),
        router: Some(router(width)),
        soft_cap: Some(keys.positive("final_logit_softcapping", SOFT_CAP)?),
        shape,
        epsilon: keys.positive("rms_norm_eps", EPSILON)?,
        mask: Some(canvases(canvas)),
        eos_token_ids,
        bos_token_id: keys::bos_token_id(text, generation, vocabulary),
        inference: None,
        sentences: None,
    })
}

/// How experts are chosen at this hidden size.
pub(super) fn router(width: usize) -> Router {
    Router::ScaledSoftmax {
        logit_scale: (width as f32).sqrt().recip(),
    }
}

/// Canvases of `length` positions behind text that is read causally.
fn canvases(length: usize) -> MaskToken {
    MaskToken {
        token_id: None,
        shifted: false,
        blocks: Some(BlockDiffusion {
            length,
            filled_together: length,
            causal_attention_before: true,
        }),
        reserved: None,
    }
}

fn check_variant(
    config: &Map<String, Value>,
    text: &Map<String, Value>,
) -> Result<(), CheckpointError> {
    keys::check_variant(config, &[("tie_word_embeddings", true.into())])?;
    let expected = [
        ("hidden_activation", "gelu_pytorch_tanh".into()),
        ("attention_bias", false.into()),
        ("tie_word_embeddings", true.into()),
    ];
    keys::check_variant(text, &expected)?;
    match text.get("use_bidirectional_attention") {
        // Of pictures, which are refused, so that a model without them is the same.
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(of)) if of == "vision" => Ok(()),
        Some(other) => Err(problem(
            "use_bidirectional_attention",
            format!(
                "is {}; only \"vision\" is supported",
                shortened(&other.to_string())
            ),
        )),
    }?;
    match config.get("quantization_config") {
        None | Some(Value::Null) => Ok(()),
        Some(_) => Err(problem(
            "quantization_config",
            "declares quantized weights; only f32, f16 and bf16 are supported in Hugging Face folders",
        )),
    }
}

fn check_head_dim(key: &'static str, heads: usize, head_dim: usize) -> Result<(), CheckpointError> {
    if !head_dim.is_multiple_of(2) || heads.saturating_mul(head_dim) > HIDDEN_SIZE_MAX {
        return Err(problem(
            key,
            format!(
                "gives {heads} attention heads of dimension {head_dim}; the dimension must be even, and all heads together at most \
                 {HIDDEN_SIZE_MAX}"
            ),
        ));
    }
    keys::check_head_dim(key, "gives", head_dim)
}

/// Each so-manieth layer sees all.
fn full_step(text: &Map<String, Value>, layers: usize) -> Result<usize, CheckpointError> {
    let key = "layer_types";
    let Some(types) = text.get(key).filter(|types| !types.is_null()) else {
        return match layers.is_multiple_of(FULL_STEP) {
            true => Ok(FULL_STEP),
            false => Err(problem(
                key,
                format!("is missing, and {layers} layers are no {FULL_STEP} repeated"),
            )),
        };
    };
    let types = types.as_array().filter(|types| types.len() == layers);
    let types = types.ok_or_else(|| problem(key, format!("is no list of the {layers} layers")))?;
    let step = 1 + types
        .iter()
        .take_while(|&kind| kind == "sliding_attention")
        .count();
    let is_regular = types.iter().enumerate().all(|(layer, kind)| {
        let expected = match (layer + 1).is_multiple_of(step) {
            true => "full_attention",
            false => "sliding_attention",
        };
        kind == expected
    });
    match is_regular && layers.is_multiple_of(step) {
        true => Ok(step),
        false => Err(problem(
            key,
            "is no pattern of sliding_attention with full_attention at its end, repeated",
        )),
    }
}

/// Key and value heads and the size of heads of layers that see all: published files give them by themselves,
/// transformers 5.23 by layer, for those layers alone.
fn full_heads(
    keys: &ConfigKeys<'_>,
    (layers, step): (usize, usize),
    heads: usize,
    kv_heads: usize,
) -> Result<(usize, usize), CheckpointError> {
    const BY_LAYER: &str = "per_layer_config";
    let of = |keys: &ConfigKeys<'_>, names: [&'static str; 2], usual: usize| {
        let kv = keys.optional_size(names[0], heads)?.unwrap_or(kv_heads);
        let head_dim = keys.optional_size(names[1], HIDDEN_SIZE_MAX)?;
        let head_dim = head_dim.unwrap_or(usual);
        keys::check_kv_heads(names[0], heads, kv)?;
        check_head_dim(names[1], heads, head_dim)?;
        Ok((kv, head_dim))
    };
    let by_layer = keys.0.get(BY_LAYER).filter(|value| !value.is_null());
    let Some(by_layer) = by_layer else {
        let names = ["num_global_key_value_heads", "global_head_dim"];
        return of(keys, names, FULL_HEAD_DIM);
    };
    let by_layer = by_layer
        .as_object()
        .ok_or_else(|| problem(BY_LAYER, "is no map of layers"))?;
    let usual = keys.size("head_dim", HIDDEN_SIZE_MAX)?;
    let empty = Map::new();
    let mut full = None;
    for layer in 0..layers {
        let own = by_layer.get(&layer.to_string());
        let own = own.and_then(Value::as_object).unwrap_or(&empty);
        let found = of(&ConfigKeys(own), ["num_key_value_heads", "head_dim"], usual)?;
        let expected = match (layer + 1).is_multiple_of(step) {
            true => *full.get_or_insert(found),
            false => (kv_heads, usual),
        };
        if found != expected {
            return Err(problem(
                BY_LAYER,
                format!("gives layer {layer} other heads than layers of its type have"),
            ));
        }
    }
    Ok(full.unwrap_or((kv_heads, usual)))
}

/// The parameters of the rotation of a type of layers, which is of this kind; empty where the file has none.
fn rope_parameters(
    text: &Map<String, Value>,
    layers: &str,
    kind: &str,
) -> Result<Map<String, Value>, CheckpointError> {
    let all = text.get("rope_parameters");
    let found = all.and_then(|all| all.get(layers)?.as_object());
    let found = found.cloned().unwrap_or_default();
    keys::check_variant(&found, &[("rope_type", kind.into()), ("factor", 1.into())])?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn small() -> Value {
        json!({
            "model_type": "diffusion_gemma", "canvas_length": 16, "tie_word_embeddings": true,
            "text_config": {
                "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "num_global_key_value_heads": 1, "global_head_dim": 32, "intermediate_size": 64, "num_experts": 8,
                "top_k_experts": 2, "moe_intermediate_size": 16, "sliding_window": 12, "vocab_size": 200,
                "max_position_embeddings": 512, "eos_token_id": 1, "bos_token_id": 2,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            },
        })
    }

    fn read(change: impl FnOnce(&mut Value)) -> Result<ModelConfig, String> {
        let mut config = small();
        change(&mut config);
        ModelConfig::read(config.as_object().unwrap(), None).map_err(|error| error.to_string())
    }

    fn by_layer(config: &mut Value, heads: Value) {
        let text = config["text_config"].as_object_mut().unwrap();
        text.remove("global_head_dim");
        text.remove("num_global_key_value_heads");
        text.insert("per_layer_config".to_owned(), heads);
    }

    #[test]
    fn both_ways_to_give_heads_of_layers_are_read() {
        let config = read(|_| {}).unwrap();
        let LayerKind::Gemma(gemma) = config.shape.layer_kind else {
            panic!("{:?}", config.shape.layer_kind);
        };
        assert_eq!((gemma.full_step, gemma.window), (2, 12));
        assert_eq!((gemma.full_kv_heads, gemma.full_head_dim), (1, 32));
        assert_eq!((gemma.experts.count, gemma.experts.per_token), (8, 2));
        let heads = json!({"head_dim": 32, "num_key_value_heads": 1});
        let newer = read(|config| by_layer(config, json!({"1": heads, "3": heads})));
        assert_eq!(newer.unwrap(), config);
        let mask = config.mask.unwrap();
        assert_eq!((mask.token_id, mask.diffusion_block()), (None, Some(16)));
        // A quarter of the pairs of a head, each as far apart as half of it.
        let rope = config.full_rope.unwrap();
        assert_eq!((rope.frequencies.len(), rope.pair_distance), (4, 16));
        assert_eq!(rope.frequencies[1], 1e6f32.powf(2.0 / 32.0).recip());
        assert_eq!(config.rope, Some(Rope::plain(1e4, 16)));
        assert_eq!(config.soft_cap, Some(30.0));
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        let refusal = |key: &str, value: Value| {
            read(|config| config["text_config"][key] = value).unwrap_err()
        };
        assert_eq!(
            read(|config| config["text_config"] = Value::Null).unwrap_err(),
            "config.json: text_config is missing"
        );
        assert_eq!(
            read(|config| config["canvas_length"] = 513.into()).unwrap_err(),
            "config.json: canvas_length is 513, not a whole number from 1 to 512"
        );
        assert_eq!(
            refusal("hidden_activation", "silu".into()),
            "config.json: hidden_activation is \"silu\"; only \"gelu_pytorch_tanh\" is supported"
        );
        assert_eq!(
            refusal("use_bidirectional_attention", "all".into()),
            "config.json: use_bidirectional_attention is \"all\"; only \"vision\" is supported"
        );
        let types = json!([
            "full_attention",
            "sliding_attention",
            "sliding_attention",
            "full_attention"
        ]);
        assert_eq!(
            refusal("layer_types", types),
            "config.json: layer_types is no pattern of sliding_attention with full_attention at its end, repeated"
        );
        assert_eq!(
            refusal("layer_types", json!(["full_attention"])),
            "config.json: layer_types is no list of the 4 layers"
        );
        assert_eq!(
            refusal("num_global_key_value_heads", 3.into()),
            "config.json: num_global_key_value_heads is 3, which does not divide the 4 attention heads"
        );
        assert_eq!(
            refusal("global_head_dim", 1026.into()),
            "config.json: global_head_dim gives a head dimension of 1026; the maximum is 1024"
        );
        assert_eq!(
            refusal("top_k_experts", 9.into()),
            "config.json: top_k_experts is 9, not a whole number from 1 to 8"
        );
        assert_eq!(
            refusal("num_experts", Value::Null),
            "config.json: num_experts is missing"
        );
        let rope = |kind: &str| json!({"full_attention": {"rope_type": kind}});
        assert_eq!(
            refusal("rope_parameters", rope("yarn")),
            "config.json: rope_type is \"yarn\"; only \"proportional\" is supported"
        );
        let heads = json!({"head_dim": 32, "num_key_value_heads": 1});
        let uneven = json!({"1": heads});
        assert_eq!(
            read(|config| by_layer(config, uneven)).unwrap_err(),
            "config.json: per_layer_config gives layer 3 other heads than layers of its type have"
        );
        assert_eq!(
            read(|config| config["tie_word_embeddings"] = false.into()).unwrap_err(),
            "config.json: tie_word_embeddings is false; only true is supported"
        );
    }
}
