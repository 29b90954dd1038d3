//! Structured pruning: a `.sluice` file in which layers have fewer KV heads, each with its query heads, and fewer MLP
//! channels. Their rows and columns are gone from the tensors; a record in the file says which, and what by.

mod choose;
mod inputs;
mod keep;
mod prune;
mod record;
mod score;
mod shares;

use sluice_weights::{Shape, SourceTensor};

pub use self::{
    prune::{PruneOptions, PruneResult, prune},
    record::{PrunedLayer, PruningRecord, RECORD_FILE},
    shares::PruneShares,
};
use super::{Checkpoint, CheckpointError, TensorEntry};

impl Checkpoint {
    /// What was pruned, if it is a pruned file: the record, checked against the model's shape.
    ///
    /// # Errors
    /// When the record is malformed, or is another model's.
    pub fn pruning(&self, shape: &Shape) -> Result<Option<PruningRecord>, CheckpointError> {
        let (Some(inside), [file, ..]) = (&self.container_files, &self.files[..]) else {
            return Ok(None);
        };
        let Some(bytes) = inside.small_file(file, RECORD_FILE, record::BYTES_MAX)? else {
            return Ok(None);
        };
        let record = PruningRecord::read(&bytes).and_then(|record| {
            record.check(shape)?;
            Ok(record)
        });
        record
            .map(Some)
            .map_err(|cause| CheckpointError::MalformedFile {
                path: format!("{RECORD_FILE} in {}", file.path),
                cause,
            })
    }

    /// Checks every tensor that a model of this shape needs against the headers; in a pruned file those that are left.
    ///
    /// # Errors
    /// A missing or wrong-shaped tensor, one that isn't stored as weights, or a record that doesn't fit the shape.
    pub fn model_sources(&self, shape: &Shape) -> Result<Vec<SourceTensor>, CheckpointError> {
        let mut specs = shape.tensors();
        if let Some(record) = self.pruning(shape)? {
            let sizes = record.kept_sizes();
            for spec in &mut specs {
                *spec = sizes[spec.layer].of_tensor(spec.clone(), shape);
            }
        }
        self.sources(specs)
    }
}

/// The tensor's dtype, if its elements stand alone.
fn dtype(entry: &TensorEntry) -> Option<sluice_formats::DType> {
    entry.format.as_ref().ok()?.dtype()
}

#[cfg(test)]
mod tests;
