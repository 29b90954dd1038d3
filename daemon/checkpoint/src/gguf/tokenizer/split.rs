//! How text is split into words before byte-level BPE. Files name the way; the expressions are those of the tokenizers
//! that the models were published with.

use serde_json::{Value, json};

use super::super::{super::CheckpointError, metadata::Metadata};

const KEY: &str = "tokenizer.ggml.pre";

/// The word pattern of Llama 3.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The word pattern of Qwen 2, where each digit is a word.
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The steps before BPE.
pub(super) struct PreTokenizer {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    /// Whether a word that is a token is taken whole, without merges.
    pub(super) ignore_merges: bool,
    /// Whether texts begin with a special token if the file doesn't say.
    pub(super) has_bos: bool,
}

/// The steps that the file names.
pub(super) fn of(metadata: &Metadata) -> Result<PreTokenizer, CheckpointError> {
    const KNOWN: &str = "gpt-2, smollm, llama-bpe and qwen2";
    let split = |pre_tokenizer| PreTokenizer {
        normalizer: Value::Null,
        pre_tokenizer,
        ignore_merges: false,
        has_bos: false,
    };
    match metadata.text(KEY)? {
        Some("gpt-2" | "phi-2") => Ok(split(byte_level(true))),
        Some("smollm" | "starcoder" | "refact") => {
            let digits = json!({ "type": "Digits", "individual_digits": true });
            Ok(split(sequence([digits, byte_level(true)])))
        }
        Some("llama-bpe" | "llama3" | "llama-v3" | "falcon3") => Ok(PreTokenizer {
            // As in tiktoken, which Llama 3 was published with: a word that is a token needs no merges.
            ignore_merges: true,
            has_bos: true,
            ..split(sequence([words(LLAMA_3), byte_level(false)]))
        }),
        Some("dbrx" | "smaug-bpe") => Ok(split(sequence([words(LLAMA_3), byte_level(false)]))),
        // Qwen's tokenizer composes characters first, so that accents written in two ways are the same tokens.
        Some("qwen2" | "deepseek-r1-qwen") => Ok(PreTokenizer {
            normalizer: json!({ "type": "NFC" }),
            ..split(sequence([words(QWEN_2), byte_level(false)]))
        }),
        Some(other) => {
            let other: String = other.chars().take(100).collect();
            Err(metadata.problem(KEY, format!("is {other:?}; known are {KNOWN}")))
        }
        None => Err(metadata.problem(
            KEY,
            "is missing; convert the model with a newer version of the program that wrote the file",
        )),
    }
}

/// Maps bytes to visible characters; splits by GPT-2's pattern if no other step has split the text.
fn byte_level(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": use_regex,
    })
}

fn words(expression: &str) -> Value {
    json!({
        "type": "Split", "pattern": { "Regex": expression }, "behavior": "Isolated", "invert": false,
    })
}

fn sequence(steps: [Value; 2]) -> Value {
    json!({ "type": "Sequence", "pretokenizers": steps })
}
