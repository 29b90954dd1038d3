//! The model that is loaded at every start where the configuration names none.

use std::path::Path;

use super::{EntryOrigin, Library};
use crate::{
    atomic_file,
    failure::Failure,
    model_name::{EMBEDDED_NAME, ModelName},
    state::SaveError,
};

impl Library {
    /// The recorded model, if it is still there.
    #[must_use]
    pub fn default(&self) -> Option<ModelName> {
        let name = self.state.read(|state| state.default_model.clone())?;
        match Path::new(&name).is_absolute() {
            true => Some(ModelName::at(Path::new(&name))).filter(|_| Path::new(&name).exists()),
            false => self.model(&name).ok(),
        }
    }

    /// Makes sure that a model could be recorded, before much is done for one.
    ///
    /// # Errors
    /// When there is no folder to record it in, or it cannot be made.
    pub fn check_default(&self) -> Result<(), Failure> {
        let path = self.folder()?.to_owned();
        atomic_file::create_folder(&path).map_err(|cause| {
            Failure::SaveState(SaveError::Io {
                path,
                cause: cause.into(),
            })
        })
    }

    /// How a model is recorded: by name where the library has it, else by path.
    #[must_use]
    pub fn default_record(&self, model: &ModelName) -> String {
        let Some(path) = &model.path else {
            return EMBEDDED_NAME.to_owned();
        };
        match self.find(&model.name) {
            // A remembered path may be forgotten, and its name with it.
            Ok(entry) if entry.path == *path && entry.origin != EntryOrigin::Path => {
                model.name.clone()
            }
            _ => path.to_string_lossy().into_owned(),
        }
    }
}
