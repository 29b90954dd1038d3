//! RWKV-7: `config.json` as flash-linear-attention and Hugging Face's folders have it.
//!
//! Paper: Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution" (arXiv 2503.14456).
//! Reference: `RWKV7ForCausalLM` of flash-linear-attention, and the package `rwkv` for the official layout of tensors.
//!
//! Nothing of such a model grows with the text, so its context is as long as a request may be.

use serde_json::{Map, Value};
use sluice_weights::{
    HIDDEN_SIZE_MAX, LayerKind, RECURRENT_CONTEXT_LENGTH, RWKV7_HEAD_DIM, Rwkv7Ranks, Shape,
    TensorNaming,
};

use super::{
    Family, ModelConfig,
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
    let width = keys.size("hidden_size", HIDDEN_SIZE_MAX)?;
    let layers = keys.size("num_hidden_layers", LAYERS_MAX)?;
    let head_dim = keys.optional_size("head_dim", HIDDEN_SIZE_MAX)?;
    if let Some(head_dim) = head_dim.filter(|&head_dim| head_dim != RWKV7_HEAD_DIM) {
        return Err(problem(
            "head_dim",
            format!(
                "is {head_dim}; only {RWKV7_HEAD_DIM}, as in all published models, is supported"
            ),
        ));
    }
    if !width.is_multiple_of(RWKV7_HEAD_DIM) {
        return Err(problem(
            "hidden_size",
            format!("is {width}, which is no multiple of the head dimension {RWKV7_HEAD_DIM}"),
        ));
    }
    let rank = |key: &'static str, exponent: f64, factor: f64| {
        let found = keys.optional_size(key, width)?;
        Ok::<_, CheckpointError>(found.unwrap_or_else(|| usual_rank(width, exponent, factor)))
    };
    let ranks = Rwkv7Ranks {
        decay: rank("decay_low_rank_dim", 0.5, 1.8)?,
        learning_rate: rank("a_low_rank_dim", 0.5, 1.8)?,
        value: rank("v_low_rank_dim", 0.5, 1.3)?,
        gate: rank("gate_low_rank_dim", 0.8, 0.6)?,
    };
    let intermediate_size = keys.optional_size("intermediate_size", HIDDEN_SIZE_MAX)?;
    let vocab_size = keys.size("vocab_size", VOCAB_SIZE_MAX)?;
    let eos_token_ids = keys::eos_token_ids(config, generation, vocab_size)?;
    let heads = width / RWKV7_HEAD_DIM;
    Ok(ModelConfig {
        family: Family::Rwkv7,
        vocab_size,
        rope: None,
        shape: Shape {
            naming: TensorNaming::HuggingFace,
            layers,
            hidden_size: width,
            attention_heads: heads,
            kv_heads: heads,
            head_dim: RWKV7_HEAD_DIM,
            intermediate_size: intermediate_size.unwrap_or(4 * width),
            padded_vocab_size: vocab_size,
            context_length: RECURRENT_CONTEXT_LENGTH,
            causal: true,
            tied: keys.flag("tie_word_embeddings")?,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Rwkv7(ranks),
        },
        full_rope: None,
        soft_cap: None,
        router: None,
        epsilon: keys.positive("norm_eps", 1e-5)?,
        mask: None,
        eos_token_ids,
        bos_token_id: keys::bos_token_id(config, generation, vocab_size),
        inference: None,
        sentences: None,
    })
}

/// The rank that flash-linear-attention takes where a file has none.
fn usual_rank(width: usize, exponent: f64, factor: f64) -> usize {
    let rank = (width as f64).powf(exponent) * factor / 32.0;
    (rank.round() as usize * 32).max(32)
}

fn check_variant(config: &Map<String, Value>) -> Result<(), CheckpointError> {
    let expected = [
        ("hidden_act", "sqrelu".into()),
        ("norm_first", true.into()),
        ("norm_bias", true.into()),
        // Some layers with attention beside those with a state.
        ("attn", Value::Null),
    ];
    keys::check_variant(config, &expected)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(change: impl FnOnce(&mut Value)) -> Result<ModelConfig, String> {
        let mut config = json!({
            "model_type": "rwkv7", "hidden_size": 1024, "num_hidden_layers": 24, "head_dim": 64,
            "intermediate_size": 4096, "vocab_size": 65536, "eos_token_id": 0,
        });
        change(&mut config);
        ModelConfig::read(config.as_object().unwrap(), None).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_are_those_of_the_published_model() {
        let config = read(|_| {}).unwrap();
        let expected = Rwkv7Ranks {
            decay: 64,
            learning_rate: 64,
            value: 32,
            gate: 160,
        };
        assert_eq!(config.shape.layer_kind, LayerKind::Rwkv7(expected));
        // RWKV7-Goose-World3-0.4B names this rank itself.
        let config = read(|config| config["gate_low_rank_dim"] = 128.into()).unwrap();
        assert_eq!(config.shape.parameters(), 450_767_872);
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        let refusal = |key: &str, value: Value| read(|config| config[key] = value).unwrap_err();
        assert_eq!(
            refusal("head_dim", 128.into()),
            "config.json: head_dim is 128; only 64, as in all published models, is supported"
        );
        assert_eq!(
            refusal("hidden_size", 1000.into()),
            "config.json: hidden_size is 1000, which is no multiple of the head dimension 64"
        );
        assert_eq!(
            refusal("norm_first", false.into()),
            "config.json: norm_first is false; only true is supported"
        );
        assert_eq!(
            refusal("decay_low_rank_dim", 4096.into()),
            "config.json: decay_low_rank_dim is 4096, not a whole number from 1 to 1024"
        );
    }
}
