//! A checkpoint's matrices as numbers, and folders in which some have others.

use std::{collections::HashMap, fs, path::Path};

use safetensors::{Dtype, tensor::TensorView};
use sluice_checkpoint::{Checkpoint, Source, TensorEntry};

use crate::Result;

/// A folder or a container.
#[must_use]
pub fn source(path: &Path) -> Source {
    Source::Folder(path.to_owned())
}

/// All tensors.
pub fn entries(checkpoint: &Checkpoint) -> impl Iterator<Item = (&str, &TensorEntry)> {
    let names = checkpoint.names();
    names.filter_map(|name| Some((name, checkpoint.tensor(name)?)))
}

/// A tensor's elements.
///
/// # Errors
/// When it can't be read.
pub fn upcast(checkpoint: &Checkpoint, entry: &TensorEntry) -> Result<Vec<f32>> {
    let format = entry.format.clone()?;
    let numbers: usize = entry.shape.iter().product();
    let mut bytes = vec![0; format.bytes(numbers)];
    let length = bytes.len() as u64;
    checkpoint.read_part(entry, 0..length, &mut bytes)?;
    let mut values = vec![0.0; numbers];
    format.dequantize(&bytes, &mut values);
    Ok(values)
}

/// Writes a folder of the same model, all in `f32`, in which some tensors have other values.
///
/// # Errors
/// When the model can't be read, or the folder not written.
pub fn write_with(model: &Path, others: &HashMap<String, Vec<f32>>, to: &Path) -> Result<()> {
    for file in fs::read_dir(model)? {
        let file = file?.path();
        if file.is_file() && file.extension().is_none_or(|kind| kind != "safetensors") {
            fs::copy(&file, to.join(file.file_name().unwrap_or_default()))?;
        }
    }
    let checkpoint = Checkpoint::open(&source(model))?;
    let mut tensors = Vec::new();
    for (name, entry) in entries(&checkpoint) {
        let bytes: Vec<u8> = match others.get(name) {
            Some(values) => bytes_of(values),
            None => bytes_of(&upcast(&checkpoint, entry)?),
        };
        tensors.push((name, entry.shape.clone(), bytes));
    }
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<_>>()?;
    safetensors::serialize_to_file(views, None, &to.join("model.safetensors"))?;
    Ok(())
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}
