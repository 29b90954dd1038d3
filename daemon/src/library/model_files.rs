//! Reads what a model's small files and headers say, without loading it. Files are untrusted, so all reads are bounded.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use ::safetensors::tensor::Metadata;
use serde_json::{Map, Value};
use sluice_checkpoint::safetensors::{self, HeaderAllowance};
use sluice_proto::v1;
use sluice_shared::compression::is_container_path;

/// Most bytes read of a `config.json`.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Bound on entries read from one model's folder.
const FILES_MAX: usize = 2048;

/// What a list shows of a model; reading it needs no headers.
pub(super) struct ModelFiles {
    pub(super) disk_bytes: u64,
    pub(super) file_format: v1::FileFormat,
    pub(super) family: String,
}

/// Weights of one storage format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TensorSummary {
    pub(super) tensors: u64,
    pub(super) parameters: u64,
    pub(super) bytes: u64,
}

impl ModelFiles {
    /// Of a folder with weights in safetensors, if it is one.
    pub(super) fn of_folder(folder: &Path) -> Option<Self> {
        let config = config(folder)?;
        let files = weight_files(folder);
        if files.is_empty() {
            return None;
        }
        let sizes = files.iter().filter_map(|file| fs::metadata(file).ok());
        Some(Self {
            disk_bytes: sizes.map(|facts| facts.len()).sum(),
            file_format: v1::FileFormat::Safetensors,
            family: text(&config, "model_type"),
        })
    }

    /// Of a file that is a model: its size alone.
    pub(super) fn of_file(file: &Path) -> Self {
        Self {
            disk_bytes: fs::metadata(file).map_or(0, |facts| facts.len()),
            file_format: match is_container_path(file) {
                true => v1::FileFormat::Sluice,
                false => v1::FileFormat::Gguf,
            },
            family: String::new(),
        }
    }
}

/// `config.json`, if it is a readable object.
pub(super) fn config(folder: &Path) -> Option<Map<String, Value>> {
    serde_json::from_str(&small_text(&folder.join("config.json"), CONFIG_BYTES_MAX)?).ok()
}

/// A key's text; empty where there is none.
pub(super) fn text(object: &Map<String, Value>, key: &str) -> String {
    let text = object.get(key).and_then(Value::as_str).unwrap_or_default();
    text.chars().take(100).collect()
}

/// All tensors of a folder by the name of their format, as far as headers can be read.
pub(super) fn tensor_summaries(folder: &Path) -> BTreeMap<String, TensorSummary> {
    let mut groups: BTreeMap<String, TensorSummary> = BTreeMap::new();
    let mut allowance = HeaderAllowance::default();
    let files = weight_files(folder);
    for header in files.iter().filter_map(|file| header(file, &mut allowance)) {
        for tensor in header.tensors().values() {
            let group = groups.entry(format!("{:?}", tensor.dtype)).or_default();
            let sizes = tensor.shape.iter().map(|size| *size as u64);
            group.tensors += 1;
            group.parameters += sizes.fold(1, u64::saturating_mul);
            let (start, end) = tensor.data_offsets;
            group.bytes += end.saturating_sub(start) as u64;
        }
    }
    groups
}

/// The text of a small regular file, at most `bytes_max` of it; `None` if it cannot be read or is not UTF-8.
pub(super) fn small_text(path: &Path, bytes_max: u64) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    let is_file = file.metadata().ok()?.is_file();
    file.take(bytes_max).read_to_string(&mut text).ok()?;
    is_file.then_some(text)
}

/// The one file of weights, or all shards.
fn weight_files(folder: &Path) -> Vec<PathBuf> {
    let single = folder.join("model.safetensors");
    if single.is_file() {
        return vec![single];
    }
    if !folder.join("model.safetensors.index.json").is_file() {
        return Vec::new();
    }
    let mut files: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .take(FILES_MAX)
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "safetensors")
        })
        .collect();
    files.sort_unstable();
    files
}

fn header(path: &Path, allowance: &mut HeaderAllowance) -> Option<Metadata> {
    let mut file = File::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let bytes = u64::from_le_bytes(length);
    // The length is the file's word: checked before anything of that size is read.
    if bytes > file.metadata().ok()?.len() {
        return None;
    }
    allowance.take_bytes(bytes).ok()?;
    let mut header = Vec::new();
    file.take(bytes).read_to_end(&mut header).ok()?;
    safetensors::parse(&header, allowance).ok()
}
