//! Finds the models in a folder. Folders are untrusted: unreadable entries are skipped, and there are bounds.

use std::{
    ffi::OsStr,
    fs, iter,
    path::{Path, PathBuf},
};

use sluice_hub::{Manifest, PARTIAL, label_of};
use sluice_proto::v1;
use sluice_shared::compression::is_container_path;

use super::{
    inspect::is_whole_model,
    is_hidden,
    model_files::{self, ModelFiles},
};

/// Bound on entries read from one folder, so that a list stays quick in any folder.
const FOLDERS_MAX: usize = 2048;

/// A model on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// `OWNER/NAME`, with `:LABEL` where there are several; or the name of a folder or a compressed file.
    pub name: String,
    /// What is loaded: a folder, or a GGUF or compressed file.
    pub path: PathBuf,
    /// The folder that it lies in.
    pub folder: PathBuf,
    /// Where the model is from.
    pub origin: EntryOrigin,
    /// Whether its download has not come to its end.
    pub is_partial: bool,
    /// Bytes of its files.
    pub disk_bytes: u64,
    /// What its files are; unspecified while they are on their way.
    pub file_format: v1::FileFormat,
    /// As its files say; may be empty.
    pub family: String,
    /// The hub's commit; empty where it is not known.
    pub commit: String,
}

impl ModelEntry {
    /// One that somebody put there.
    pub(super) fn new(name: String, path: PathBuf, folder: &Path, facts: ModelFiles) -> Self {
        Self {
            name,
            path,
            folder: folder.to_owned(),
            origin: EntryOrigin::Local,
            is_partial: false,
            disk_bytes: facts.disk_bytes,
            file_format: facts.file_format,
            family: facts.family,
            commit: String::new(),
        }
    }
}

/// Where a model is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryOrigin {
    /// We downloaded it.
    Pulled,
    /// Somebody put it there.
    Local,
    /// The hub's own programs downloaded it.
    HubCache,
    /// Somebody loaded it by its path.
    Path,
}

impl EntryOrigin {
    pub(super) fn to_wire(self) -> v1::ModelOrigin {
        match self {
            Self::Pulled => v1::ModelOrigin::Pulled,
            Self::Local => v1::ModelOrigin::Local,
            Self::HubCache => v1::ModelOrigin::HubCache,
            Self::Path => v1::ModelOrigin::Path,
        }
    }
}

/// The models in our folder: `NAME` or `OWNER/NAME`, compressed files beside them, and unfinished downloads.
pub(super) fn of_folder(models: &Path) -> Vec<ModelEntry> {
    let mut entries = Vec::new();
    for (first, folder) in folders(models) {
        let own = of_model_folder(&folder, &first);
        if !own.is_empty() {
            entries.extend(own);
            continue;
        }
        for (second, folder) in folders(&folder) {
            entries.extend(of_model_folder(&folder, &format!("{first}/{second}")));
        }
    }
    for file in files(models)
        .into_iter()
        .filter(|file| is_container_path(file))
    {
        let name = file.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        if !is_hidden(name) && !entries.iter().any(|known: &ModelEntry| known.name == name) {
            let facts = ModelFiles::of_file(&file);
            entries.push(ModelEntry::new(
                name.to_owned(),
                file.clone(),
                models,
                facts,
            ));
        }
    }
    entries.extend(partial(&models.join(PARTIAL)));
    entries
}

/// The models in the cache of the hub's own programs, each as its main branch was when they last looked.
pub(super) fn of_hub_cache(cache: &Path) -> Vec<ModelEntry> {
    let mut entries = Vec::new();
    for (key, folder) in folders(cache) {
        let Some((owner, name)) = key
            .strip_prefix("models--")
            .and_then(|rest| rest.split_once("--"))
        else {
            continue;
        };
        let commit = model_files::small_text(&folder.join("refs/main"), 100).unwrap_or_default();
        let commit = commit.trim();
        if commit.is_empty() || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        let snapshot = folder.join("snapshots").join(commit);
        for entry in of_model_folder(&snapshot, &format!("{owner}/{name}")) {
            entries.push(ModelEntry {
                origin: EntryOrigin::HubCache,
                commit: commit.to_owned(),
                ..entry
            });
        }
    }
    entries
}

/// The models in one folder: weights in safetensors, and each in a file of its own.
fn of_model_folder(folder: &Path, name: &str) -> Vec<ModelEntry> {
    let manifest = Manifest::read(folder);
    // Others may have put a model of theirs beside the one that was pulled.
    let has_brought = |is_of_model: &dyn Fn(&str) -> bool| {
        let files = manifest.iter().flat_map(|manifest| &manifest.files);
        files.into_iter().any(|file| is_of_model(&file.name))
    };
    let is_brought = |file: &Path| has_brought(&|name| file.file_name() == Some(OsStr::new(name)));
    let entry = |name: String, path: PathBuf, is_pulled: bool, facts: ModelFiles| {
        let local = ModelEntry::new(name, path, folder, facts);
        match &manifest {
            Some(manifest) if is_pulled => ModelEntry {
                origin: EntryOrigin::Pulled,
                commit: manifest.commit.clone(),
                ..local
            },
            _ => local,
        }
    };
    let mut entries = Vec::new();
    if let Some(facts) = ModelFiles::of_folder(folder) {
        let is_pulled = has_brought(&|name| name.ends_with(".safetensors"));
        entries.push(entry(name.to_owned(), folder.to_owned(), is_pulled, facts));
    }
    let mut files = files(folder);
    // A folder with nothing but a compressed file is that file.
    if let ([file], true) = (&files[..], entries.is_empty())
        && is_container_path(file)
    {
        let facts = ModelFiles::of_file(file);
        return vec![entry(
            name.to_owned(),
            folder.to_owned(),
            is_brought(file),
            facts,
        )];
    }
    // Where they share a name, it is that of the one that was pulled.
    files.sort_by_key(|file| !is_brought(file));
    for file in files {
        let stem = file.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        // A folder that was made for one of several has its label already.
        let name = match name.contains(':') {
            true => name.to_owned(),
            false => format!("{name}:{}", label_of(stem)),
        };
        if !entries.iter().any(|known: &ModelEntry| known.name == name) {
            let (is_pulled, facts) = (is_brought(&file), ModelFiles::of_file(&file));
            entries.push(entry(name, file, is_pulled, facts));
        }
    }
    entries
}

/// The files of a folder that are models, in order, so that of a split GGUF the first comes first.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .take(FOLDERS_MAX)
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_whole_model(path) || is_container_path(path))
        .collect();
    files.sort_unstable();
    files
}

/// Downloads that have not come to their end.
fn partial(folder: &Path) -> Vec<ModelEntry> {
    let entries = all_folders(folder).into_iter().filter_map(|(_, folder)| {
        let manifest = Manifest::read(&folder)?;
        let name = match &manifest.label {
            Some(label) => format!("{}:{label}", manifest.repository),
            None => manifest.repository.clone(),
        };
        let inner = manifest.folders();
        let inner = inner.into_iter().map(|inner| folder.join(inner));
        let sizes = iter::once(folder.clone())
            .chain(inner)
            .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
            .filter_map(|entry| entry.metadata().ok().filter(fs::Metadata::is_file))
            .map(|metadata| metadata.len());
        Some(ModelEntry {
            name,
            path: folder.clone(),
            disk_bytes: sizes.sum(),
            folder,
            origin: EntryOrigin::Pulled,
            is_partial: true,
            file_format: v1::FileFormat::Unspecified,
            family: String::new(),
            commit: manifest.commit,
        })
    });
    entries.collect()
}

/// The folders in a folder that are not hidden, with names that are text, in order.
fn folders(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut folders = all_folders(folder);
    folders.retain(|(name, _)| !is_hidden(name));
    folders
}

fn all_folders(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut folders: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .take(FOLDERS_MAX)
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .filter(|(_, path)| path.is_dir())
        .collect();
    folders.sort_unstable();
    folders
}
