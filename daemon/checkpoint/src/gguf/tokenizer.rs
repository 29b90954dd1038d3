//! Converts the tokenizer in a GGUF file to the `tokenizer.json` and `tokenizer_config.json` that it was made from:
//! byte-level BPE (`gpt2`) with its merges, or SentencePiece's BPE (`llama`) with scores. RWKV's (`rwkv`) becomes the
//! vocabulary file that it was made from.

mod merges;
mod split;
mod world;

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{
    super::{CheckpointError, TokenizerFiles},
    Gguf, TOKENS_KEY,
    metadata::Metadata,
    value::{Numbers, Texts},
};

const MODEL_KEY: &str = "tokenizer.ggml.model";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
pub(super) const BOS_KEY: &str = "tokenizer.ggml.bos_token_id";
const UNKNOWN_KEY: &str = "tokenizer.ggml.unknown_token_id";
const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Names of special tokens in chat templates, and the keys of their ids.
const NAMED: [(&str, &str); 5] = [
    ("bos_token", BOS_KEY),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("unk_token", UNKNOWN_KEY),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// Token types in `tokenizer.ggml.token_type`.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// The tokens of a file by id, and their ids.
struct Vocabulary<'a> {
    tokens: &'a Texts,
    ids: HashMap<&'a str, u32>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self, CheckpointError> {
        let tokens = metadata
            .texts(TOKENS_KEY)?
            .ok_or_else(|| metadata.problem(TOKENS_KEY, "is missing"))?;
        // A vocabulary with two ids for one token has no unambiguous encoding, and `tokenizer.json` could not hold it.
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(token, id as u32) {
                let problem = format!("has the same token under {first} and {id}: {token:?}");
                return Err(metadata.problem(TOKENS_KEY, problem));
            }
        }
        Ok(Self { tokens, ids })
    }

    fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    fn token(&self, id: u64) -> Option<&'a str> {
        self.tokens.get(usize::try_from(id).ok()?)
    }

    /// The token whose id is the value of a key.
    fn named(&self, metadata: &Metadata, key: &str) -> Result<Option<&'a str>, CheckpointError> {
        let Some(id) = metadata.whole(key)? else {
            return Ok(None);
        };
        self.token(id).map(Some).ok_or_else(|| {
            metadata.problem(
                key,
                format!("is {id}; there are {} tokens", self.tokens.len()),
            )
        })
    }
}

impl Serialize for Vocabulary<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Straight from the map: half a million tokens aren't copied into JSON values first.
        serializer.collect_map(&self.ids)
    }
}

#[derive(Serialize)]
struct Description<'a> {
    version: &'static str,
    added_tokens: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model<'a>,
}

#[derive(Serialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    unk_token: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: &'a Vocabulary<'a>,
    merges: Vec<(&'a str, &'a str)>,
}

impl Gguf {
    /// Converts the tokenizer's files; `None` if the GGUF file has no tokenizer.
    ///
    /// # Errors
    /// Names the key that is missing or invalid, or asks for an unsupported tokenizer.
    pub fn tokenizer(&self) -> Result<Option<TokenizerFiles>, CheckpointError> {
        let metadata = &self.metadata;
        let kind = metadata.text(MODEL_KEY)?;
        // Such files are meant to be used with a `tokenizer.json` beside them.
        if matches!(kind, None | Some("none" | "no_vocab")) {
            return Ok(None);
        }
        let vocabulary = Vocabulary::read(metadata)?;
        let json = |written: Result<Vec<u8>, serde_json::Error>| {
            written.map_err(|error| metadata.problem(TOKENS_KEY, error.to_string()))
        };
        let described = |description: Description<'_>| json(serde_json::to_vec(&description));
        let tokenizer = match kind {
            Some("gpt2") => described(byte_level(metadata, &vocabulary)?)?,
            Some("llama") => described(sentence_piece(metadata, &vocabulary)?)?,
            Some("rwkv") => world::file(metadata, &vocabulary)?,
            other => {
                let found = other
                    .unwrap_or_default()
                    .chars()
                    .take(100)
                    .collect::<String>();
                return Err(metadata.problem(
                    MODEL_KEY,
                    format!("is {found:?}; known are gpt2, llama and rwkv"),
                ));
            }
        };
        Ok(Some(TokenizerFiles {
            tokenizer,
            config: Some(json(serde_json::to_vec(&config(metadata, &vocabulary)?))?),
            template: None,
        }))
    }
}

fn config(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<Map<String, Value>, CheckpointError> {
    let mut config = Map::new();
    // Chat templates refer to these tokens by name.
    for (name, key) in NAMED {
        if let Some(token) = vocabulary.named(metadata, key)? {
            config.insert(name.to_owned(), token.into());
        }
    }
    let template = metadata.text(TEMPLATE_KEY)?;
    if let Some(template) = template.filter(|&template| template != world::TEMPLATE) {
        config.insert("chat_template".to_owned(), template.into());
    }
    Ok(config)
}

/// Byte-level BPE, as in GPT-2.
fn byte_level<'a>(
    metadata: &'a Metadata,
    vocabulary: &'a Vocabulary<'a>,
) -> Result<Description<'a>, CheckpointError> {
    let split = split::of(metadata)?;
    Ok(Description {
        version: "1.0",
        added_tokens: added_tokens(metadata, vocabulary)?,
        normalizer: split.normalizer,
        pre_tokenizer: split.pre_tokenizer,
        post_processor: bos(metadata, vocabulary, split.has_bos)?,
        decoder: json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
        }),
        model: Model {
            kind: "BPE",
            unk_token: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: split.ignore_merges,
            merges: merges::listed(metadata, vocabulary)?,
            vocab: vocabulary,
        },
    })
}

/// SentencePiece's BPE, with byte tokens for unknown characters. Text is prefixed with a space unless the file says
/// otherwise.
fn sentence_piece<'a>(
    metadata: &'a Metadata,
    vocabulary: &'a Vocabulary<'a>,
) -> Result<Description<'a>, CheckpointError> {
    let has_prefix = metadata
        .bool("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true);
    // As transformers' converter writes SentencePiece tokenizers (`LlamaConverter`).
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let mut normalizers = vec![spaces];
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if has_prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    Ok(Description {
        version: "1.0",
        added_tokens: added_tokens(metadata, vocabulary)?,
        normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
        pre_tokenizer: Value::Null,
        post_processor: bos(metadata, vocabulary, true)?,
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        model: Model {
            kind: "BPE",
            unk_token: vocabulary.named(metadata, UNKNOWN_KEY)?,
            // Unknown characters become byte tokens; if the vocabulary lacks those, one unknown token.
            fuse_unk: true,
            byte_fallback: true,
            ignore_merges: false,
            merges: merges::by_score(metadata, vocabulary)?,
            vocab: vocabulary,
        },
    })
}

/// Prepends the beginning-of-text token to every text, where the file says so, or says nothing and such tokenizers
/// usually do.
fn bos(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
    usual: bool,
) -> Result<Value, CheckpointError> {
    let is_there = metadata
        .bool("tokenizer.ggml.add_bos_token")?
        .unwrap_or(usual);
    let Some(token) = vocabulary.named(metadata, BOS_KEY)? else {
        return Ok(Value::Null);
    };
    if !is_there {
        return Ok(Value::Null);
    }
    let mark = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let ids = json!({ "id": token, "ids": [vocabulary.id(token)], "tokens": [token] });
    Ok(json!({
        "type": "TemplateProcessing", "single": [mark, text], "pair": [],
        "special_tokens": { token: ids },
    }))
}

/// Tokens that are matched before anything else: control tokens and user-defined ones.
fn added_tokens(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<Vec<Value>, CheckpointError> {
    let Some(types) = types(metadata, vocabulary)? else {
        return Ok(Vec::new());
    };
    let tokens = types.whole().zip(vocabulary.tokens.iter()).enumerate();
    let added = tokens.filter(|(_, (kind, token))| {
        // An empty token would match everywhere in a text.
        matches!(*kind, UNKNOWN | CONTROL | USER_DEFINED) && !token.is_empty()
    });
    // Not normalized: a control token must match exactly, whatever the text around it becomes.
    let added = added.map(|(id, (kind, token))| {
        json!({
            "id": id, "content": token, "special": kind != USER_DEFINED,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    });
    Ok(added.collect())
}

/// The types of all tokens, if the file has them.
fn types<'a>(
    metadata: &'a Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<Option<&'a Numbers>, CheckpointError> {
    let types = metadata.numbers(TYPES_KEY)?;
    match types.filter(|types| types.len() != vocabulary.tokens.len()) {
        None => Ok(types),
        Some(types) => Err(metadata.problem(
            TYPES_KEY,
            format!(
                "has {} types for {} tokens",
                types.len(),
                vocabulary.tokens.len()
            ),
        )),
    }
}
