//! Models that were loaded by their path: a list of paths in a file beside the models, so that they stay in the list and
//! have a name. The files themselves are their owner's, and nothing here touches them.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use super::{
    Library,
    entry::{EntryOrigin, ModelEntry},
    inspect::is_gguf,
    model_files::{ModelFiles, small_text},
    real,
};
use crate::{atomic_file, failure::Failure, model_name::ModelName};

/// Name of the file, in the folder of models.
const FILE_NAME: &str = ".paths";
/// Paths that are remembered; one more makes the first be forgotten.
pub(super) const PATHS_MAX: usize = 64;
/// Longest path that is remembered, in bytes.
const PATH_BYTES_MAX: usize = 4096;

impl Library {
    /// Remembers a model by its path, unless the library has it otherwise or there is no folder to write in.
    ///
    /// # Errors
    /// When the list cannot be written.
    pub fn remember(&self, path: &Path) -> Result<(), Failure> {
        let Some(text) = path.to_str().filter(|_| self.folder.is_some()) else {
            return Ok(());
        };
        // A line break would add a second path to the file.
        if text.len() > PATH_BYTES_MAX || text.contains('\n') || !path.is_absolute() {
            return Ok(());
        }
        // Held from reading to writing, so that two loads do not lose each other's path.
        let writing = self.writing();
        let place = real(path);
        if self
            .entries()
            .iter()
            .any(|entry| real(&entry.path) == place)
        {
            return Ok(());
        }
        // Paths that lead nowhere are dropped only here: a disk that is not mounted now may be back later.
        let mut paths = self.remembered();
        paths.retain(|path| path.exists());
        paths.push(path.to_owned());
        let excess = paths.len().saturating_sub(PATHS_MAX);
        paths.drain(..excess);
        self.write(&paths)?;
        drop(writing);
        Ok(())
    }

    /// Forgets a path; whether it was remembered.
    ///
    /// # Errors
    /// When the list cannot be written.
    pub(super) fn forget(&self, path: &Path) -> Result<bool, Failure> {
        let writing = self.writing();
        let mut paths = self.remembered();
        let before = paths.len();
        paths.retain(|known| known != path);
        let is_known = paths.len() < before;
        if is_known {
            self.write(&paths)?;
        }
        drop(writing);
        Ok(is_known)
    }

    /// The paths, in the order in which they were first used.
    fn remembered(&self) -> Vec<PathBuf> {
        let file = self.folder.as_ref().map(|folder| folder.join(FILE_NAME));
        let bytes_max = (PATHS_MAX * (PATH_BYTES_MAX + 1)) as u64;
        let text = file.and_then(|file| small_text(&file, bytes_max));
        let text = text.unwrap_or_default();
        let paths = text.lines().map(PathBuf::from);
        paths
            .filter(|path| path.is_absolute())
            .take(PATHS_MAX)
            .collect()
    }

    fn write(&self, paths: &[PathBuf]) -> Result<(), Failure> {
        let folder = self.folder()?;
        let failed = |cause| Failure::SaveDefault {
            path: folder.join(FILE_NAME),
            cause,
        };
        let lines: Vec<_> = paths.iter().filter_map(|path| path.to_str()).collect();
        let text = lines
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>();
        atomic_file::replace(&folder.join(FILE_NAME), &text).map_err(failed)
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
    is_gguf(path) || sluice_shared::compression::is_container_path(path)
}
