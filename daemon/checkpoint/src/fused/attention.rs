//! Matrices whose rows are a layer's queries, keys and values, as LLaDA2.0's files have them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sluice_weights::{ATTENTION_PARTS, FUSED_ATTENTION};

use super::{
    super::{Checkpoint, CheckpointError, TensorEntry},
    FusedTensors,
};

/// Whether there are such matrices.
pub(super) fn are_in(tensors: &BTreeMap<String, TensorEntry>) -> bool {
    tensors.keys().any(|name| name.ends_with(FUSED_ATTENTION))
}

/// The names of such a matrix's parts; `None` for other tensors.
pub(super) fn part_names(name: &str) -> Option<[String; 3]> {
    let layer = name.strip_suffix(FUSED_ATTENTION)?;
    Some(ATTENTION_PARTS.map(|part| format!("{layer}{part}")))
}

/// Adds all such matrices.
///
/// # Errors
/// A matrix with other rows than the configuration's heads have, or one that cannot be taken in.
pub(super) fn find(
    checkpoint: &Checkpoint,
    config: &Map<String, Value>,
    fused: &mut FusedTensors,
) -> Result<(), CheckpointError> {
    let size = |key: &str| config.get(key)?.as_u64();
    let heads = size("num_attention_heads").zip(size("num_key_value_heads"));
    // Without these keys the model is refused by its configuration.
    let Some(((heads, kv_heads), head_dim)) = heads.zip(size("head_dim")) else {
        return Ok(());
    };
    let rows = [heads, kv_heads, kv_heads].map(|heads| heads.saturating_mul(head_dim));
    let all = rows
        .iter()
        .fold(0, |all: u64, rows| all.saturating_add(*rows));
    for (name, entry) in &checkpoint.tensors {
        let Some(names) = part_names(name) else {
            continue;
        };
        let width = entry.shape.get(1).copied().unwrap_or(0);
        if entry.shape.len() != 2 || entry.shape[0] as u64 != all {
            return Err(CheckpointError::WrongShape {
                tensor: name.clone(),
                found: entry.shape.clone(),
                expected: vec![usize::try_from(all).unwrap_or(usize::MAX), width],
            });
        }
        let shapes = rows.map(|rows| [rows as usize, width]);
        fused.add(checkpoint, name, entry, names.into_iter().zip(shapes))?;
    }
    Ok(())
}

/// The file's name for a tensor that is a part of such a matrix.
pub(super) fn file_name(name: &str) -> Option<String> {
    let mut layers = ATTENTION_PARTS.iter().map(|part| name.strip_suffix(part));
    let layer = layers.find_map(|layer| layer)?;
    Some(format!("{layer}{FUSED_ATTENTION}"))
}
