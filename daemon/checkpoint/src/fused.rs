//! Tensors of which a model's are parts, one after another in rows: presented as the tensors that models ask for. A
//! `.sluice` file has the parts as tensors of their own, by the same names.

mod attention;
mod experts;

use std::collections::{BTreeMap, BTreeSet};

use super::{Checkpoint, CheckpointError, TensorEntry};

/// All such tensors of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct FusedTensors {
    /// Their names, as files have them.
    pub(super) names: BTreeSet<String>,
    /// Their parts, by the names that models ask for. Together they are all of the tensors' rows.
    pub(super) parts: BTreeMap<String, TensorEntry>,
}

impl FusedTensors {
    /// Finds them.
    ///
    /// # Errors
    /// A tensor with other sizes than the configuration gives it, one that is compressed, or one whose parts are there
    /// as well.
    pub(super) fn of(checkpoint: &Checkpoint) -> Result<Self, CheckpointError> {
        let mut fused = Self::default();
        let tensors = &checkpoint.tensors;
        if attention::are_in(tensors) || experts::are_in(tensors) {
            let config = checkpoint.config()?;
            attention::find(checkpoint, &config, &mut fused)?;
            experts::find(checkpoint, &config, &mut fused)?;
        }
        Ok(fused)
    }

    /// Takes in a tensor with the names and shapes of its parts, one after another.
    fn add(
        &mut self,
        checkpoint: &Checkpoint,
        name: &str,
        entry: &TensorEntry,
        parts: impl IntoIterator<Item = (String, [usize; 2])>,
    ) -> Result<(), CheckpointError> {
        let unsupported = |what: String, hint: &str| CheckpointError::Unsupported {
            path: checkpoint.path_of(entry).to_owned(),
            what,
            hint: hint.to_owned(),
        };
        let rows: usize = entry.shape.iter().rev().skip(1).product();
        let rows = rows.max(1) as u64;
        // Elements of less than a byte might share one across rows.
        if entry.is_compressed() || !entry.bytes.is_multiple_of(rows) {
            return Err(unsupported(
                format!("has {name} compressed, of which parts are needed"),
                "load the checkpoint that it was made of",
            ));
        }
        let mut offset = entry.offset;
        for (part, shape) in parts {
            // It is unclear which of the two is meant, so neither is taken.
            if checkpoint.tensors.contains_key(&part) || self.parts.contains_key(&part) {
                return Err(unsupported(
                    format!(
                        "has {part} twice, once of them in {}",
                        checkpoint.name_in_file(name)
                    ),
                    "convert the checkpoint again from the published one",
                ));
            }
            let bytes = shape[0] as u64 * (entry.bytes / rows);
            let cut = TensorEntry {
                shape: shape.to_vec(),
                offset,
                bytes,
                ..entry.clone()
            };
            offset += bytes;
            self.parts.insert(part, cut);
        }
        self.names.insert(name.to_owned());
        Ok(())
    }
}

/// The names of the parts that a tensor of this name and shape may have, in the order of its rows; `None` if it has none.
pub(super) fn part_names<'a>(
    name: &'a str,
    shape: &[usize],
) -> Option<Box<dyn Iterator<Item = String> + 'a>> {
    match attention::part_names(name) {
        Some(names) => Some(Box::new(names.into_iter())),
        None => Some(Box::new(experts::part_names(name, *shape.first()?)?)),
    }
}

/// The file's name for the tensor that has, or would have, a model's tensor as a part; the same name where none has.
pub(super) fn file_name(checkpoint: &Checkpoint, name: &str) -> String {
    // There, parts are tensors of their own.
    if checkpoint.is_container() {
        return name.to_owned();
    }
    let whole = attention::file_name(name).or_else(|| experts::file_name(checkpoint, name));
    whole.unwrap_or_else(|| name.to_owned())
}
