//! Sentence encoders: BERT-shaped ones as sentence-transformers publishes them, and model2vec's static tables.
//!
//! Papers: Devlin et al. 2018 (arXiv 1810.04805), Reimers and Gurevych 2019, "Sentence-BERT" (arXiv 1908.10084).
//! References: `BertModel` of transformers 5.24 with the modules of sentence-transformers 6.2, and model2vec's
//! `StaticModel`.
//!
//! What makes a vector of a text's rows stands in files of its own: `modules.json` lists the steps, and each has a
//! configuration. The pooler that `BertModel` has behind the first token isn't used and isn't read.

use serde_json::{Map, Value};
use sluice_weights::{
    CONTEXT_LENGTH_MAX, EncoderShape, HIDDEN_SIZE_MAX, LayerKind, Shape, TensorNaming,
};

use super::{
    Family, ModelConfig,
    keys::{self, ConfigKeys, LAYERS_MAX, VOCAB_SIZE_MAX, problem, shortened},
};
use crate::CheckpointError;

/// Tokens of a text that model2vec reads by default.
const STATIC_TOKENS_MAX: usize = 512;
/// transformers' default for BERT's norms.
const EPSILON: f32 = 1e-12;

/// How a sentence encoder makes a vector of a text's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentenceVectors {
    /// What is made of the rows.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1.
    pub are_normalized: bool,
}

/// What is made of a text's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first one, of the token that stands before each text.
    First,
}

/// The files beside `config.json` that say how a text's vector is made; `None` where there is no such file.
#[derive(Debug, Default)]
pub(crate) struct SentenceFiles {
    /// `modules.json`.
    pub(crate) modules: Option<Vec<Map<String, Value>>>,
    /// `config.json` in the folder of the pooling.
    pub(crate) pooling: Option<Map<String, Value>>,
    /// `sentence_bert_config.json`.
    pub(crate) transformer: Option<Map<String, Value>>,
    /// `config_sentence_transformers.json`.
    pub(crate) whole: Option<Map<String, Value>>,
}

/// Reads BERT's `config.json`. How vectors are made is completed by [`complete`].
pub(super) fn read(config: &Map<String, Value>) -> Result<ModelConfig, CheckpointError> {
    keys::check_variant(
        config,
        &[
            ("hidden_act", "gelu".into()),
            ("position_embedding_type", "absolute".into()),
            ("is_decoder", false.into()),
            ("add_cross_attention", false.into()),
        ],
    )?;
    keys::check_unquantized(config)?;
    let keys = ConfigKeys(config);
    let width = keys.size("hidden_size", HIDDEN_SIZE_MAX)?;
    let heads = keys.size("num_attention_heads", HIDDEN_SIZE_MAX)?;
    if !width.is_multiple_of(heads) {
        return Err(problem(
            "num_attention_heads",
            format!("is {heads}, which does not divide the hidden size {width}"),
        ));
    }
    let head_dim = width / heads;
    keys::check_head_dim(
        "num_attention_heads",
        &format!("is {heads}, which gives"),
        head_dim,
    )?;
    let positions = keys.size("max_position_embeddings", CONTEXT_LENGTH_MAX)?;
    let vocab_size = keys.size("vocab_size", VOCAB_SIZE_MAX)?;
    let shape = Shape {
        naming: TensorNaming::Bert,
        layers: keys.size("num_hidden_layers", LAYERS_MAX)?,
        hidden_size: width,
        attention_heads: heads,
        kv_heads: heads,
        head_dim,
        intermediate_size: keys.size("intermediate_size", HIDDEN_SIZE_MAX)?,
        padded_vocab_size: vocab_size,
        context_length: positions,
        causal: false,
        tied: false,
        biases: true,
        qk_norms: false,
        layer_kind: LayerKind::Encoder(EncoderShape {
            positions,
            token_types: keys.size("type_vocab_size", VOCAB_SIZE_MAX)?,
        }),
    };
    let sentences = SentenceVectors {
        pooling: Pooling::Mean,
        are_normalized: false,
    };
    Ok(ModelConfig {
        epsilon: keys.positive("layer_norm_eps", EPSILON)?,
        ..encoder(Family::Bert, shape, sentences)
    })
}

/// Reads the `config.json` of a static table, to which whoever reads its file has added `vocab_size` and `hidden_dim`.
pub(super) fn read_static(config: &Map<String, Value>) -> Result<ModelConfig, CheckpointError> {
    let keys = ConfigKeys(config);
    let vocab_size = keys.size("vocab_size", VOCAB_SIZE_MAX)?;
    let tokens_max = keys.optional_size("max_length", CONTEXT_LENGTH_MAX)?;
    let tokens_max = tokens_max.unwrap_or(STATIC_TOKENS_MAX);
    let shape = Shape {
        naming: TensorNaming::Model2Vec,
        layers: 0,
        hidden_size: keys.size("hidden_dim", HIDDEN_SIZE_MAX)?,
        attention_heads: 0,
        kv_heads: 0,
        head_dim: 0,
        intermediate_size: 0,
        padded_vocab_size: vocab_size,
        context_length: tokens_max,
        causal: false,
        tied: false,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Encoder(EncoderShape {
            positions: 0,
            token_types: 0,
        }),
    };
    let sentences = SentenceVectors {
        pooling: Pooling::Mean,
        are_normalized: keys.flag("normalize")?,
    };
    Ok(encoder(Family::Model2Vec, shape, sentences))
}

/// The configuration of a sentence encoder.
fn encoder(family: Family, shape: Shape, sentences: SentenceVectors) -> ModelConfig {
    ModelConfig {
        family,
        vocab_size: shape.padded_vocab_size,
        rope: None,
        full_rope: None,
        soft_cap: None,
        router: None,
        epsilon: EPSILON,
        mask: None,
        eos_token_ids: Vec::new(),
        bos_token_id: None,
        inference: None,
        sentences: Some(sentences),
        shape,
    }
}

/// The steps of `modules.json` that are computed.
const TRANSFORMER: &str = "Transformer";
const POOLING: &str = "Pooling";
const NORMALIZE: &str = "Normalize";

/// The folder of the pooling's configuration, as `modules.json` has it.
pub(crate) fn pooling_folder(modules: &[Map<String, Value>]) -> Option<&str> {
    let pooling = modules.iter().find(|module| kind(module) == POOLING)?;
    pooling.get("path")?.as_str()
}

/// The last part of a module's type: packages were renamed between versions.
fn kind(module: &Map<String, Value>) -> &str {
    let name = module.get("type").and_then(Value::as_str);
    name.unwrap_or_default()
        .rsplit('.')
        .next()
        .unwrap_or_default()
}

/// Completes a sentence encoder's configuration by these files: how vectors are made of rows, and how long texts may be.
pub(crate) fn complete(
    config: &mut ModelConfig,
    files: &SentenceFiles,
) -> Result<(), CheckpointError> {
    let Some(sentences) = &mut config.sentences else {
        return Ok(());
    };
    for (index, module) in files.modules.iter().flatten().enumerate() {
        let kind = kind(module);
        let is_expected = match kind {
            TRANSFORMER => index == 0,
            POOLING => index == 1,
            NORMALIZE => index == 2,
            _ => false,
        };
        if !is_expected {
            return Err(problem(
                "modules.json",
                format!(
                    "has {:?} as module {index}; only a Transformer, Pooling and Normalize, in this order, are supported",
                    shortened(kind)
                ),
            ));
        }
        if kind == TRANSFORMER && module.get("path").is_some_and(|path| path != "") {
            return Err(problem(
                "modules.json",
                "has the Transformer in a folder of its own; only one beside this file is supported",
            ));
        }
        sentences.are_normalized |= kind == NORMALIZE;
    }
    if let Some(found) = &files.pooling {
        sentences.pooling = pooling(found)?;
    }
    if let Some(found) = &files.transformer {
        keys::check_variant(found, &[("do_lower_case", false.into())])?;
        let keys = ConfigKeys(found);
        if let Some(most) = keys.optional_size("max_seq_length", usize::MAX)? {
            // The tables may have more positions.
            config.shape.context_length = config.shape.context_length.min(most);
        }
    }
    if let Some(found) = &files.whole {
        // Text that would be put before each text unasked.
        keys::check_variant(found, &[("default_prompt_name", Value::Null)])?;
    }
    Ok(())
}

/// The pooling of a configuration with a switch for each kind, or with their names.
fn pooling(config: &Map<String, Value>) -> Result<Pooling, CheckpointError> {
    const NAMES: [(&str, &str); 7] = [
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("pooling_mode_weightedmean_tokens", "weightedmean"),
        ("pooling_mode_lasttoken", "lasttoken"),
        ("pooling_mode", ""),
    ];
    let keys = ConfigKeys(config);
    let mut asked = Vec::new();
    for (key, name) in NAMES {
        match config.get(key) {
            Some(Value::String(named)) if name.is_empty() => asked.push(named.clone()),
            Some(Value::Array(named)) if name.is_empty() => {
                asked.extend(named.iter().filter_map(Value::as_str).map(str::to_owned));
            }
            _ if name.is_empty() => {}
            _ if keys.flag(key)? => asked.push(name.to_owned()),
            _ => {}
        }
    }
    match asked.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["mean"] => Ok(Pooling::Mean),
        ["cls"] => Ok(Pooling::First),
        [] => Err(problem("pooling_mode", "names no pooling")),
        _ => Err(problem(
            "pooling_mode",
            format!(
                "is {}; only mean and cls, one at a time, are supported",
                shortened(&asked.join(" with "))
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    fn bert() -> Map<String, Value> {
        map(json!({
            "model_type": "bert",
            "hidden_act": "gelu",
            "hidden_size": 384,
            "intermediate_size": 1536,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "num_attention_heads": 12,
            "num_hidden_layers": 6,
            "position_embedding_type": "absolute",
            "type_vocab_size": 2,
            "vocab_size": 30522,
        }))
    }

    fn modules(kinds: &[&str]) -> SentenceFiles {
        let module = |(index, kind): (usize, &&str)| {
            let path = match index {
                0 => String::new(),
                _ => format!("{index}_{kind}"),
            };
            map(json!({ "path": path, "type": format!("sentence_transformers.models.{kind}") }))
        };
        SentenceFiles {
            modules: Some(kinds.iter().enumerate().map(module).collect()),
            ..SentenceFiles::default()
        }
    }

    #[test]
    fn published_files_are_read() {
        let config = ModelConfig::read(&bert(), None).unwrap();
        assert_eq!((config.family, config.epsilon), (Family::Bert, 1e-12));
        assert_eq!((config.shape.layers, config.shape.head_dim), (6, 32));
        // all-MiniLM-L6-v2 has 22,713,216 parameters with the pooler, which is not read.
        assert_eq!(config.shape.parameters(), 22_713_216 - 384 * 385);
        let files = SentenceFiles {
            pooling: Some(map(json!({
                "pooling_mode_cls_token": false,
                "pooling_mode_mean_tokens": true,
            }))),
            transformer: Some(map(
                json!({ "max_seq_length": 256, "do_lower_case": false }),
            )),
            ..modules(&["Transformer", "Pooling", "Normalize"])
        };
        assert_eq!(
            pooling_folder(files.modules.as_ref().unwrap()),
            Some("1_Pooling")
        );
        let mut whole = config.clone();
        complete(&mut whole, &files).unwrap();
        let expected = SentenceVectors {
            pooling: Pooling::Mean,
            are_normalized: true,
        };
        assert_eq!(whole.sentences, Some(expected));
        assert_eq!(whole.shape.context_length, 256);
        // Without the files: the mean, of as many tokens as there are positions.
        let mut plain = config.clone();
        complete(&mut plain, &SentenceFiles::default()).unwrap();
        assert_eq!(plain, config);
        assert_eq!(plain.shape.context_length, 512);
        assert!(!plain.sentences.unwrap().are_normalized);
    }

    #[test]
    fn static_tables_are_read() {
        let config = map(json!({
            "model_type": "model2vec",
            "normalize": true,
            "vocab_size": 29528,
            "hidden_dim": 256,
            "seq_length": 1_000_000,
        }));
        let config = ModelConfig::read(&config, None).unwrap();
        let tensors = config.shape.tensors();
        assert_eq!((tensors.len(), &tensors[0].name[..]), (1, "embeddings"));
        let sentences = config.sentences.unwrap();
        assert!(sentences.are_normalized && config.shape.context_length == 512);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_its_key() {
        for (key, value) in [
            ("hidden_act", json!("gelu_new")),
            ("position_embedding_type", json!("relative_key")),
            ("is_decoder", json!(true)),
            ("quantization_config", json!({})),
            ("num_attention_heads", json!(7)),
        ] {
            let mut config = bert();
            config.insert(key.to_owned(), value);
            let error = ModelConfig::read(&config, None).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
        let usual = ModelConfig::read(&bert(), None).unwrap();
        let refused = |files: &SentenceFiles, part: &str| {
            let error = complete(&mut usual.clone(), files).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(&modules(&["Transformer", "Pooling", "Dense"]), "\"Dense\"");
        refused(&modules(&["CLIPModel"]), "\"CLIPModel\"");
        for (config, part) in [
            (json!({ "pooling_mode_max_tokens": true }), "is max;"),
            (
                json!({ "pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true }),
                "is mean with max;",
            ),
            (json!({ "pooling_mode": "lasttoken" }), "is lasttoken;"),
            (json!({}), "names no pooling"),
        ] {
            let files = SentenceFiles {
                pooling: Some(map(config)),
                ..SentenceFiles::default()
            };
            refused(&files, part);
        }
        refused(
            &SentenceFiles {
                transformer: Some(map(json!({ "do_lower_case": true }))),
                ..SentenceFiles::default()
            },
            "do_lower_case",
        );
        refused(
            &SentenceFiles {
                whole: Some(map(json!({ "default_prompt_name": "query" }))),
                ..SentenceFiles::default()
            },
            "default_prompt_name",
        );
    }
}
