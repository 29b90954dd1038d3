//! The weights of a folder: one `model.safetensors`, or several with an index, in any of the plain dtypes.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// The name of the weights in a folder; with an index its name begins so.
pub const WEIGHTS_NAME: &str = "model.safetensors";

/// The files, read whole: what is trained fits into memory several times.
pub struct WeightFiles {
    files: Vec<Vec<u8>>,
    /// In which file a tensor is; without an index in the first.
    index: BTreeMap<String, usize>,
}

impl WeightFiles {
    /// Reads the files of a folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read(&path).with_context(|| format!("read {}", path.display()))
        };
        let index_name = format!("{WEIGHTS_NAME}.index.json");
        if !folder.join(&index_name).exists() {
            let (files, index) = (vec![read(WEIGHTS_NAME)?], BTreeMap::new());
            return Ok(Self { files, index });
        }
        let json: Value = serde_json::from_slice(&read(&index_name)?)
            .with_context(|| format!("understand {index_name}"))?;
        let map = json["weight_map"]
            .as_object()
            .context("the index has no weight_map")?;
        let mut names: Vec<&str> = map.values().filter_map(Value::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let place = |value: &Value| {
            value
                .as_str()
                .and_then(|name| names.binary_search(&name).ok())
        };
        let index = map.iter().map(|(tensor, name)| {
            let place =
                place(name).with_context(|| format!("the index has no file for {tensor}"))?;
            Ok((tensor.clone(), place))
        });
        let index = index.collect::<Result<_>>()?;
        let files = names.into_iter().map(read).collect::<Result<_>>()?;
        Ok(Self { files, index })
    }

    /// The names of all tensors, in alphabetical order.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for file in &self.files {
            let tensors = SafeTensors::deserialize(file).context("understand weights")?;
            names.extend(tensors.names().into_iter().map(str::to_owned));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The elements of a tensor, which must have this shape.
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let file = self.index.get(name).copied().unwrap_or(0);
        let tensors = SafeTensors::deserialize(&self.files[file]).context("understand weights")?;
        let view = tensors
            .tensor(name)
            .with_context(|| format!("find {name}"))?;
        ensure!(
            view.shape().iter().product::<usize>() == shape.iter().product::<usize>(),
            "{name} has shape {:?} instead of {shape:?}",
            view.shape()
        );
        let data = view.data();
        let pairs = data.chunks_exact(2).map(|two| [two[0], two[1]]);
        Ok(match view.dtype() {
            Dtype::BF16 => pairs.map(|two| bf16::from_le_bytes(two).to_f32()).collect(),
            Dtype::F16 => pairs.map(|two| f16::from_le_bytes(two).to_f32()).collect(),
            Dtype::F32 => data
                .chunks_exact(4)
                .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
                .collect(),
            other => bail!("{name} is stored as {other:?}, which can't be trained"),
        })
    }
}
