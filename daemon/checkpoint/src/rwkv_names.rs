//! RWKV-7 checkpoints as their authors publish them: tensors under the names of their training code, and no
//! configuration, since all sizes follow from the tensors.
//!
//! They are presented under the names that Hugging Face's folders have, with the `config.json` that would be there.
//! The low-rank matrices multiply from the other side, so they are transposed while they are read.
//!
//! Reference: BlinkDL/RWKV-LM, RWKV-v7/rwkv_v7_demo.py.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sluice_weights::{HIDDEN_SIZE_MAX, RWKV7_HEAD_DIM};

use super::{
    CheckpointError, TensorEntry,
    stored_order::{StoredOrder, Transposed},
};

/// Official names and Hugging Face's, of tensors outside of layers. The norm after the embedding is named as the first
/// layer's in both.
const WHOLE: [[&str; 2]; 6] = [
    [EMBEDDING, "model.embeddings.weight"],
    ["blocks.0.ln0.weight", "model.layers.0.pre_norm.weight"],
    ["blocks.0.ln0.bias", "model.layers.0.pre_norm.bias"],
    ["ln_out.weight", "model.norm.weight"],
    ["ln_out.bias", "model.norm.bias"],
    ["head.weight", "lm_head.weight"],
];

/// The same of tensors of a layer, below the prefixes.
const LAYER: [[&str; 2]; 33] = [
    ["ln1.weight", "attn_norm.weight"],
    ["ln1.bias", "attn_norm.bias"],
    ["att.x_r", "attn.x_r"],
    ["att.x_w", "attn.x_w"],
    ["att.x_k", "attn.x_k"],
    ["att.x_v", "attn.x_v"],
    ["att.x_a", "attn.x_a"],
    ["att.x_g", "attn.x_g"],
    ["att.receptance.weight", "attn.r_proj.weight"],
    ["att.key.weight", "attn.k_proj.weight"],
    ["att.value.weight", "attn.v_proj.weight"],
    ["att.output.weight", "attn.o_proj.weight"],
    ["att.w0", "attn.w_lora.lora.2.bias"],
    ["att.w1", "attn.w_lora.lora.0.weight"],
    ["att.w2", "attn.w_lora.lora.2.weight"],
    ["att.a0", "attn.a_lora.lora.2.bias"],
    ["att.a1", "attn.a_lora.lora.0.weight"],
    ["att.a2", "attn.a_lora.lora.2.weight"],
    ["att.v0", "attn.v_lora.lora.2.bias"],
    ["att.v1", "attn.v_lora.lora.0.weight"],
    ["att.v2", "attn.v_lora.lora.2.weight"],
    ["att.g1", "attn.g_lora.lora.0.weight"],
    ["att.g2", "attn.g_lora.lora.2.weight"],
    ["att.k_k", "attn.k_k"],
    ["att.k_a", "attn.k_a"],
    ["att.r_k", "attn.r_k"],
    ["att.ln_x.weight", "attn.g_norm.weight"],
    ["att.ln_x.bias", "attn.g_norm.bias"],
    ["ln2.weight", "ffn_norm.weight"],
    ["ln2.bias", "ffn_norm.bias"],
    ["ffn.x_k", "ffn.x_k"],
    ["ffn.key.weight", "ffn.key.weight"],
    ["ffn.value.weight", "ffn.value.weight"],
];

const EMBEDDING: &str = "emb.weight";
const OFFICIAL: usize = 0;
const HUGGING_FACE: usize = 1;
/// Prefix of a layer's index.
const LAYERS: [&str; 2] = ["blocks.", "model.layers."];
/// Matrices that are stored transposed.
const TRANSPOSED: [&str; 8] = ["w1", "w2", "a1", "a2", "v1", "v2", "g1", "g2"];
/// The first layer's values are what later layers mix in, so its own mix isn't used; some files have it all the same.
const UNUSED: [&str; 3] = ["blocks.0.att.v0", "blocks.0.att.v1", "blocks.0.att.v2"];

/// The configuration that a checkpoint with official names stands for.
#[derive(Debug)]
pub(super) struct RwkvCheckpoint {
    /// Path for messages.
    path: String,
    config: Map<String, Value>,
}

/// Whether these are tensors of an RWKV model under its official names.
pub(super) fn are_official(tensors: &BTreeMap<String, TensorEntry>) -> bool {
    let is_layer = |(name, _): (&String, _)| name.starts_with(LAYERS[OFFICIAL]);
    let first = tensors.range(LAYERS[OFFICIAL].to_owned()..).next();
    tensors.contains_key(EMBEDDING) && first.is_some_and(is_layer)
}

/// The tensors under Hugging Face's names, and the configuration that follows from their shapes.
///
/// # Errors
/// Tensors that RWKV-7 doesn't have: the model that they belong to computes with them.
pub(super) fn present(
    tensors: BTreeMap<String, TensorEntry>,
    path: &str,
) -> Result<(BTreeMap<String, TensorEntry>, RwkvCheckpoint), CheckpointError> {
    let unsupported = |what: String| CheckpointError::Unsupported {
        path: path.to_owned(),
        what,
        hint: "of models with such names RWKV-7 is supported, such as BlinkDL/rwkv7-g1".to_owned(),
    };
    if !are_official(&tensors) {
        return Err(unsupported(format!(
            "is no RWKV-7 model: it lacks {EMBEDDING} or layers named blocks.0 and so on"
        )));
    }
    if !tensors.contains_key("blocks.0.att.x_r") {
        return Err(unsupported(
            "is an RWKV model of another version: it lacks blocks.0.att.x_r".to_owned(),
        ));
    }
    let config = config(&tensors);
    let mut presented = BTreeMap::new();
    for (name, mut entry) in tensors {
        if UNUSED.contains(&&name[..]) {
            continue;
        }
        let Some(other) = translated(&name, OFFICIAL, HUGGING_FACE) else {
            let name: String = name.chars().take(100).collect();
            return Err(unsupported(format!(
                "has the tensor {name}, which is not part of RWKV-7"
            )));
        };
        let kind = name.rsplit('.').next().unwrap_or_default();
        if TRANSPOSED.contains(&kind) {
            transpose(&name, &mut entry, path)?;
        }
        // No two names are translated to one, so nothing is lost.
        presented.insert(other, entry);
    }
    let checkpoint = RwkvCheckpoint {
        path: path.to_owned(),
        config,
    };
    Ok((presented, checkpoint))
}

impl RwkvCheckpoint {
    /// The keys of a `config.json`.
    pub(super) fn config(&self) -> &Map<String, Value> {
        &self.config
    }

    /// The file's name for a tensor, for messages.
    pub(super) fn file_name(&self, name: &str) -> String {
        translated(name, HUGGING_FACE, OFFICIAL).unwrap_or_else(|| name.to_owned())
    }

    /// Reports a problem with a key of `config.json`, which the file doesn't have, as one of its tensors.
    pub(super) fn explain(&self, error: CheckpointError) -> CheckpointError {
        match error {
            CheckpointError::Config { key, problem } => CheckpointError::Metadata {
                path: self.path.clone(),
                key: format!("{key}, by its tensors,"),
                problem,
            },
            other => other,
        }
    }
}

/// Sizes as the tensors have them. What is missing, or fits nothing, is refused by the family.
fn config(tensors: &BTreeMap<String, TensorEntry>) -> Map<String, Value> {
    let size = |name: &str, index: usize| {
        let size = tensors.get(name).and_then(|entry| entry.shape.get(index));
        size.map_or(Value::Null, |&size| size.into())
    };
    let layers = tensors.keys().filter_map(|name| layer_of(name, OFFICIAL));
    let layers = layers.map(|(layer, _)| layer).max();
    let config = json!({
        "model_type": "rwkv7",
        "hidden_size": size(EMBEDDING, 1),
        "num_hidden_layers": layers.map(|last| last.saturating_add(1)),
        "intermediate_size": size("blocks.0.ffn.key.weight", 0),
        "vocab_size": size(EMBEDDING, 0),
        // [heads, elements of a head]; some files have it as one vector.
        "head_dim": size("blocks.0.att.r_k", 1).as_u64().unwrap_or(RWKV7_HEAD_DIM as u64),
        "decay_low_rank_dim": size("blocks.0.att.w1", 1),
        "a_low_rank_dim": size("blocks.0.att.a1", 1),
        "v_low_rank_dim": size("blocks.1.att.v1", 1),
        "gate_low_rank_dim": size("blocks.0.att.g1", 1),
        "norm_eps": 1e-5,
        "tie_word_embeddings": false,
        // The world tokenizer's end of text, behind which the next text begins.
        "eos_token_id": 0,
        "bos_token_id": 0,
    });
    match config {
        Value::Object(config) => config,
        _ => unreachable!("written as an object above"),
    }
}

/// A tensor's layer, and its name below the layer's prefix.
fn layer_of(name: &str, column: usize) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix(LAYERS[column])?.split_once('.')?;
    let number: usize = layer.parse().ok()?;
    // Other spellings, such as "01" and "+1", are no layers: two tensors must not get the same name.
    (number.to_string() == layer).then_some((number, part))
}

fn translated(name: &str, from: usize, to: usize) -> Option<String> {
    if let Some(names) = WHOLE.iter().find(|names| names[from] == name) {
        return Some(names[to].to_owned());
    }
    let (layer, part) = layer_of(name, from)?;
    let names = LAYER.iter().find(|names| names[from] == part)?;
    Some(format!("{}{layer}.{}", LAYERS[to], names[to]))
}

/// Has a matrix read in the other order.
fn transpose(name: &str, entry: &mut TensorEntry, path: &str) -> Result<(), CheckpointError> {
    // Other shapes and unsupported types are refused when the model asks for the tensor.
    let (&[columns, rows], Ok(format)) = (&entry.shape[..], &entry.format) else {
        return Ok(());
    };
    // Whole columns are kept in memory while one is read.
    if rows > HIDDEN_SIZE_MAX || columns > HIDDEN_SIZE_MAX {
        return Err(CheckpointError::MalformedFile {
            path: path.to_owned(),
            cause: format!("tensor {name} would have the shape {:?}", entry.shape),
        });
    }
    entry.order = StoredOrder::Transposed(Transposed {
        rows,
        columns,
        element_bytes: format.bytes(1),
    });
    entry.shape = vec![rows, columns];
    Ok(())
}

#[cfg(test)]
mod tests;
