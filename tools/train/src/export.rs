//! From a checkpoint to a folder that reads like any model of its family (configuration, BF16 weights, tokenizer), and
//! back to a model to train on. The model card is written once the model has been judged.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use half::bf16;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;

use crate::{
    config::ModelConfig,
    file,
    latent::LatentOptions,
    model::Model,
    vocabulary::Vocabulary,
    weights_file::{WEIGHTS_NAME, WeightFiles},
};

const CONFIG_NAME: &str = "config.json";

/// The name of the tokenizer, in the folder and in that of a run.
pub const TOKENIZER_NAME: &str = "tokenizer.json";

/// Writes the folder; files already there are replaced one by one, the weights as a whole. With how latents were learned in
/// training, `config.json` says how to learn them, too.
pub fn export(
    folder: &Path,
    model: &Model,
    vocabulary: &Vocabulary,
    latent: Option<&LatentOptions>,
) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let causal = model.config.causal();
    let mut config = model.config.to_json(&vocabulary.special_ids())?;
    if let Some(latent) = latent {
        config["posterior_steps"] = latent.steps.into();
        config["posterior_learning_rate"] = latent.last_rate.into();
        config["posterior_initial_log_variance"] = latent.initial_log_variance.into();
        config["posterior_kl_weight"] = latent.at(1.0).kl_weight.into();
    }
    write_json(&folder.join(CONFIG_NAME), &config)?;
    write_json(
        &folder.join("tokenizer_config.json"),
        &vocabulary.config_json(causal),
    )?;
    write_json(
        &folder.join("generation_config.json"),
        &vocabulary.generation_json(causal),
    )?;
    vocabulary.save(&folder.join(TOKENIZER_NAME))?;
    file::replace(&folder.join(WEIGHTS_NAME), weights(model)?)
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)? + "\n";
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// The model of a folder, which must have this shape but for its vocabulary. A token that it lacks begins as the mean of
/// those that it writes instead.
pub fn read(
    folder: &Path,
    config: &ModelConfig,
    vocabulary: &Vocabulary,
    device: &Device,
) -> Result<Model> {
    let found = read_config(folder)?;
    // The vocabulary may differ, since its rows are carried over by token below; everything else must be the same.
    ensure!(
        found == config.clone().with_vocab_size(found.vocab_size()),
        "the model in {} has another shape: {found:?}",
        folder.display()
    );
    let files = WeightFiles::open(folder)?;
    let mut weights: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for ((name, shape), file_name) in found.tensors().into_iter().zip(found.file_names()) {
        weights.insert(name, files.read(&file_name, &shape)?);
    }
    let before = Vocabulary::load(&folder.join(TOKENIZER_NAME))?;
    let same = vocabulary.in_terms_of(&before)?;
    for name in config.token_tensors() {
        let rows = weights
            .get_mut(*name)
            .context("the shape lists no such tensor")?;
        *rows = carried(rows, &same, config.width(), config.vocab_size());
    }
    Model::from_weights(config.clone(), weights, device)
}

/// `count` rows: each of the first is the mean of those that its list names, the others are zero.
fn carried(rows: &[f32], same: &[Vec<u32>], width: usize, count: usize) -> Vec<f32> {
    let mut carried = vec![0.0; count * width];
    for (row, from) in carried.chunks_exact_mut(width).zip(same) {
        for id in from {
            let from_row = &rows[*id as usize * width..][..width];
            for (value, add) in row.iter_mut().zip(from_row) {
                *value += add / from.len() as f32;
            }
        }
    }
    carried
}

/// The shape of the model of a folder.
pub fn read_config(folder: &Path) -> Result<ModelConfig> {
    let json = read_json(folder)?;
    ModelConfig::from_json(json)
        .with_context(|| format!("understand {CONFIG_NAME} in {}", folder.display()))
}

/// How the latents of the model of a folder are learned, where it says so.
pub fn read_latent(folder: &Path) -> Result<Option<LatentOptions>> {
    let json = read_json(folder)?;
    let number = |key: &str| json[key].as_f64();
    let Some(steps) = json["posterior_steps"].as_u64() else {
        return Ok(None);
    };
    let usual = LatentOptions::default();
    Ok(Some(LatentOptions {
        steps: steps as usize,
        last_rate: number("posterior_learning_rate").unwrap_or(usual.last_rate),
        initial_log_variance: number("posterior_initial_log_variance")
            .unwrap_or(usual.initial_log_variance),
        // So that the end of a run counts the KL divergence at this weight.
        kl_warm_up: number("posterior_kl_weight")
            .filter(|weight| *weight > 0.0 && *weight < 1.0)
            .map_or(0.0, f64::recip),
        ..usual
    }))
}

fn read_json(folder: &Path) -> Result<Value> {
    let path = folder.join(CONFIG_NAME);
    let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("understand {}", path.display()))
}

/// The weights file of a model; the same weights always give the same bytes.
pub fn weights(model: &Model) -> Result<Vec<u8>> {
    let mut parts = Vec::new();
    // Named as the family names them, in the order of the variables.
    for (name, (_, variable)) in model.config.file_names().into_iter().zip(model.variables()) {
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
