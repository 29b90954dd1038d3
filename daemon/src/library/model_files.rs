//! Reads what a model's small files and headers say, without loading it. Files are untrusted, so all reads are bounded.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use ::safetensors::tensor::Metadata;
use serde_json::{Map, Value};
use sluice_checkpoint::{
    FileVersion,
    safetensors::{self, HeaderAllowance},
};
use sluice_proto::v1;
use sluice_shared::compression::is_container_path;

/// Most bytes read of a `config.json`.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Bound on entries read from one model's folder.
const FILES_MAX: usize = 2048;

/// Folders whose headers are remembered.
const SUMMARIES_MAX: usize = 2048;
/// Files in them, of 56 bytes each.
const VERSIONS_MAX: usize = 16_384;

/// What a list shows of a model; reading it needs no headers.
pub(super) struct ModelFiles {
    pub(super) disk_bytes: u64,
    pub(super) file_format: v1::FileFormat,
    pub(super) family: String,
}

/// The tensors of a folder, by the name of their format.
pub(super) type TensorSummaries = BTreeMap<String, TensorSummary>;

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
            file_format: match file.extension().and_then(OsStr::to_str) {
                _ if is_container_path(file) => v1::FileFormat::Sluice,
                Some("gguf") => v1::FileFormat::Gguf,
                // PyTorch's have no name in the schema.
                _ => v1::FileFormat::Unspecified,
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

/// All tensors of a folder by the name of their format, as far as headers can be read. Those of files that have not changed
/// are remembered.
pub(super) fn tensor_summaries(folder: &Path) -> TensorSummaries {
    remembered_summaries(&weight_files(folder), read_summaries)
}

fn remembered_summaries(
    files: &[PathBuf],
    read: impl FnOnce(&[PathBuf]) -> TensorSummaries,
) -> TensorSummaries {
    static REMEMBERED: Mutex<RememberedSummaries> = Mutex::new(RememberedSummaries::new());
    let Some(versions) = versions(files) else {
        return read(files);
    };
    // Each change is one step, so a panic leaves nothing half-done.
    let remembered = || REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = remembered().get(&versions) {
        return known;
    }
    // Not under the lock: headers take their time.
    let read = read(files);
    // Not what was read, if one changed meanwhile.
    if self::versions(files).as_ref() == Some(&versions) {
        remembered().add(versions, read.clone());
    }
    read
}

fn versions(files: &[PathBuf]) -> Option<Vec<FileVersion>> {
    let version = |file: &PathBuf| fs::metadata(file).ok().as_ref().map(FileVersion::from);
    files.iter().map(version).collect()
}

/// What headers said, by the states of the files of a folder, the one used last at the end.
#[derive(Debug)]
struct RememberedSummaries {
    known: VecDeque<(Vec<FileVersion>, TensorSummaries)>,
}

impl RememberedSummaries {
    const fn new() -> Self {
        Self {
            known: VecDeque::new(),
        }
    }

    fn get(&mut self, versions: &[FileVersion]) -> Option<TensorSummaries> {
        let place = self.known.iter().position(|(known, _)| known == versions)?;
        let found = self.known.remove(place)?;
        let summaries = found.1.clone();
        self.known.push_back(found);
        Some(summaries)
    }

    fn add(&mut self, versions: Vec<FileVersion>, summaries: TensorSummaries) {
        self.known.retain(|(known, _)| *known != versions);
        self.known.push_back((versions, summaries));
        let files = |known: &VecDeque<(Vec<FileVersion>, _)>| -> usize {
            known.iter().map(|(versions, _)| versions.len()).sum()
        };
        while files(&self.known) > VERSIONS_MAX || self.known.len() > SUMMARIES_MAX {
            self.known.pop_front();
        }
    }
}

fn read_summaries(files: &[PathBuf]) -> TensorSummaries {
    let mut groups = TensorSummaries::new();
    let mut allowance = HeaderAllowance::default();
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
    String::from_utf8(first_bytes(path, bytes_max)?).ok()
}

/// The first bytes of a regular file, at most `bytes_max`.
pub(super) fn first_bytes(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    // Before it is opened: a pipe would be waited for.
    path.metadata().ok().filter(fs::Metadata::is_file)?;
    let mut first = Vec::new();
    let file = File::open(path).ok()?;
    file.take(bytes_max).read_to_end(&mut first).ok()?;
    Some(first)
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A file with the header of one tensor of so many elements.
    fn write(path: &Path, elements: u64) {
        let end = 2 * elements;
        let header =
            format!(r#"{{"w":{{"dtype":"BF16","shape":[{elements}],"data_offsets":[0,{end}]}}}}"#);
        let mut file = File::create(path).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes())
            .unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.set_len(8 + header.len() as u64 + end).unwrap();
    }

    #[test]
    fn headers_are_read_again_only_where_a_file_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        write(&file, 10);
        let read = tensor_summaries(folder.path());
        assert_eq!(read["BF16"].parameters, 10);
        let again = remembered_summaries(std::slice::from_ref(&file), |_| {
            panic!("it has not changed")
        });
        assert_eq!(again, read);
        // Another file in the place of the first, of the same length.
        let other = folder.path().join("other");
        write(&other, 10);
        let header = fs::read(&other).unwrap();
        fs::write(
            &other,
            String::from_utf8_lossy(&header).replace("BF16", "I16\" "),
        )
        .unwrap();
        fs::rename(&other, &file).unwrap();
        assert!(!tensor_summaries(folder.path()).contains_key("BF16"));
    }

    #[test]
    fn what_was_used_last_is_remembered_longest() {
        let mut remembered = RememberedSummaries::new();
        let file = tempfile::tempfile().unwrap();
        let version = |bytes: usize| {
            file.set_len(bytes as u64).unwrap();
            FileVersion::from(&file.metadata().unwrap())
        };
        let all = Vec::from_iter((0..SUMMARIES_MAX + 2).map(version));
        for version in &all[..SUMMARIES_MAX] {
            remembered.add(vec![*version], TensorSummaries::new());
        }
        assert!(remembered.get(&all[..1]).is_some());
        remembered.add(vec![all[SUMMARIES_MAX]], TensorSummaries::new());
        assert!(remembered.get(&all[..1]).is_some());
        assert!(remembered.get(&all[1..2]).is_none());
        let many = vec![all[SUMMARIES_MAX + 1]; VERSIONS_MAX];
        remembered.add(many, TensorSummaries::new());
        assert_eq!(remembered.known.len(), 1);
    }
}
