//! From a checkpoint to a folder that reads like any LLaDA model: configuration, BF16 weights, tokenizer. The model
//! card is written once the model has been judged.

use std::path::Path;

use anyhow::{Context, Result};
use half::bf16;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;

use crate::{file, model::Model, vocabulary::Vocabulary};

/// The name of the weights in the folder.
pub const WEIGHTS_NAME: &str = "model.safetensors";

/// Writes the folder; files already there are replaced one by one, the weights as a whole.
pub fn export(folder: &Path, model: &Model, vocabulary: &Vocabulary) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let config = model
        .config
        .to_llada_json(vocabulary.mask_id, vocabulary.end_id);
    write_json(&folder.join("config.json"), &config)?;
    write_json(
        &folder.join("tokenizer_config.json"),
        &vocabulary.config_json(),
    )?;
    write_json(
        &folder.join("generation_config.json"),
        &vocabulary.generation_json(),
    )?;
    vocabulary.save(&folder.join("tokenizer.json"))?;
    file::replace(&folder.join(WEIGHTS_NAME), weights(model)?)
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// The weights file of a model; the same weights always give the same bytes.
pub fn weights(model: &Model) -> Result<Vec<u8>> {
    let mut parts = Vec::new();
    for (name, variable) in model.variables() {
        let values = variable.flatten_all()?.to_vec1::<f32>()?;
        let data: Vec<u8> = values
            .iter()
            .flat_map(|value| bf16::from_f32(*value).to_le_bytes())
            .collect();
        parts.push((name, variable.dims().to_vec(), data));
    }
    let views = parts
        .iter()
        .map(|(name, shape, data)| {
            Ok((
                name.as_str(),
                TensorView::new(Dtype::BF16, shape.clone(), data)?,
            ))
        })
        .collect::<Result<Vec<_>>>()?;
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize(views, Some(metadata)).context("serialize weights")
}
