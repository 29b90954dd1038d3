//! The models on disk: those that were downloaded, those that somebody put beside them, and those in the cache of the
//! hub's own programs. Here a name becomes a place.

mod default;
mod entry;
mod inspect;
mod licence;
mod model_files;
mod pulls;
mod remembered;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use sluice_hub::{Access, FolderLock, Manifest, PARTIAL};
use sluice_proto::v1;
use sluice_shared::names;

pub(crate) use self::inspect::{inspect, sampling};
pub use self::{
    entry::{EntryOrigin, ModelEntry},
    pulls::Pulls,
    remembered::NewPath,
};
use crate::{
    atomic_file,
    failure::Failure,
    model_name::{EMBEDDED_NAME, ModelName},
    state::StateStore,
};

/// All models on disk that can be called by a name.
#[derive(Debug)]
pub struct Library {
    /// Where models are downloaded to; `None`: nowhere.
    folder: Option<PathBuf>,
    /// Where the hub's own programs have theirs; only read.
    hub_cache: Option<PathBuf>,
    /// How the hub is reached.
    access: Access,
    /// Where the default and the remembered paths are.
    state: Arc<StateStore>,
}

/// What became of a model that was to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemovedModel {
    /// So many bytes were deleted.
    Deleted(u64),
    /// It was loaded by this path, and is the user's own: it is listed no more, and its files stay.
    Forgotten(PathBuf),
}

impl Library {
    /// The library in these folders, which need not be there yet.
    #[must_use]
    pub fn new(
        folder: Option<PathBuf>,
        hub_cache: Option<PathBuf>,
        access: Access,
        state: Arc<StateStore>,
    ) -> Self {
        Self {
            folder,
            hub_cache,
            access,
            state,
        }
    }

    /// What outlives the daemon.
    #[must_use]
    pub fn state(&self) -> &Arc<StateStore> {
        &self.state
    }

    /// How the hub is reached.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Where models are downloaded to.
    ///
    /// # Errors
    /// When there is no such place.
    pub fn folder(&self) -> Result<&Path, Failure> {
        self.folder.as_deref().ok_or(Failure::NoModelsFolder)
    }

    /// All models, in the order of their names. Reads folders: not for async code.
    #[must_use]
    pub fn entries(&self) -> Vec<ModelEntry> {
        let mut entries = self
            .folder
            .as_deref()
            .map(entry::of_folder)
            .unwrap_or_default();
        let cached = self.hub_cache.as_deref().map(entry::of_hub_cache);
        for entry in cached.unwrap_or_default() {
            // Our own copy comes before the hub's cache.
            if !entries.iter().any(|known| known.name == entry.name) {
                entries.push(entry);
            }
        }
        self.add_remembered(&mut entries);
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries
    }

    /// The model of a name, whole. Upper and lower case are as good where only one model is meant, and a short name is
    /// as good as the one that it stands for.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(&self, name: &str) -> Result<ModelEntry, Failure> {
        self.find_in(&self.entries(), name)
    }

    fn find_in(&self, entries: &[ModelEntry], name: &str) -> Result<ModelEntry, Failure> {
        let is_listed = entries.iter().any(|entry| entry.name == name);
        let name = names::full(name).filter(|_| !is_listed).unwrap_or(name);
        let is_whole = |entry: &&ModelEntry| !entry.is_partial;
        let exact = entries
            .iter()
            .filter(is_whole)
            .find(|entry| entry.name == name);
        let alike: Vec<_> = entries
            .iter()
            .filter(is_whole)
            .filter(|entry| entry.name.eq_ignore_ascii_case(name))
            .collect();
        match (exact, &alike[..]) {
            (Some(entry), _) => Ok(entry.clone()),
            (None, [entry]) => Ok((*entry).clone()),
            _ => Err(self.unknown(name, entries)),
        }
    }

    /// The model that lies at a path; one of the library has its name there. Another that has the short name of one of them is
    /// called by its path, so that a name means one model.
    #[must_use]
    pub fn at(&self, path: &Path) -> ModelName {
        let place = real(path);
        let entries = self.entries();
        let known = entries
            .iter()
            .find(|entry| !entry.is_partial && real(&entry.path) == place);
        if let Some(known) = known {
            return known.model();
        }
        let mut model = ModelName::at(path);
        let is_taken = |entry: &ModelEntry| entry.name == model.name;
        if model.name == EMBEDDED_NAME || entries.iter().any(is_taken) {
            model.name = path.to_string_lossy().into_owned();
        }
        model
    }

    /// Whether any of these paths leads to the model of exactly this name.
    #[must_use]
    pub fn holds_any(&self, name: &str, paths: &[PathBuf]) -> bool {
        let entries = self.entries();
        let mut named = entries.iter().filter(|entry| entry.name == name);
        named.any(|entry| paths.iter().any(|path| entry.holds(path)))
    }

    /// The model that a name means: one of the library, or the embedded one.
    ///
    /// # Errors
    /// When there is none.
    pub fn model(&self, name: &str) -> Result<ModelName, Failure> {
        self.model_among(name, |_| true)
    }

    /// As [`Library::model`], where some of the models are as if they were not there.
    ///
    /// # Errors
    /// When there is none.
    pub fn model_among(
        &self,
        name: &str,
        is_known: impl FnMut(&ModelEntry) -> bool,
    ) -> Result<ModelName, Failure> {
        if name == EMBEDDED_NAME {
            return Ok(ModelName::embedded());
        }
        let mut entries = self.entries();
        entries.retain(is_known);
        match self.find_in(&entries, name) {
            Err(_) if name == names::DEMONSTRATION => Ok(ModelName::embedded()),
            found => found.map(|entry| entry.model()),
        }
    }

    /// The name that the list has for a name or path as somebody says it.
    #[must_use]
    pub fn listed_name(&self, name: &str) -> String {
        let entries = self.entries();
        let is_meant = |entry: &&ModelEntry| entry.name == name || entry.path == Path::new(name);
        match (entries.iter().find(is_meant), names::full(name)) {
            (Some(entry), _) => entry.name.clone(),
            (None, full) => full.unwrap_or(name).to_owned(),
        }
    }

    /// Deletes a model that was downloaded, or what there is of one. What the hub did not send stays, and its folder then
    /// too. One that was loaded by its path is forgotten.
    ///
    /// # Errors
    /// When it is not ours, or cannot be deleted.
    pub fn remove(&self, name: &str) -> Result<RemovedModel, Failure> {
        let entries = self.entries();
        let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
            return Err(match name {
                EMBEDDED_NAME | names::DEMONSTRATION => Failure::Embedded,
                name => self.unknown(name, &entries),
            });
        };
        // While it is still there: afterwards it is no default any more.
        let default = self.default().and_then(|default| default.path);
        let is_default = default.as_ref() == Some(&entry.path);
        if entry.origin == EntryOrigin::Path {
            self.forget(entry, is_default)?;
            return Ok(RemovedModel::Forgotten(entry.path.clone()));
        }
        let failed = |cause: io::Error| Failure::RemoveModel {
            path: entry.folder.clone(),
            cause,
        };
        let manifest = Manifest::read(&entry.folder)
            .filter(|_| entry.is_partial || entry.origin == EntryOrigin::Pulled);
        let name = manifest.as_ref().and_then(|manifest| manifest.name().ok());
        // So that no download, also of another daemon, writes into the folder while it is deleted.
        let lock = match (self.folder.as_ref(), name) {
            (Some(folder), Some(name)) => Some(FolderLock::take(folder, &name)?),
            _ => None,
        };
        if entry.is_partial {
            fs::remove_dir_all(&entry.folder)
                .and_then(|()| {
                    entry
                        .folder
                        .parent()
                        .map_or(Ok(()), atomic_file::sync_folder)
                })
                .map_err(failed)?;
            return Ok(RemovedModel::Deleted(entry.disk_bytes));
        }
        let Some(manifest) = manifest else {
            return Err(Failure::NotOurs {
                model: entry.name.clone(),
                folder: entry.folder.clone(),
            });
        };
        let remove_file = |name: &str| match fs::remove_file(entry.folder.join(name)) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(failed(cause)),
            _ => Ok(()),
        };
        for file in &manifest.files {
            remove_file(&file.name)?;
        }
        // `remove_dir` fails for folders that are not empty, so the user's own files stay.
        for folder in manifest.folders() {
            drop(fs::remove_dir(entry.folder.join(folder)));
        }
        // The manifest goes last: it says which files are ours, so an interrupted removal can be repeated.
        remove_file(sluice_hub::MANIFEST)?;
        let mut changed = entry.folder.as_path();
        while let Some(around) = changed.parent().filter(|_| fs::remove_dir(changed).is_ok()) {
            changed = around;
            if self.folder.as_deref() == Some(changed) {
                break;
            }
        }
        atomic_file::sync_folder(changed).map_err(failed)?;
        self.forget(entry, is_default)?;
        drop(lock);
        Ok(RemovedModel::Deleted(manifest.bytes()))
    }

    /// Forgets the path of the removed model. If it is the default, the embedded one takes its place.
    fn forget(&self, entry: &ModelEntry, is_default: bool) -> Result<(), Failure> {
        let is_path = |path: &String| Path::new(path) == entry.path;
        let is_remembered = self.state.read(|state| state.paths.iter().any(is_path));
        if !is_default && !is_remembered {
            return Ok(());
        }
        let saved = self.state.save(|state| {
            state.paths.retain(|path| !is_path(path));
            state.default_model.take_if(|_| is_default);
        });
        saved.map_err(|error| Failure::NotSaved {
            kept: format!("{} is forgotten only until sluiced ends", entry.name),
            error,
        })
    }

    fn unknown(&self, name: &str, entries: &[ModelEntry]) -> Failure {
        let is_partial = entries
            .iter()
            .any(|entry| entry.is_partial && entry.name.eq_ignore_ascii_case(name));
        let prefix = format!("{}:", name.to_ascii_lowercase());
        let labelled = entries.iter().filter(|entry| {
            !entry.is_partial && entry.name.to_ascii_lowercase().starts_with(&prefix)
        });
        Failure::UnknownModel {
            model: name.chars().take(200).collect(),
            is_partial,
            alike: labelled.map(|entry| entry.name.clone()).collect(),
            near: names::near(name, entries.iter().map(|entry| entry.name.as_str())),
        }
    }
}

impl ModelEntry {
    /// As it is loaded.
    #[must_use]
    pub fn model(&self) -> ModelName {
        ModelName {
            name: self.name.clone(),
            path: Some(self.path.clone()),
            checked: None,
        }
    }

    /// Whether what lies at a path, by whatever links that leads there, is this model or a file of it. A folder may be
    /// loaded for the GGUF file in it.
    #[must_use]
    pub fn holds(&self, path: &Path) -> bool {
        let path = real(path);
        path.starts_with(real(&self.path)) || path == real(&self.folder)
    }

    /// Whether this path is where the model's own leads.
    #[must_use]
    pub fn leads_to(&self, path: &Path) -> bool {
        real(&self.path) == path
    }

    /// As the wire has a model that is not loaded.
    #[must_use]
    pub fn to_wire(&self) -> v1::Model {
        let state = match self.is_partial {
            true => v1::ModelState::Partial,
            false => v1::ModelState::Available,
        };
        let mut model = v1::Model {
            name: self.name.clone(),
            path: self.path.to_string_lossy().into_owned(),
            state: state.into(),
            ..Default::default()
        };
        self.describe(&mut model);
        model
    }

    /// Number of parameters by the headers, which are read for it. `None` for a GGUF or compressed file, whose header is large
    /// (the vocabulary, the checksums), and if the headers say nothing.
    #[must_use]
    pub fn parameters(&self) -> Option<u64> {
        let groups = match self.file_format {
            v1::FileFormat::Safetensors => model_files::tensor_summaries(&self.path),
            _ => return None,
        };
        let parameters: u64 = groups.values().map(|group| group.parameters).sum();
        (parameters > 0).then_some(parameters)
    }

    /// The licence that its files name. What lies beside a single file is another model's, unless both were downloaded together.
    fn licence(&self) -> Option<String> {
        licence::licence(&self.path, self.origin == EntryOrigin::Pulled)
    }

    /// Adds what the disk knows to what is known of a model.
    pub fn describe(&self, model: &mut v1::Model) {
        model.license = self.licence().filter(|_| !self.is_partial);
        model.origin = self.origin.to_wire().into();
        model.disk_bytes = self.disk_bytes;
        model.file_format = self.file_format.into();
        model.family = self.family.clone();
        model.parameters = self.parameters();
        model.commit = self.commit.clone();
    }
}

/// The path without links; unchanged if it leads nowhere.
fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Whether a folder is one that the library keeps for itself.
fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || name == PARTIAL
}

#[cfg(test)]
mod tests;
