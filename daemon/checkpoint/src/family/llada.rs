//! `config.json` of a LLaDA checkpoint. Keys that change the arithmetic are checked: a variant that isn't implemented
//! is refused, never run as if it were the usual one.
//!
//! Paper: Nie et al. 2025, "Large Language Diffusion Models" (arXiv 2502.09992). Reference: `LLaDAModelLM` in
//! `modeling_llada.py` as published with GSAI-ML/LLaDA-8B. Attention has no mask; `ff_proj` is the gate; there is no
//! time-step input.

use serde_json::{Map, Value};
use sluice_weights::{CONTEXT_LENGTH_MAX, HIDDEN_SIZE_MAX, LayerKind, Rope, Shape, TensorNaming};

use super::{
    Family, MaskToken, ModelConfig,
    keys::{self, ConfigKeys, LAYERS_MAX, VOCAB_SIZE_MAX, problem},
};
use crate::CheckpointError;

/// Reads `config.json` and, if there is one, `generation_config.json`.
pub(super) fn read(
    config: &Map<String, Value>,
    generation: Option<&Map<String, Value>>,
) -> Result<ModelConfig, CheckpointError> {
    check_variant(config)?;
    let keys = ConfigKeys(config);
    let width = keys.size("d_model", HIDDEN_SIZE_MAX)?;
    let heads = keys.size("n_heads", width)?;
    // OLMo's configuration, which LLaDA's is derived from, says multi-query attention by a flag.
    let kv_heads = match keys.optional_size("n_kv_heads", heads)? {
        Some(count) => count,
        None if config.get("multi_query_attention") == Some(&Value::Bool(true)) => 1,
        None => heads,
    };
    // `mlp_hidden_size` overrides `mlp_ratio`, as in the reference.
    let mlp_width = match keys.optional_size("mlp_hidden_size", HIDDEN_SIZE_MAX)? {
        Some(size) => size,
        None => keys.size("mlp_ratio", HIDDEN_SIZE_MAX / width)? * width,
    };
    let vocabulary = keys.size("vocab_size", VOCAB_SIZE_MAX)?;
    // The embedding has more rows than the vocabulary has tokens, so that its size suits the hardware.
    let embedding_rows = keys
        .optional_size("embedding_size", VOCAB_SIZE_MAX)?
        .unwrap_or(vocabulary);
    // LLaDA has no key for the head dimension; it follows from the hidden size, and RoPE needs pairs.
    if width % heads != 0 || (width / heads) % 2 != 0 {
        return Err(problem(
            "n_heads",
            format!(
                "is {heads}, which does not divide the hidden size {width} into heads of even dimension"
            ),
        ));
    }
    let head_dim = width / heads;
    keys::check_head_dim("n_heads", &format!("is {heads}, which gives"), head_dim)?;
    keys::check_kv_heads("n_kv_heads", heads, kv_heads)?;
    if embedding_rows < vocabulary {
        return Err(problem(
            "embedding_size",
            format!("is {embedding_rows}, less than vocab_size, {vocabulary}"),
        ));
    }
    let eos_token_ids = keys::eos_token_ids(config, generation, vocabulary)?;
    let shape = Shape {
        naming: TensorNaming::Llada,
        layers: keys.size("n_layers", LAYERS_MAX)?,
        hidden_size: width,
        attention_heads: heads,
        kv_heads,
        head_dim,
        intermediate_size: mlp_width,
        padded_vocab_size: embedding_rows,
        context_length: keys.size("max_sequence_length", CONTEXT_LENGTH_MAX)?,
        causal: false,
        tied: false,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Attention,
    };
    Ok(ModelConfig {
        family: Family::Llada,
        vocab_size: vocabulary,
        rope: Some(Rope::plain(
            keys.positive("rope_theta", 10_000.0)?,
            head_dim,
        )),
        shape,
        full_rope: None,
        soft_cap: None,
        router: None,
        epsilon: keys.positive("rms_norm_eps", 1e-5)?,
        mask: Some(MaskToken {
            token_id: Some(keys.mask_token_id(vocabulary, &eos_token_ids, None)?),
            shifted: false,
            blocks: None,
            reserved: None,
        }),
        eos_token_ids,
        bos_token_id: keys::bos_token_id(config, generation, vocabulary),
        inference: None,
        sentences: None,
    })
}

fn check_variant(config: &Map<String, Value>) -> Result<(), CheckpointError> {
    // OLMo's switches, each of which would change the arithmetic.
    let expected = [
        ("block_type", "llama".into()),
        ("activation_type", "silu".into()),
        ("layer_norm_type", "rms".into()),
        ("block_group_size", 1.into()),
        ("rope", true.into()),
        ("alibi", false.into()),
        ("attention_layer_norm", false.into()),
        ("include_bias", false.into()),
        ("include_qkv_bias", false.into()),
        ("bias_for_layer_norm", false.into()),
        ("input_emb_norm", false.into()),
        ("scale_logits", false.into()),
        ("weight_tying", false.into()),
    ];
    keys::check_variant(config, &expected)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn small() -> Value {
        json!({
            "model_type": "llada", "d_model": 64, "n_layers": 2, "n_heads": 4,
            "mlp_hidden_size": 160, "vocab_size": 300, "embedding_size": 384,
            "max_sequence_length": 256, "mask_token_id": 298, "eos_token_id": 296,
        })
    }

    fn read(change: impl FnOnce(&mut Value)) -> Result<ModelConfig, String> {
        let mut config = small();
        change(&mut config);
        ModelConfig::read(config.as_object().unwrap(), None).map_err(|error| error.to_string())
    }

    #[test]
    fn the_published_configuration_is_read() {
        let published = include_str!("../../../engine/tests/fixtures/llada-8b-config.json");
        let published: Value = serde_json::from_str(published).unwrap();
        let config = ModelConfig::read(published.as_object().unwrap(), None).unwrap();
        assert_eq!(
            (
                config.shape.hidden_size,
                config.shape.layers,
                config.shape.head_dim
            ),
            (4096, 32, 128)
        );
        assert_eq!(
            (config.shape.intermediate_size, config.vocab_size),
            (12288, 126_464)
        );
        assert_eq!(
            (
                config.mask.unwrap().token_id.unwrap(),
                config.shape.context_length
            ),
            (126_336, 4096)
        );
        assert_eq!(config.eos_token_ids, [126_081]);
        assert_eq!(config.rope, Some(Rope::plain(500_000.0, 128)));
    }

    #[test]
    fn keys_that_are_absent_have_their_defaults() {
        let config = read(|_| {}).unwrap();
        assert_eq!(
            (config.shape.kv_heads, config.rope),
            (4, Some(Rope::plain(10_000.0, 16)))
        );
        let config = read(|config| {
            config["multi_query_attention"] = true.into();
            config["mlp_hidden_size"] = Value::Null;
            config["mlp_ratio"] = 4.into();
        });
        let config = config.unwrap();
        assert_eq!(
            (config.shape.kv_heads, config.shape.intermediate_size),
            (1, 256)
        );
    }

    #[test]
    fn both_files_name_end_tokens() {
        let generation = json!({"eos_token_id": [296, 290]});
        let config = small();
        let config =
            ModelConfig::read(config.as_object().unwrap(), generation.as_object()).unwrap();
        assert_eq!(config.eos_token_ids, [296, 290]);
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        let refusal = |key: &str, value: Value| read(|config| config[key] = value).unwrap_err();
        assert_eq!(
            refusal("model_type", "mamba".into()),
            "unsupported architecture \"mamba\"; supported are llada, llama, mistral, qwen2, qwen3, qwen3_moe, Dream, sdar, sdar_moe, Fast_dLLM_Qwen, llada_moe, llada2_moe, rnd1, nemotron_labs_diffusion, rwkv7, ltm, diffusion_gemma, bert, model2vec"
        );
        assert_eq!(
            refusal("alibi", true.into()),
            "config.json: alibi is true; only false is supported"
        );
        assert_eq!(
            refusal("d_model", 0.into()),
            "config.json: d_model is 0, not a whole number from 1 to 65536"
        );
        assert_eq!(
            refusal("n_heads", 7.into()),
            "config.json: n_heads is 7, which does not divide the hidden size 64 into heads of even dimension"
        );
        let wide = |config: &mut Value| {
            config["d_model"] = 2048.into();
            config["n_heads"] = 1.into();
        };
        assert_eq!(
            read(wide).unwrap_err(),
            "config.json: n_heads is 1, which gives a head dimension of 2048; the maximum is 1024"
        );
        assert_eq!(
            refusal("n_kv_heads", 3.into()),
            "config.json: n_kv_heads is 3, which does not divide the 4 attention heads"
        );
        assert_eq!(
            refusal("embedding_size", 100.into()),
            "config.json: embedding_size is 100, less than vocab_size, 300"
        );
        assert_eq!(
            refusal("mask_token_id", 300.into()),
            "config.json: mask_token_id is 300, not a whole number from 0 to 299"
        );
        assert_eq!(
            refusal("eos_token_id", (-1).into()),
            "config.json: eos_token_id is -1, not a token id below 300"
        );
        assert_eq!(
            refusal("eos_token_id", 298.into()),
            "config.json: eos_token_id is also the mask token's id"
        );
        assert_eq!(
            refusal("rms_norm_eps", "x".into()),
            "config.json: rms_norm_eps is \"x\", not a positive number"
        );
    }
}
