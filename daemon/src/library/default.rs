//! The model that is loaded at every start where the configuration names none: a line in a file beside the models.

use std::{fs, path::Path};

use super::{EntryOrigin, Library, model_files::small_text};
use crate::{
    atomic_file,
    failure::Failure,
    model_name::{EMBEDDED_NAME, ModelName},
};

/// Name of the file, in the folder of models.
const FILE_NAME: &str = ".default";
/// Longest name or path that is read, in bytes.
const MODEL_NAME_BYTES_MAX: u64 = 4096;

impl Library {
    /// The recorded model, if it is still there.
    #[must_use]
    pub fn default(&self) -> Option<ModelName> {
        let text = small_text(&self.folder.as_ref()?.join(FILE_NAME), MODEL_NAME_BYTES_MAX)?;
        let name = text.trim();
        match Path::new(name).is_absolute() {
            true => Some(ModelName::at(Path::new(name))).filter(|_| Path::new(name).exists()),
            false => self.model(name).ok(),
        }
    }

    /// Makes sure that a model could be recorded, before much is done for one.
    ///
    /// # Errors
    /// When there is no folder to record it in, or it cannot be made.
    pub fn check_default(&self) -> Result<(), Failure> {
        let path = self.folder()?.to_owned();
        fs::create_dir_all(&path).map_err(|cause| Failure::SaveDefault { path, cause })
    }

    /// Forgets which model was recorded.
    ///
    /// # Errors
    /// When the record cannot be deleted.
    pub fn clear_default(&self) -> Result<(), Failure> {
        let path = self.folder()?.join(FILE_NAME);
        atomic_file::remove(&path).map_err(|cause| Failure::SaveDefault { path, cause })
    }

    /// Records a model.
    ///
    /// # Errors
    /// When there is no folder to record it in, or it cannot be written.
    pub fn set_default(&self, model: &ModelName) -> Result<(), Failure> {
        let folder = self.folder()?;
        let text = match &model.path {
            None => EMBEDDED_NAME.to_owned(),
            Some(path) => match self.find(&model.name) {
                // A remembered path may be forgotten, and its name with it.
                Ok(entry) if entry.path == *path && entry.origin != EntryOrigin::Path => {
                    model.name.clone()
                }
                _ => path.to_string_lossy().into_owned(),
            },
        };
        let path = folder.join(FILE_NAME);
        atomic_file::replace(&path, &format!("{text}\n"))
            .map_err(|cause| Failure::SaveDefault { path, cause })
    }
}
