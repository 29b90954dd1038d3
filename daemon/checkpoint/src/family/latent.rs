//! Latent thought models: `config.json` with the parameters of the authors' implementation, under their names.
//!
//! Paper: Kong et al. 2025, "Latent Thought Models with Variational Bayes Inference-Time Computation" (arXiv 2502.01567).
//! Reference: `LatentThoughtModel` of mingluzhao/Latent-Thought-LM. No checkpoint of it was published, and its program
//! writes no `config.json`: the file has the reference's parameters, `model_type` `ltm` and `rope_theta`.

use serde_json::{Map, Value};
use sluice_weights::{
    CONTEXT_LENGTH_MAX, HIDDEN_SIZE_MAX, LatentShape, LayerKind, Rope, RopePairs, Shape,
    TensorNaming,
};

use super::{
    Family, LatentInference, ModelConfig,
    keys::{self, ConfigKeys, LAYERS_MAX, VOCAB_SIZE_MAX, problem},
};
use crate::CheckpointError;

/// Longest window: the scores of a query exist at once where gradients go back.
const WINDOW_MAX: usize = 1 << 16;
/// Most steps of inference that a file may ask for.
const STEPS_MAX: usize = 1000;
/// Largest logarithm of a variance, either way.
const LOG_VARIANCE_MAX: f32 = 60.0;
/// Most latents of all layers.
const LATENTS_MAX: usize = 1 << 16;

/// Reads `config.json` and, if there is one, `generation_config.json`.
pub(super) fn read(
    config: &Map<String, Value>,
    generation: Option<&Map<String, Value>>,
) -> Result<ModelConfig, CheckpointError> {
    check_variant(config)?;
    let keys = ConfigKeys(config);
    let width = keys.size("dim", HIDDEN_SIZE_MAX)?;
    let layers = keys.size("n_layers", LAYERS_MAX)?;
    let heads = keys.size("n_heads", HIDDEN_SIZE_MAX)?;
    let kv_heads = keys.optional_size("n_kv_heads", heads)?.unwrap_or(heads);
    keys::check_kv_heads("n_kv_heads", heads, kv_heads)?;
    // RoPE rotates pairs, so heads have even dimension.
    if !width.is_multiple_of(2 * heads) {
        return Err(problem(
            "n_heads",
            format!(
                "is {heads}, which does not divide the hidden size {width} into heads of even dimension"
            ),
        ));
    }
    let head_dim = width / heads;
    keys::check_head_dim("n_heads", &format!("is {heads}, which gives"), head_dim)?;
    let context_length = keys.size("max_seq_len", CONTEXT_LENGTH_MAX)?;
    let latents = latents(&keys, layers, context_length)?;
    let vocab_size = keys.size("vocab_size", VOCAB_SIZE_MAX)?;
    let theta = keys.positive("rope_theta", 10_000.0)?;
    Ok(ModelConfig {
        family: Family::LatentThought,
        vocab_size,
        rope: Some(Rope {
            pairs: RopePairs::Interleaved,
            ..Rope::plain(theta, head_dim)
        }),
        shape: Shape {
            naming: TensorNaming::LatentThought,
            layers,
            hidden_size: width,
            attention_heads: heads,
            kv_heads,
            head_dim,
            intermediate_size: intermediate_size(&keys, width)?,
            padded_vocab_size: vocab_size,
            context_length,
            causal: true,
            tied: true,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::LatentThought(latents),
        },
        full_rope: None,
        soft_cap: None,
        router: None,
        epsilon: keys.positive("norm_eps", 1e-5)?,
        mask: None,
        eos_token_ids: keys::eos_token_ids(config, generation, vocab_size)?,
        bos_token_id: keys::bos_token_id(config, generation, vocab_size),
        inference: Some(inference(&keys)?),
        sentences: None,
    })
}

fn latents(
    keys: &ConfigKeys<'_>,
    layers: usize,
    context_length: usize,
) -> Result<LatentShape, CheckpointError> {
    let all = keys.size("max_z_len", LATENTS_MAX)?;
    if !all.is_multiple_of(layers) {
        return Err(problem(
            "max_z_len",
            format!(
                "is {all}, which is no multiple of the {layers} layers: each has as many latents"
            ),
        ));
    }
    if all > context_length {
        return Err(problem(
            "max_z_len",
            format!(
                "is {all}, more than the {context_length} positions that the latents are spread over"
            ),
        ));
    }
    Ok(LatentShape {
        latents: all / layers,
        stride: context_length / all,
        window: keys.size("window_size", WINDOW_MAX)?,
    })
}

/// How latents are to be inferred, which `tools/train` writes; the reference's way where the file doesn't say.
fn inference(keys: &ConfigKeys<'_>) -> Result<LatentInference, CheckpointError> {
    let usual = LatentInference::default();
    let log_variance = match keys.0.get("posterior_initial_log_variance") {
        None | Some(Value::Null) => usual.initial_log_variance,
        Some(value) => value
            .as_f64()
            .map(|number| number as f32)
            .filter(|number| number.abs() <= LOG_VARIANCE_MAX)
            .ok_or_else(|| {
                problem(
                    "posterior_initial_log_variance",
                    format!("is not a number between -{LOG_VARIANCE_MAX} and {LOG_VARIANCE_MAX}"),
                )
            })?,
    };
    Ok(LatentInference {
        steps: keys
            .optional_size("posterior_steps", STEPS_MAX)?
            .unwrap_or(usual.steps),
        learning_rate: keys.positive("posterior_learning_rate", usual.learning_rate)?,
        initial_log_variance: log_variance,
        kl_weight: keys.positive("posterior_kl_weight", usual.kl_weight)?,
    })
}

/// The MLP's width: two thirds of four times the hidden size where the file has none, rounded up.
fn intermediate_size(keys: &ConfigKeys<'_>, width: usize) -> Result<usize, CheckpointError> {
    let size = match keys.optional_size("hidden_dim", HIDDEN_SIZE_MAX)? {
        Some(size) => size,
        None => (8 * width / 3).next_multiple_of(
            keys.optional_size("multiple_of", HIDDEN_SIZE_MAX)?
                .unwrap_or(1),
        ),
    };
    match size <= HIDDEN_SIZE_MAX {
        true => Ok(size),
        false => Err(problem(
            "multiple_of",
            format!("gives an MLP of width {size}; the maximum is {HIDDEN_SIZE_MAX}"),
        )),
    }
}

fn check_variant(config: &Map<String, Value>) -> Result<(), CheckpointError> {
    let expected = [
        // Layers that compute the prior of the latents from others.
        ("n_prior_layers", 0.into()),
        ("n_cls_tokens", 0.into()),
        ("padding", false.into()),
        ("use_z_pos_emb", true.into()),
    ];
    keys::check_variant(config, &expected)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(change: impl FnOnce(&mut Value)) -> Result<ModelConfig, String> {
        let mut config = json!({
            "model_type": "ltm", "dim": 768, "n_layers": 12, "n_heads": 12, "vocab_size": 50258,
            "max_seq_len": 1024, "max_z_len": 96, "window_size": 256, "multiple_of": 32,
        });
        change(&mut config);
        ModelConfig::read(config.as_object().unwrap(), None).map_err(|error| error.to_string())
    }

    /// Those of the released training script.
    #[test]
    fn sizes_follow_the_reference() {
        let config = read(|_| {}).unwrap();
        assert_eq!(config.shape.intermediate_size, 2048);
        let latents = LatentShape {
            latents: 8,
            stride: 10,
            window: 256,
        };
        assert_eq!(config.shape.layer_kind, LayerKind::LatentThought(latents));
        assert!(config.shape.tied && config.shape.causal);
        assert_eq!(config.inference, Some(LatentInference::default()));
        for (value, expected) in [
            (json!(7), Some(7)),
            (json!(50_258), None),
            (json!(u64::MAX), None),
            (json!([7]), None),
            (json!(null), None),
        ] {
            let config = read(|config| config["bos_token_id"] = value.clone()).unwrap();
            assert_eq!(config.bos_token_id, expected, "{value}");
        }
        let trained = read(|config| {
            config["posterior_steps"] = 32.into();
            config["posterior_learning_rate"] = 0.5.into();
            config["posterior_initial_log_variance"] = (-2).into();
            config["posterior_kl_weight"] = 0.25.into();
        });
        let expected = LatentInference {
            steps: 32,
            learning_rate: 0.5,
            initial_log_variance: -2.0,
            kl_weight: 0.25,
        };
        assert_eq!(trained.unwrap().inference, Some(expected));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let refusal = |key: &str, value: Value| read(|config| config[key] = value).unwrap_err();
        assert_eq!(
            refusal("max_z_len", Value::Null),
            "config.json: max_z_len is missing"
        );
        assert_eq!(
            refusal("max_z_len", 100.into()),
            "config.json: max_z_len is 100, which is no multiple of the 12 layers: each has as many latents"
        );
        assert_eq!(
            refusal("max_z_len", 1200.into()),
            "config.json: max_z_len is 1200, more than the 1024 positions that the latents are spread over"
        );
        assert_eq!(
            refusal("n_prior_layers", 2.into()),
            "config.json: n_prior_layers is 2; only 0 is supported"
        );
        assert_eq!(
            refusal("window_size", 0.into()),
            "config.json: window_size is 0, not a whole number from 1 to 65536"
        );
        assert_eq!(
            refusal("posterior_initial_log_variance", 100.into()),
            "config.json: posterior_initial_log_variance is not a number between -60 and 60"
        );
    }
}
