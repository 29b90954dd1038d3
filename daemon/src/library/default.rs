//! The model that is loaded at every start where the configuration names none: a line in a file beside the models.

use std::{fs, path::Path};

use super::{Library, facts::small_text};
use crate::{
    failure::Failure,
    models::{EMBEDDED_NAME, ModelName},
};

/// The file's name.
const FILE: &str = ".default";
/// Longest name or path.
const BYTES_MAX: u64 = 4096;

impl Library {
    /// The recorded model, if it is still there.
    #[must_use]
    pub fn default(&self) -> Option<ModelName> {
        let text = small_text(&self.folder.as_ref()?.join(FILE), BYTES_MAX)?;
        let name = text.trim();
        match Path::new(name).is_absolute() {
            true => Some(ModelName::at(Path::new(name))).filter(|_| Path::new(name).exists()),
            false => self.model(name).ok(),
        }
    }

    /// Makes sure that a model could be recorded, before much is done for one.
    ///
    /// # Errors
    /// When there is no folder to record it in, or it can't be made.
    pub fn check_default(&self) -> Result<(), Failure> {
        let path = self.folder()?.to_owned();
        fs::create_dir_all(&path).map_err(|cause| Failure::Record { path, cause })
    }

    /// Records a model; the embedded one needs no record.
    ///
    /// # Errors
    /// When there is no folder to record it in, or it can't be written.
    pub fn set_default(&self, model: &ModelName) -> Result<(), Failure> {
        let folder = self.folder()?;
        let failed = |cause| Failure::Record {
            path: folder.join(FILE),
            cause,
        };
        let text = match &model.path {
            None => EMBEDDED_NAME.to_owned(),
            Some(path) => match self.find(&model.name) {
                Ok(entry) if entry.path == *path => model.name.clone(),
                _ => path.to_string_lossy().into_owned(),
            },
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let temporary = folder.join(format!("{FILE}.new"));
        fs::write(&temporary, format!("{text}\n")).map_err(failed)?;
        fs::rename(&temporary, folder.join(FILE)).map_err(failed)
    }
}
