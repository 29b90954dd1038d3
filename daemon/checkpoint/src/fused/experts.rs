//! Tensors that have the matrices of all experts of a layer, one expert after another: as llama.cpp writes them, as
//! transformers 5 has Qwen3-MoE's (`gate_up_proj`), and as converters of LLaDA2.0 write them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    super::{Checkpoint, CheckpointError, TensorEntry, safetensors::TENSORS_MAX},
    FusedTensors,
};
use crate::family::EXPERTS_MAX;

/// What such a tensor is called behind [`EXPERTS`], and the matrices of an expert that its rows are, in their order.
const FUSED: [(&str, &[&str]); 4] = [
    ("gate_up_proj", &["gate_proj", "up_proj"]),
    ("gate_proj", &["gate_proj"]),
    ("up_proj", &["up_proj"]),
    ("down_proj", &["down_proj"]),
];
/// What comes between the layer, or its `mlp`, and the name of a matrix.
const EXPERTS: &str = ".experts.";
/// What some programs add to the names of all tensors.
const WEIGHT: &str = ".weight";

/// The layer of such a tensor, and the matrices of an expert that it has.
fn of_name(name: &str) -> Option<(&str, &'static [&'static str])> {
    let (layer, matrix) = name.rsplit_once(EXPERTS)?;
    let matrix = matrix.strip_suffix(WEIGHT).unwrap_or(matrix);
    let (_, parts) = FUSED.iter().find(|(name, _)| *name == matrix)?;
    Some((layer, parts))
}

/// Whether there are such tensors.
pub(super) fn are_in(tensors: &BTreeMap<String, TensorEntry>) -> bool {
    tensors.keys().any(|name| of_name(name).is_some())
}

/// The names of the matrices of so many experts in such a tensor; `None` for other tensors.
pub(super) fn part_names(name: &str, experts: usize) -> Option<impl Iterator<Item = String>> {
    let (layer, matrices) = of_name(name)?;
    Some((0..experts).flat_map(move |expert| {
        let name = move |matrix| format!("{layer}{EXPERTS}{expert}.{matrix}{WEIGHT}");
        matrices.iter().map(name)
    }))
}

/// Adds all such tensors.
///
/// # Errors
/// A tensor with other experts than the configuration gives it, or one that cannot be taken in.
pub(super) fn find(
    checkpoint: &Checkpoint,
    config: &Map<String, Value>,
    fused: &mut FusedTensors,
) -> Result<(), CheckpointError> {
    // Configurations of models that see have one for the part that reads text.
    let of_text = config.get("text_config").and_then(Value::as_object);
    let experts = of_text.unwrap_or(config).get("num_experts");
    let experts = experts.and_then(Value::as_u64);
    // Without a sensible number the model is refused by its configuration.
    let Some(experts) = experts.map(|experts| experts as usize) else {
        return Ok(());
    };
    if !(1..=EXPERTS_MAX).contains(&experts) {
        return Ok(());
    }
    for (name, entry) in &checkpoint.tensors {
        let (Some((_, matrices)), Some(names)) = (of_name(name), part_names(name, experts)) else {
            continue;
        };
        let (rows, width) = match entry.shape[..] {
            [found, rows, width] if found == experts && rows % matrices.len() == 0 => {
                (rows / matrices.len(), width)
            }
            _ => {
                // Of the sizes only the number of experts is known here.
                let mut expected = entry.shape.clone();
                expected.resize(3, 1);
                expected[0] = experts;
                expected[1] = expected[1].next_multiple_of(matrices.len());
                return Err(CheckpointError::WrongShape {
                    tensor: checkpoint.name_in_file(name),
                    found: entry.shape.clone(),
                    expected,
                });
            }
        };
        // Names take memory, and a small header could ask for billions of them.
        if fused.parts.len() + experts * matrices.len() > TENSORS_MAX {
            return Err(CheckpointError::MalformedFile {
                path: checkpoint.path_of(entry).to_owned(),
                cause: format!("its experts would have more than {TENSORS_MAX} matrices"),
            });
        }
        let parts = names.map(|name| (name, [rows, width]));
        fused.add(checkpoint, name, entry, parts)?;
    }
    Ok(())
}

/// The file's name for the tensor that has an expert's matrix, if the file has its experts so.
pub(super) fn file_name(checkpoint: &Checkpoint, name: &str) -> Option<String> {
    let (layer, rest) = name.rsplit_once(EXPERTS)?;
    let matrix = rest.split_once('.')?.1.strip_suffix(WEIGHT)?;
    let has_matrix = |found: &&String| {
        of_name(found).is_some_and(|(of, matrices)| of == layer && matrices.contains(&matrix))
    };
    let tensors = &checkpoint.tensors;
    if let Some(found) = tensors.keys().find(has_matrix) {
        return Some(found.clone());
    }
    // It would be called like those that are there.
    let like = tensors.keys().find(|found| of_name(found).is_some())?;
    let suffix = if like.ends_with(WEIGHT) { WEIGHT } else { "" };
    Some(format!("{layer}{EXPERTS}{matrix}{suffix}"))
}
