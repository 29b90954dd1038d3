//! `config.json` of a LLaDA checkpoint, with the keys that change the arithmetic checked:
//! a variant that isn't computed here is refused, never run as if it were.

use serde_json::{Map, Value};

use crate::{
    checkpoint::CheckpointError,
    model::{CONTEXT_MAX, END_TOKENS_MAX, WIDTH_MAX, shape::Shape},
};

/// The numbers that shape the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `d_model`.
    pub width: usize,
    /// `n_layers`.
    pub layers: usize,
    /// `n_heads`.
    pub heads: usize,
    /// `n_kv_heads`.
    pub kv_heads: usize,
    /// `mlp_hidden_size`, else `mlp_ratio · d_model`.
    pub mlp_width: usize,
    /// `vocab_size`.
    pub vocabulary: usize,
    /// `embedding_size`: rows of embedding and head, at least `vocab_size`.
    pub embedding_rows: usize,
    /// `max_sequence_length`.
    pub context_length: usize,
    /// `rope_theta`.
    pub rope_theta: f32,
    /// `rms_norm_eps`.
    pub epsilon: f32,
    /// `mask_token_id`.
    pub mask_token_id: u32,
    /// `eos_token_id` of `config.json` and `generation_config.json`.
    pub eos_token_ids: Vec<u32>,
}

/// Most layers of any model.
const LAYERS_MAX: usize = 4096;
/// Most rows of any embedding.
const VOCABULARY_MAX: usize = 1 << 24;

impl Config {
    /// A configuration of this shape, with the usual values for what has no size.
    #[must_use]
    pub fn of(shape: &Shape) -> Self {
        Self {
            width: shape.width,
            layers: shape.layers,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            mlp_width: shape.mlp_width,
            vocabulary: shape.embedding_rows,
            embedding_rows: shape.embedding_rows,
            context_length: shape.context_length,
            rope_theta: 500_000.0,
            epsilon: 1e-5,
            mask_token_id: 0,
            eos_token_ids: Vec::new(),
        }
    }

    /// Reads `config.json` and, if there is one, `generation_config.json`.
    ///
    /// # Errors
    /// An unknown architecture, or the key that is missing or makes no sense.
    pub fn read(
        config: &Map<String, Value>,
        generation: Option<&Map<String, Value>>,
    ) -> Result<Self, CheckpointError> {
        check_architecture(config)?;
        check_variant(config)?;
        let keys = Keys(config);
        let width = keys.size("d_model", WIDTH_MAX)?;
        let heads = keys.size("n_heads", width)?;
        let kv_heads = match keys.optional_size("n_kv_heads", heads)? {
            Some(count) => count,
            None if config.get("multi_query_attention") == Some(&Value::Bool(true)) => 1,
            None => heads,
        };
        let mlp_width = match keys.optional_size("mlp_hidden_size", WIDTH_MAX)? {
            Some(size) => size,
            None => keys.size("mlp_ratio", WIDTH_MAX / width)? * width,
        };
        let vocabulary = keys.size("vocab_size", VOCABULARY_MAX)?;
        let embedding_rows = keys
            .optional_size("embedding_size", VOCABULARY_MAX)?
            .unwrap_or(vocabulary);
        let mask_token_id = keys.size_or_zero("mask_token_id", vocabulary - 1)? as u32;
        let config = Self {
            width,
            layers: keys.size("n_layers", LAYERS_MAX)?,
            heads,
            kv_heads,
            mlp_width,
            vocabulary,
            embedding_rows,
            context_length: keys.size("max_sequence_length", CONTEXT_MAX)?,
            rope_theta: keys.positive("rope_theta", 10_000.0)?,
            epsilon: keys.positive("rms_norm_eps", 1e-5)?,
            mask_token_id,
            eos_token_ids: eos_token_ids(config, generation, vocabulary)?,
        };
        if config.eos_token_ids.contains(&mask_token_id) {
            return Err(problem("eos_token_id", "is the mask's id as well"));
        }
        if width % heads != 0 || (width / heads) % 2 != 0 {
            return Err(problem(
                "n_heads",
                format!("is {heads}, which does not share {width} out in heads of even size"),
            ));
        }
        if heads % kv_heads != 0 {
            return Err(problem(
                "n_kv_heads",
                format!("is {kv_heads}, which does not divide the {heads} heads"),
            ));
        }
        if embedding_rows < vocabulary {
            return Err(problem(
                "embedding_size",
                format!("is {embedding_rows}, less than vocab_size, {vocabulary}"),
            ));
        }
        Ok(config)
    }

    /// Numbers in a head.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.width / self.heads
    }
}

fn check_architecture(config: &Map<String, Value>) -> Result<(), CheckpointError> {
    let model_type = config.get("model_type").and_then(Value::as_str);
    let architecture = config
        .get("architectures")
        .and_then(|list| list.get(0))
        .and_then(Value::as_str);
    if model_type == Some("llada") || (model_type.is_none() && architecture == Some("LLaDAModelLM"))
    {
        return Ok(());
    }
    let found = match (model_type, architecture) {
        (Some(model_type), _) => format!("{:?}", shortened(model_type)),
        (None, Some(architecture)) => format!("{:?}", shortened(architecture)),
        (None, None) => "(config.json has neither model_type nor architectures)".to_owned(),
    };
    Err(CheckpointError::UnknownArchitecture {
        found,
        known: "llada",
    })
}

/// Keys with the one value that is computed here. A key that is absent has it.
fn check_variant(config: &Map<String, Value>) -> Result<(), CheckpointError> {
    let expected: [(&'static str, Value); 13] = [
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
    for (key, expected) in expected {
        match config.get(key) {
            None | Some(Value::Null) => {}
            Some(found) if *found == expected => {}
            Some(found) => {
                let found = shortened(&found.to_string());
                return Err(problem(
                    key,
                    format!("is {found}; only {expected} is supported"),
                ));
            }
        }
    }
    Ok(())
}

fn eos_token_ids(
    config: &Map<String, Value>,
    generation: Option<&Map<String, Value>>,
    vocabulary: usize,
) -> Result<Vec<u32>, CheckpointError> {
    let mut ids = Vec::new();
    for value in [Some(config), generation]
        .into_iter()
        .flatten()
        .filter_map(|map| map.get("eos_token_id"))
    {
        let list = match value {
            Value::Null => continue,
            Value::Array(list) => list.as_slice(),
            single => std::slice::from_ref(single),
        };
        for id in list {
            let id = id
                .as_u64()
                .filter(|&id| id < vocabulary as u64)
                .ok_or_else(|| {
                    let found = shortened(&id.to_string());
                    problem(
                        "eos_token_id",
                        format!("is {found}, no id below {vocabulary}"),
                    )
                })? as u32;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    // A chat's end of turn may come to them.
    if ids.len() >= END_TOKENS_MAX {
        return Err(problem("eos_token_id", "has more ids than a model can use"));
    }
    Ok(ids)
}

/// Numbers by key, with their bounds.
struct Keys<'a>(&'a Map<String, Value>);

impl Keys<'_> {
    fn size(&self, key: &'static str, max: usize) -> Result<usize, CheckpointError> {
        self.optional_size(key, max)?
            .ok_or_else(|| problem(key, "is missing"))
    }

    fn optional_size(
        &self,
        key: &'static str,
        max: usize,
    ) -> Result<Option<usize>, CheckpointError> {
        self.bounded(key, 1, max)
    }

    fn size_or_zero(&self, key: &'static str, max: usize) -> Result<usize, CheckpointError> {
        self.bounded(key, 0, max)?
            .ok_or_else(|| problem(key, "is missing"))
    }

    fn bounded(
        &self,
        key: &'static str,
        min: usize,
        max: usize,
    ) -> Result<Option<usize>, CheckpointError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
                .filter(|number| (min..=max).contains(number))
                .map(Some)
                .ok_or_else(|| {
                    let found = shortened(&value.to_string());
                    problem(
                        key,
                        format!("is {found}, not a whole number from {min} to {max}"),
                    )
                }),
        }
    }

    fn positive(&self, key: &'static str, default: f32) -> Result<f32, CheckpointError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value
                .as_f64()
                .map(|number| number as f32)
                .filter(|number| number.is_finite() && *number > 0.0)
                .ok_or_else(|| {
                    let found = shortened(&value.to_string());
                    problem(key, format!("is {found}, not a positive number"))
                }),
        }
    }
}

fn problem(key: &'static str, problem: impl Into<String>) -> CheckpointError {
    CheckpointError::Config {
        key,
        problem: problem.into(),
    }
}

/// A value from a file, short enough for a message.
fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
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

    fn read(change: impl FnOnce(&mut Value)) -> Result<Config, String> {
        let mut config = small();
        change(&mut config);
        Config::read(config.as_object().unwrap(), None).map_err(|error| error.to_string())
    }

    #[test]
    fn the_published_configuration_is_read() {
        let published = include_str!("../../../tests/fixtures/llada-8b-config.json");
        let published: Value = serde_json::from_str(published).unwrap();
        let config = Config::read(published.as_object().unwrap(), None).unwrap();
        assert_eq!(
            (config.width, config.layers, config.head_dim()),
            (4096, 32, 128)
        );
        assert_eq!((config.mlp_width, config.vocabulary), (12288, 126_464));
        assert_eq!(
            (config.mask_token_id, config.context_length),
            (126_336, 4096)
        );
        assert_eq!(config.eos_token_ids, [126_081]);
        assert_eq!(config.rope_theta, 500_000.0);
    }

    #[test]
    fn keys_that_are_absent_have_their_defaults() {
        let config = read(|_| {}).unwrap();
        assert_eq!((config.kv_heads, config.rope_theta), (4, 10_000.0));
        let config = read(|config| {
            config["multi_query_attention"] = true.into();
            config["mlp_hidden_size"] = Value::Null;
            config["mlp_ratio"] = 4.into();
        });
        let config = config.unwrap();
        assert_eq!((config.kv_heads, config.mlp_width), (1, 256));
    }

    #[test]
    fn both_files_name_end_tokens() {
        let generation = json!({"eos_token_id": [296, 290]});
        let config = small();
        let config = Config::read(config.as_object().unwrap(), generation.as_object()).unwrap();
        assert_eq!(config.eos_token_ids, [296, 290]);
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        let refusal = |key: &str, value: Value| read(|config| config[key] = value).unwrap_err();
        assert_eq!(
            refusal("model_type", "mamba".into()),
            "unknown architecture \"mamba\"; known are llada"
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
            "config.json: n_heads is 7, which does not share 64 out in heads of even size"
        );
        assert_eq!(
            refusal("n_kv_heads", 3.into()),
            "config.json: n_kv_heads is 3, which does not divide the 4 heads"
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
            "config.json: eos_token_id is -1, no id below 300"
        );
        assert_eq!(
            refusal("eos_token_id", 298.into()),
            "config.json: eos_token_id is the mask's id as well"
        );
        assert_eq!(
            refusal("rms_norm_eps", "x".into()),
            "config.json: rms_norm_eps is \"x\", not a positive number"
        );
    }
}
