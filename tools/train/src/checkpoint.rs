//! The training checkpoint: one safetensors file with weights, optimizer state and step, replaced as a whole.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use anyhow::{Context, Result, anyhow};
use candle_core::Device;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::{
    file,
    model::Model,
    optimizer::{Means, Optimizer},
    progress::Progress,
    quantization::Rounding,
};

/// The name of the checkpoint in the output folder.
pub const FILE_NAME: &str = "checkpoint.safetensors";

/// The state of a run between two steps.
pub struct State {
    /// The network being trained.
    pub model: Model,
    /// The optimizer of that network, with its state.
    pub optimizer: Optimizer,
    /// The network in full precision that training with rounded weights began with; none before that.
    pub teacher: Option<Model>,
    /// How far the run got.
    pub progress: Progress,
}

impl State {
    /// The model that the run has made so far: the averaged weights, since the last step's are only where training goes on.
    ///
    /// Once a run trains with the weights of a level, it is those. They are what the loss was about, and rounding them a
    /// second time moves them a tenth as far as the first time did, so the model is nearly the same at that level and above.
    pub fn trained_model(&self, threads: usize) -> Result<Model> {
        let averaged = self.optimizer.averaged(&self.model)?;
        match (&self.progress.quantization, &self.teacher) {
            (Some(quantization), Some(_)) => {
                Rounding::new(quantization.level, &averaged.config)?.apply(&averaged, threads)
            }
            _ => Ok(averaged),
        }
    }
}

/// Writes the checkpoint; there is always a whole one.
pub fn save(folder: &Path, state: &State) -> Result<()> {
    let State {
        model,
        optimizer,
        teacher,
        progress,
    } = state;
    // The optimizer's means too: without them a resumed run would take other steps than one that was never stopped.
    let mut parts: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for ((name, variable), means) in model.variables().iter().zip(&optimizer.means) {
        let shape = variable.dims().to_vec();
        parts.push((
            format!("weight/{name}"),
            shape.clone(),
            bytes(&variable.flatten_all()?.to_vec1::<f32>()?),
        ));
        for (kind, values) in [
            ("first", &means.first),
            ("second", &means.second),
            ("average", &means.average),
        ] {
            parts.push((format!("{kind}/{name}"), shape.clone(), bytes(values)));
        }
    }
    // The teacher is nowhere else: the run has moved on since, or the folder that it began with may be gone.
    for (name, variable) in teacher.iter().flat_map(Model::variables) {
        let values = variable.flatten_all()?.to_vec1::<f32>()?;
        parts.push((
            format!("teacher/{name}"),
            variable.dims().to_vec(),
            bytes(&values),
        ));
    }
    let views = parts
        .iter()
        .map(|(name, shape, data)| {
            Ok((
                name.as_str(),
                TensorView::new(Dtype::F32, shape.clone(), data)?,
            ))
        })
        .collect::<Result<Vec<_>>>()?;
    let metadata = HashMap::from([("progress".to_owned(), serde_json::to_string(progress)?)]);
    let bytes = safetensors::serialize(views, Some(metadata))?;
    file::replace(&folder.join(FILE_NAME), bytes)
}

/// Reads the checkpoint of a folder, or nothing if there is none yet.
pub fn load(folder: &Path, device: &Device) -> Result<Option<State>> {
    let path = folder.join(FILE_NAME);
    if !path.exists() {
        return Ok(None);
    }
    let file = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let (_, metadata) = SafeTensors::read_metadata(&file).context("read checkpoint header")?;
    let progress = metadata
        .metadata()
        .as_ref()
        .and_then(|metadata| metadata.get("progress"))
        .ok_or_else(|| anyhow!("the checkpoint does not say how far it got"))?;
    let progress: Progress = serde_json::from_str(progress).context("read progress")?;
    let tensors = SafeTensors::deserialize(&file).context("read checkpoint")?;
    let read = |kind: &str, name: &str| -> Result<Vec<f32>> {
        let view = tensors
            .tensor(&format!("{kind}/{name}"))
            .with_context(|| format!("find {kind} of {name}"))?;
        Ok(numbers(view.data()))
    };
    let mut weights = BTreeMap::new();
    let mut means = Vec::new();
    for (name, _) in progress.config.tensors() {
        weights.insert(name.clone(), read("weight", &name)?);
        means.push(Means {
            first: read("first", &name)?,
            second: read("second", &name)?,
            average: read("average", &name)?,
        });
    }
    let model = Model::from_weights(progress.config.clone(), weights, device)?;
    let mut names = model.variables().iter().map(|(name, _)| name);
    let has_teacher = names.any(|name| tensors.tensor(&format!("teacher/{name}")).is_ok());
    let teacher = has_teacher
        .then(|| {
            let names = model.variables().iter();
            let weights = names.map(|(name, _)| Ok((name.clone(), read("teacher", name)?)));
            let weights = weights.collect::<Result<_>>()?;
            Model::from_weights(progress.config.clone(), weights, device)
        })
        .transpose()?;
    let optimizer = Optimizer {
        options: progress.optimizer.clone(),
        means,
        steps: progress.step,
    };
    Ok(Some(State {
        model,
        optimizer,
        teacher,
        progress,
    }))
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn numbers(data: &[u8]) -> Vec<f32> {
    data.chunks_exact(4)
        .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
        .collect()
}
