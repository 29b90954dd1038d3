//! Keys of `config.json` with their bounds: no value of a file is trusted.

use serde_json::{Map, Value};
use sluice_weights::{END_TOKENS_MAX, HEAD_DIM_MAX};

use crate::CheckpointError;

/// Most layers of a model.
pub(crate) const LAYERS_MAX: usize = 4096;
/// Most rows of an embedding.
pub(super) const VOCAB_SIZE_MAX: usize = 1 << 24;

/// Checks keys for which only one value is implemented. An absent key counts as that value.
pub(super) fn check_variant(
    config: &Map<String, Value>,
    expected: &[(&'static str, Value)],
) -> Result<(), CheckpointError> {
    for (key, expected) in expected {
        match config.get(*key) {
            // As in transformers, null means that the default applies.
            None | Some(Value::Null) => {}
            Some(found) if found == expected || is_same_number(found, expected) => {}
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

/// Refuses packed integers in the place of weights, as GPTQ, AWQ and the like store them.
pub(super) fn check_unquantized(config: &Map<String, Value>) -> Result<(), CheckpointError> {
    match config.get("quantization_config") {
        None | Some(Value::Null) => Ok(()),
        Some(_) => Err(problem(
            "quantization_config",
            "declares quantized weights; only f32, f16 and bf16 are supported in Hugging Face folders",
        )),
    }
}

/// Whether both are numbers, and equal: files have 1 and 1.0.
fn is_same_number(found: &Value, expected: &Value) -> bool {
    found.is_number() && found.as_f64() == expected.as_f64()
}

/// The ids of `eos_token_id` in both files, without repetition.
pub(super) fn eos_token_ids(
    config: &Map<String, Value>,
    generation: Option<&Map<String, Value>>,
    vocab_size: usize,
) -> Result<Vec<u32>, CheckpointError> {
    let mut ids = Vec::new();
    // Both files count: chat models often list their end-of-turn token only in `generation_config.json`.
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
            // Compared as 64-bit integers, so that no huge id wraps to a valid one.
            let id = id
                .as_u64()
                .filter(|&id| id < vocab_size as u64)
                .ok_or_else(|| {
                    let found = shortened(&id.to_string());
                    problem(
                        "eos_token_id",
                        format!("is {found}, not a token id below {vocab_size}"),
                    )
                })? as u32;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    // The end of a chat turn may be added to them, and the mask where they are suppressed.
    if ids.len() + 1 >= END_TOKENS_MAX {
        return Err(problem("eos_token_id", "has more ids than a model can use"));
    }
    Ok(ids)
}

/// The id of `bos_token_id`, of the first file that has it. Few requests need it, so one that is no token is none.
pub(super) fn bos_token_id(
    config: &Map<String, Value>,
    generation: Option<&Map<String, Value>>,
    vocab_size: usize,
) -> Option<u32> {
    let maps = [Some(config), generation].into_iter().flatten();
    let mut ids = maps.filter_map(|map| map.get("bos_token_id")?.as_u64());
    let id = ids.find(|&id| id < vocab_size as u64)?;
    u32::try_from(id).ok()
}

/// Checks that each KV head serves the same number of query heads.
pub(super) fn check_kv_heads(
    key: &'static str,
    heads: usize,
    kv_heads: usize,
) -> Result<(), CheckpointError> {
    match heads.is_multiple_of(kv_heads) {
        true => Ok(()),
        false => Err(problem(
            key,
            format!("is {kv_heads}, which does not divide the {heads} attention heads"),
        )),
    }
}

/// Checks that heads are no longer than passes have memory for. `gives` says how the key leads to it.
pub(super) fn check_head_dim(
    key: &'static str,
    gives: &str,
    head_dim: usize,
) -> Result<(), CheckpointError> {
    match head_dim <= HEAD_DIM_MAX {
        true => Ok(()),
        false => Err(problem(
            key,
            format!("{gives} a head dimension of {head_dim}; the maximum is {HEAD_DIM_MAX}"),
        )),
    }
}

/// Numbers by key, checked against bounds.
pub(super) struct ConfigKeys<'a>(pub(super) &'a Map<String, Value>);

impl ConfigKeys<'_> {
    pub(super) fn size(&self, key: &'static str, max: usize) -> Result<usize, CheckpointError> {
        self.optional_size(key, max)?
            .ok_or_else(|| problem(key, "is missing"))
    }

    /// As [`ConfigKeys::size`], or 0.
    pub(super) fn count(&self, key: &'static str, max: usize) -> Result<usize, CheckpointError> {
        self.bounded(key, 0, max)?
            .ok_or_else(|| problem(key, "is missing"))
    }

    pub(super) fn optional_size(
        &self,
        key: &'static str,
        max: usize,
    ) -> Result<Option<usize>, CheckpointError> {
        self.bounded(key, 1, max)
    }

    /// The mask token's id, which must not end a text; where the file names none, the one of the published vocabulary, if
    /// this is as large.
    pub(super) fn mask_token_id(
        &self,
        vocab_size: usize,
        eos_token_ids: &[u32],
        published: Option<usize>,
    ) -> Result<u32, CheckpointError> {
        let id = self
            .bounded("mask_token_id", 0, vocab_size - 1)?
            .or(published.filter(|&id| id < vocab_size))
            .ok_or_else(|| match published {
                Some(id) => problem(
                    "mask_token_id",
                    format!(
                        "is missing, and the published models' {id} is no token of this vocabulary of {vocab_size}; add the id of the \
                         model's mask token"
                    ),
                ),
                None => problem(
                    "mask_token_id",
                    "is missing; add the id of the model's mask token",
                ),
            })? as u32;
        // If the mask ended texts, a canvas would end at its first masked position.
        match eos_token_ids.contains(&id) {
            true => Err(problem("eos_token_id", "is also the mask token's id")),
            false => Ok(id),
        }
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
                // Negative numbers and fractions aren't `u64`, so they fail here as well.
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

    /// A switch; false if the key is absent.
    pub(super) fn flag(&self, key: &'static str) -> Result<bool, CheckpointError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => {
                let found = shortened(&other.to_string());
                Err(problem(key, format!("is {found}, neither true nor false")))
            }
        }
    }

    pub(super) fn needed_positive(&self, key: &'static str) -> Result<f32, CheckpointError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Err(problem(key, "is missing")),
            Some(_) => self.positive(key, 1.0),
        }
    }

    pub(super) fn positive(&self, key: &'static str, default: f32) -> Result<f32, CheckpointError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value
                .as_f64()
                .map(|number| number as f32)
                // After the cast to `f32`, which may overflow to infinity or underflow to zero.
                .filter(|number| number.is_finite() && *number > 0.0)
                .ok_or_else(|| {
                    let found = shortened(&value.to_string());
                    problem(key, format!("is {found}, not a positive number"))
                }),
        }
    }
}

/// The error for a key.
pub(super) fn problem(key: &'static str, problem: impl Into<String>) -> CheckpointError {
    CheckpointError::Config {
        key,
        problem: problem.into(),
    }
}

/// A value of a file, short enough for a message.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}
