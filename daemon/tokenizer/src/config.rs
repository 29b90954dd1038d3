//! The few facts that `tokenizer_config.json` adds to the tokenizer.

use serde_json::{Map, Value};

use super::error::TokenizerError;

/// The names that Hugging Face's templates know special tokens by.
const TOKEN_KEYS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "cls_token",
    "sep_token",
    "mask_token",
];

/// What is used of `tokenizer_config.json`; empty where there is none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TokenizerConfig {
    /// Key and string, such as `bos_token` and `<|startoftext|>`.
    pub(super) tokens: Vec<(&'static str, String)>,
    /// Strings that the file calls special under no name of their own.
    pub(super) other_special: Vec<String>,
    /// The chat template's source.
    pub(super) chat_template: Option<String>,
    /// Whether that is a file of its own.
    pub(super) has_template_file: bool,
}

/// The file that newer checkpoints keep their chat template in.
pub(super) const TEMPLATE_FILE: &str = "chat_template.jinja";

impl TokenizerConfig {
    pub(super) fn parse(json: &[u8]) -> Result<Self, TokenizerError> {
        let root: Map<String, Value> =
            serde_json::from_slice(json).map_err(TokenizerError::config)?;
        let mut tokens = Vec::new();
        for key in TOKEN_KEYS {
            if let Some(value) = root.get(key).filter(|value| !value.is_null()) {
                tokens.push((key, token_string(key, value)?));
            }
        }
        Ok(Self {
            tokens,
            other_special: other_special(&root)?,
            chat_template: root
                .get("chat_template")
                .map(chat_template)
                .transpose()?
                .flatten(),
            has_template_file: false,
        })
    }

    /// Takes the template of a file of its own.
    pub(super) fn set_template(&mut self, source: &[u8]) -> Result<(), TokenizerError> {
        let source = std::str::from_utf8(source).map_err(|error| TokenizerError::Template {
            file: TEMPLATE_FILE,
            cause: error.to_string(),
        })?;
        self.chat_template = Some(source.to_owned());
        self.has_template_file = true;
        Ok(())
    }
}

/// A token is written as its string or as an object with the string in `content`.
fn token_string(key: &str, value: &Value) -> Result<String, TokenizerError> {
    let content = value.get("content").unwrap_or(value);
    content.as_str().map(str::to_owned).ok_or_else(|| {
        TokenizerError::config(format_args!(
            "{key} is neither a string nor an object with a string \"content\""
        ))
    })
}

fn other_special(root: &Map<String, Value>) -> Result<Vec<String>, TokenizerError> {
    let mut special = Vec::new();
    if let Some(listed) = root
        .get("additional_special_tokens")
        .and_then(Value::as_array)
    {
        for value in listed {
            special.push(token_string("additional_special_tokens", value)?);
        }
    }
    if let Some(added) = root.get("added_tokens_decoder").and_then(Value::as_object) {
        for value in added.values() {
            if value.get("special").and_then(Value::as_bool) == Some(true) {
                special.push(token_string("added_tokens_decoder", value)?);
            }
        }
    }
    Ok(special)
}

/// A template is a string, or a list of named ones of which `default` is for conversations.
fn chat_template(value: &Value) -> Result<Option<String>, TokenizerError> {
    match value {
        Value::Null => Ok(None),
        Value::String(source) => Ok(Some(source.clone())),
        Value::Array(named) => {
            let default = named
                .iter()
                .find(|template| template.get("name").and_then(Value::as_str) == Some("default"))
                .ok_or_else(|| {
                    TokenizerError::config("chat_template lists no template named \"default\"")
                })?;
            let source = default
                .get("template")
                .and_then(Value::as_str)
                .ok_or_else(|| {
                    TokenizerError::config("the default chat_template has no string \"template\"")
                })?;
            Ok(Some(source.to_owned()))
        }
        _ => Err(TokenizerError::config(
            "chat_template is neither a string nor a list of named templates",
        )),
    }
}
