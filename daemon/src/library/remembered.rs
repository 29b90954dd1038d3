//! Models that were loaded by their path: a list of paths in the daemon's state, so that they stay in the list and have a
//! name. The files themselves are their owner's, and nothing here touches them.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use super::{
    Library,
    entry::{EntryOrigin, ModelEntry},
    inspect::is_whole_model,
    model_files::ModelFiles,
    real,
};
use crate::{model_name::ModelName, state::State};

/// Longest path that is remembered, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// A path to be remembered. Those that lead nowhere give way to it, and only then: a disk that is not mounted now may be back
/// later.
#[derive(Debug)]
pub struct NewPath {
    text: String,
    gone: Vec<PathBuf>,
}

impl NewPath {
    /// Remembers it.
    pub fn put_in(&self, state: &mut State) {
        state
            .paths
            .retain(|path| !self.gone.iter().any(|gone| gone == Path::new(path)));
        state.put_path(&self.text);
    }
}

impl Library {
    /// What is to be remembered of a model that was loaded by its path; `None` where the library has it otherwise.
    #[must_use]
    pub fn new_path(&self, path: &Path) -> Option<NewPath> {
        let text = path.to_str().filter(|_| self.folder.is_some())?;
        if text.len() > PATH_BYTES_MAX || !path.is_absolute() {
            return None;
        }
        let place = real(path);
        let mut entries = self.entries().into_iter();
        if entries.any(|entry| real(&entry.path) == place) {
            return None;
        }
        let mut gone = self.remembered();
        gone.retain(|path| !path.exists());
        Some(NewPath {
            text: text.to_owned(),
            gone,
        })
    }

    /// The paths, in the order in which they were first used.
    fn remembered(&self) -> Vec<PathBuf> {
        let paths = self.state.read(|state| state.paths.clone());
        let paths = paths.into_iter().map(PathBuf::from);
        paths.filter(|path| path.is_absolute()).collect()
    }

    /// Adds those of the remembered models that are there and that the library doesn't have otherwise.
    pub(super) fn add_remembered(&self, entries: &mut Vec<ModelEntry>) {
        for path in self.remembered() {
            let place = real(&path);
            if entries.iter().any(|entry| real(&entry.path) == place) {
                continue;
            }
            let Some(mut entry) = entry_at(&path) else {
                continue;
            };
            // A model with the same short name comes first; this one is called by its path.
            if entries.iter().any(|known| known.name == entry.name) {
                entry.name = path.to_string_lossy().into_owned();
            }
            entries.push(entry);
        }
    }
}

/// What lies at a path, if it is a model.
fn entry_at(path: &Path) -> Option<ModelEntry> {
    if !path.exists() {
        return None;
    }
    let folder = match path.is_dir() {
        true => path,
        false => path.parent()?,
    };
    let is_weights = path.extension() == Some(OsStr::new("safetensors"));
    let facts = match path.is_file() && !is_weights {
        true => is_model_file(path).then(|| ModelFiles::of_file(path))?,
        false => ModelFiles::of_folder(folder).or_else(|| only_file(folder))?,
    };
    Some(ModelEntry {
        origin: EntryOrigin::Path,
        ..ModelEntry::new(ModelName::at(path).name, path.to_owned(), folder, facts)
    })
}

/// A folder may be named for the one file in it.
fn only_file(folder: &Path) -> Option<ModelFiles> {
    let files = super::entry::files(folder);
    files.first().map(|file| ModelFiles::of_file(file))
}

fn is_model_file(path: &Path) -> bool {
    is_whole_model(path) || sluice_shared::compression::is_container_path(path)
}
