//! Tensors of which a model's are parts, one after another in rows: presented as the tensors that models ask for.

mod attention;
mod experts;

use std::collections::BTreeMap;

use super::{Checkpoint, CheckpointError, TensorEntry};

/// The parts of all such tensors, by the names that models ask for.
///
/// # Errors
/// A tensor with other sizes than the configuration gives it, one that is compressed, or one whose parts are there as
/// well.
pub(super) fn parts(
    checkpoint: &Checkpoint,
) -> Result<BTreeMap<String, TensorEntry>, CheckpointError> {
    let tensors = &checkpoint.tensors;
    if !attention::are_in(tensors) && !experts::are_in(tensors) {
        return Ok(BTreeMap::new());
    }
    let config = checkpoint.config()?;
    let mut parts = attention::parts(checkpoint, &config)?;
    parts.extend(experts::parts(checkpoint, &config)?);
    match parts.keys().find(|name| tensors.contains_key(*name)) {
        Some(name) => Err(twice(checkpoint, name, &file_name(checkpoint, name))),
        None => Ok(parts),
    }
}

/// An error for a part that is there by itself or in another tensor as well: it is unclear which of the two is meant, so
/// neither is taken.
fn twice(checkpoint: &Checkpoint, part: &str, whole: &str) -> CheckpointError {
    CheckpointError::Unsupported {
        path: checkpoint.path_of(&checkpoint.tensors[whole]).to_owned(),
        what: format!(
            "has {part} twice, once of them in {}",
            checkpoint.name_in_file(whole)
        ),
        hint: "convert the checkpoint again from the published one".to_owned(),
    }
}

/// The file's name for the tensor that has, or would have, a model's tensor as a part; the same name where none has.
pub(super) fn file_name(checkpoint: &Checkpoint, name: &str) -> String {
    let whole = attention::file_name(name).or_else(|| experts::file_name(checkpoint, name));
    whole.unwrap_or_else(|| name.to_owned())
}

/// Rows of a tensor that isn't compressed, one part after another, each of this shape.
fn cut(
    checkpoint: &Checkpoint,
    name: &str,
    entry: &TensorEntry,
    shapes: impl IntoIterator<Item = [usize; 2]>,
) -> Result<Vec<TensorEntry>, CheckpointError> {
    if entry.is_compressed() {
        return Err(CheckpointError::Unsupported {
            path: checkpoint.path_of(entry).to_owned(),
            what: format!("has {name} compressed, of which parts are needed"),
            hint: "load the checkpoint that it was made of".to_owned(),
        });
    }
    let rows: usize = entry.shape.iter().rev().skip(1).product();
    let row_bytes = entry.bytes / rows.max(1) as u64;
    let mut offset = entry.offset;
    let part = |shape: [usize; 2]| {
        let bytes = shape[0] as u64 * row_bytes;
        let part = TensorEntry {
            shape: shape.to_vec(),
            offset,
            bytes,
            ..entry.clone()
        };
        offset += bytes;
        part
    };
    Ok(shapes.into_iter().map(part).collect())
}
