//! The converted-weight cache: a level's converted weights on disk, so that they can be streamed and the next load
//! needn't convert them.
//!
//! A copy is a safetensors file that common tools can open. Each tensor is `U8` of [rows, bytes per row] under its own
//! name; the metadata says its format, and what the copy was made from. (One for level `mild` is a container: see
//! `compressed`.) Data begins on a page, and each tensor at a multiple of 64 bytes: where one ends elsewhere, a tensor
//! of padding follows, since the format allows no holes. Tensors lie in the order of a pass.

mod cached;
mod choice;
mod compressed;
mod fingerprint;
mod mix;
mod write;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use safetensors::tensor::Metadata;
use serde_json::{Map, Value, json};
use sluice_machine::page::PAGE_BYTES;
use sluice_shared::level::Level;
use sluice_weights::{SourceTensor, Storage, TensorPlan, WeightGroupPlan};

pub use self::cached::{
    CachedWeights, EvictedWeights, RemovedWeights, cached_weights, evict, remove_cached,
};
pub use self::choice::{LossPoint, LossPrediction, MixChoice, MixRecord, MixedGroup};
pub use self::compressed::{CompressedWeights, with_estimated_compression};
pub(super) use self::fingerprint::FileStamp;
pub use self::mix::{MatrixWriter, MixMatrix, Mixes, OpenMix, losses_of};
use super::{
    Checkpoint, CheckpointError, Source, TensorEntry, file::CheckpointFile,
    safetensors::HEADER_BYTES_MAX,
};

/// Version of the way copies are written; a copy of another version is written anew.
const VERSION: &str = "1";
/// Alignment of tensors: a cache line.
const ALIGNMENT: u64 = 64;
/// Longest part of a copy's file name that comes from the model's: file names have at most 255 bytes.
const NAME_BYTES_MAX: usize = 128;

/// Keys of the metadata.
const VERSION_KEY: &str = "sluice.version";
const SOURCE_KEY: &str = "sluice.source";
const LEVEL_KEY: &str = "sluice.level";
/// Path of the checkpoint when the copy was written; absent for embedded files.
const PATH_KEY: &str = "sluice.path";
/// Prefix of a tensor's name in the key of its format.
const FORMAT_KEY: &str = "sluice.format.";
/// Prefix of a number in the name of a padding tensor.
const PADDING_NAME: &str = "sluice.padding.";

/// A checkpoint's converted weights for a level, whether they exist on disk yet or not.
#[derive(Debug, Clone)]
pub struct ConvertedWeights {
    source: Arc<Checkpoint>,
    folder: PathBuf,
    /// The model's name, with which file names begin.
    name: String,
    fingerprint: String,
    level: Level,
    tensors: Vec<ConvertedTensor>,
}

/// A whole tensor that the level converts.
#[derive(Debug, Clone)]
struct ConvertedTensor {
    name: String,
    plan: TensorPlan,
}

impl ConvertedTensor {
    fn row_bytes(&self) -> usize {
        self.plan.storage.format().bytes(self.plan.width)
    }
}

impl ConvertedWeights {
    /// The copy with all tensors that these weight groups convert at this level, whether they are streamed or not;
    /// `None` if they convert nothing.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn new(
        folder: &Path,
        source: &Arc<Checkpoint>,
        sources: &[SourceTensor],
        level: Level,
        groups: &[WeightGroupPlan],
    ) -> Result<Option<Self>, CheckpointError> {
        let mut tensors: Vec<ConvertedTensor> = Vec::new();
        let mut known = vec![false; sources.len()];
        for tensor in groups.iter().flat_map(|group| &group.tensors) {
            // Everything else is read from the checkpoint itself.
            let is_converted =
                matches!(tensor.storage, Storage::Plain(format) if format != tensor.source);
            // The parts of the LM head are one tensor.
            if is_converted && !std::mem::replace(&mut known[tensor.tensor], true) {
                let spec = &sources[tensor.tensor].spec;
                let (rows, _) = spec.size();
                tensors.push(ConvertedTensor {
                    name: spec.name.clone(),
                    plan: TensorPlan {
                        first_row: 0,
                        rows,
                        ..*tensor
                    },
                });
            }
        }
        if tensors.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            folder: folder.to_owned(),
            // The name is for people; the fingerprint decides.
            name: name_of(source),
            fingerprint: source.fingerprint()?,
            level,
            source: Arc::clone(source),
            tensors,
        }))
    }

    /// Path of its file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(self.file_name())
    }

    fn file_name(&self) -> String {
        format!(
            "{}-{}-{}.safetensors",
            self.name, self.fingerprint, self.level
        )
    }

    /// Bytes of its tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.plan.bytes()).sum()
    }

    /// Bytes of its file.
    pub fn file_bytes(&self) -> u64 {
        self.layout().2
    }

    /// Whether a file of this name exists.
    pub fn is_there(&self) -> bool {
        self.path().is_file()
    }

    /// Opens the copy if it exists, as a checkpoint whose entries have their true formats and shapes.
    ///
    /// # Errors
    /// When a file of this name cannot be read or isn't this copy.
    pub fn open(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        let source = Source::Folder(self.folder.clone());
        let file = match CheckpointFile::open(&source, &self.file_name()) {
            Err(CheckpointError::MissingFile { .. }) => return Ok(None),
            file => file?,
        };
        let mut entries: BTreeMap<String, TensorEntry> = super::safetensors::read_header(
            &file,
            0,
            &mut super::safetensors::HeaderAllowance::default(),
        )?
        .into_iter()
        .collect();
        let metadata = read_metadata(&file)?;
        let malformed = |cause| CheckpointError::MalformedFile {
            path: file.path.clone(),
            cause,
        };
        // The name says the same, but anybody may rename files.
        check_origin(&metadata, &self.fingerprint, self.level).map_err(malformed)?;
        let mut tensors = BTreeMap::new();
        for tensor in &self.tensors {
            let format = tensor.plan.storage.format();
            let key = format!("{FORMAT_KEY}{}", tensor.name);
            expect(&metadata, &key, format.name()).map_err(malformed)?;
            // Compared by rows and bytes per row, as the file stores them.
            let shape = vec![tensor.plan.rows, tensor.row_bytes()];
            // What remains afterwards is padding, which nobody reads.
            match entries.remove(&tensor.name) {
                Some(entry) if entry.shape == shape && entry.bytes == tensor.plan.bytes() => {
                    let entry = TensorEntry {
                        // The file says `U8`; the true format is in its metadata, which was compared above.
                        format: Ok(format),
                        shape: vec![tensor.plan.rows, tensor.plan.width],
                        ..entry
                    };
                    tensors.insert(tensor.name.clone(), entry);
                }
                Some(entry) => {
                    return Err(malformed(format!(
                        "tensor {} has shape {:?} and {} bytes, not shape {shape:?} of bytes",
                        tensor.name, entry.shape, entry.bytes
                    )));
                }
                None => {
                    return Err(malformed(format!("tensor {} is missing", tensor.name)));
                }
            }
        }
        // Held from now on, so that the cache doesn't evict a copy that is in use.
        file.hold();
        Ok(Some(Checkpoint {
            source,
            stamps: Vec::new(),
            files: vec![file],
            tensors,
            fused: Default::default(),
            gguf: None,
            rwkv: None,
            container_files: None,
        }))
    }

    /// The header in whole pages, the offset of each tensor, and the length of the file.
    fn layout(&self) -> (Vec<u8>, Vec<u64>, u64) {
        let origin = origin(&self.source, &self.fingerprint, self.level);
        let origin = origin.into_iter();
        let mut metadata: Map<_, _> = origin
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect();
        let mut header = Map::new();
        let mut starts = Vec::with_capacity(self.tensors.len());
        let mut end = 0;
        for (number, tensor) in self.tensors.iter().enumerate() {
            // safetensors allows no gaps between tensors, so padding is a tensor of its own.
            let start = u64::next_multiple_of(end, ALIGNMENT);
            if start > end {
                let padding = entry(&[start - end], end, start);
                header.insert(format!("{PADDING_NAME}{number}"), padding);
            }
            starts.push(start);
            end = start + tensor.plan.bytes();
            let shape = [tensor.plan.rows as u64, tensor.row_bytes() as u64];
            header.insert(tensor.name.clone(), entry(&shape, start, end));
            let format = tensor.plan.storage.format().name();
            metadata.insert(format!("{FORMAT_KEY}{}", tensor.name), format.into());
        }
        header.insert("__metadata__".to_owned(), Value::Object(metadata));
        let text = Value::Object(header).to_string();
        // Spaces after a safetensors header belong to it. Data begins on a page, so that direct reads of large tensors
        // waste little.
        let data_start = (8 + text.len()).next_multiple_of(PAGE_BYTES);
        let mut bytes = Vec::with_capacity(data_start);
        bytes.extend_from_slice(&((data_start - 8) as u64).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(data_start, b' ');
        let data_start = data_start as u64;
        // Offsets in a header count from its end, which is known only now.
        for start in &mut starts {
            *start += data_start;
        }
        (bytes, starts, data_start + end)
    }
}

/// The header entry of a tensor of bytes.
fn entry(shape: &[u64], start: u64, end: u64) -> Value {
    json!({ "dtype": "U8", "shape": shape, "data_offsets": [start, end] })
}

/// The metadata of a file whose header was checked.
pub(super) fn read_metadata(
    file: &CheckpointFile,
) -> Result<HashMap<String, String>, CheckpointError> {
    let mut length = [0; 8];
    file.read_at(0, &mut length)?;
    // The file may have changed since, so the length is bounded again.
    let length = u64::from_le_bytes(length)
        .min(file.len)
        .min(HEADER_BYTES_MAX);
    let mut header = vec![0; length as usize];
    file.read_at(8, &mut header)?;
    let parsed: Metadata =
        serde_json::from_slice(&header).map_err(|error| CheckpointError::MalformedFile {
            path: file.path.clone(),
            cause: error.to_string(),
        })?;
    Ok(parsed.metadata().clone().unwrap_or_default())
}

/// What a copy of a checkpoint says of its origin.
fn origin(source: &Checkpoint, fingerprint: &str, level: Level) -> BTreeMap<&'static str, String> {
    let mut origin = BTreeMap::from([
        (VERSION_KEY, VERSION.to_owned()),
        (SOURCE_KEY, fingerprint.to_owned()),
        (LEVEL_KEY, level.name().to_owned()),
    ]);
    if let Source::Folder(folder) = &source.source {
        // For a GGUF file its own path: several models may lie in the same folder.
        let path = match (&source.gguf, &source.files[..]) {
            (Some(_), [file, ..]) => Path::new(&file.path),
            _ => folder,
        };
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        origin.insert(PATH_KEY, path.to_string_lossy().into());
    }
    origin
}

/// Checks that a file is the copy of the checkpoint with this fingerprint, wherever that lies by now; otherwise says
/// why not.
fn check_origin(
    said: &HashMap<String, String>,
    fingerprint: &str,
    level: Level,
) -> Result<(), String> {
    expect(said, VERSION_KEY, VERSION)?;
    expect(said, SOURCE_KEY, fingerprint)?;
    expect(said, LEVEL_KEY, level.name())
}

fn expect(said: &HashMap<String, String>, key: &str, expected: &str) -> Result<(), String> {
    match said.get(key) {
        Some(found) if found == expected => Ok(()),
        Some(found) => {
            let found: String = found.chars().take(100).collect();
            Err(format!("{key} is {found:?}, not {expected:?}"))
        }
        None => Err(format!("{key} is missing")),
    }
}

/// The beginning of the names of a checkpoint's copies.
fn name_of(source: &Checkpoint) -> String {
    match (&source.gguf, &source.files[..]) {
        (Some(_), [file, ..]) => {
            model_name(&Source::Folder(Path::new(&file.path).with_extension("")))
        }
        _ => model_name(&source.source),
    }
}

/// The name of a model's folder or GGUF file, cut to a length that file names allow.
fn model_name(source: &Source) -> String {
    let name = match source {
        Source::Folder(folder) => folder.file_name().map(|name| name.to_string_lossy()),
        Source::Embedded(_) => Some("embedded".into()),
    };
    let mut name = name.map_or_else(|| "model".to_owned(), String::from);
    name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
    name
}

#[cfg(test)]
mod tests;
