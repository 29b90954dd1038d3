//! What models are called and where they lie; and the one inside the program.

pub(crate) mod embedded;

use std::path::{Path, PathBuf};

use sluice_checkpoint::Source;
use sluice_proto::v1;

pub use self::embedded::EMBEDDED_NAME;

/// Which model is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    /// As people say it.
    pub name: String,
    /// Where it lies; `None`: inside the program.
    pub path: Option<PathBuf>,
    /// Where the path led when a caller's right to it was checked: this is opened, not the path, which may lead elsewhere
    /// by then. `None`: the path itself.
    pub checked: Option<PathBuf>,
}

impl ModelName {
    /// The model inside the program.
    #[must_use]
    pub fn embedded() -> Self {
        Self {
            name: EMBEDDED_NAME.to_owned(),
            path: None,
            checked: None,
        }
    }

    /// The checkpoint at `path`, named by its folder, or by the file that holds all of it.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let name = match extension {
            Some("safetensors") => path.parent().unwrap_or(path).file_name(),
            Some("gguf" | "pth" | "sluice") => path.file_stem(),
            _ => path.file_name(),
        };
        let name = name.unwrap_or(path.as_os_str());
        Self {
            name: name.to_string_lossy().into_owned(),
            path: Some(path.to_owned()),
            checked: None,
        }
    }

    /// Whether both lie at one place, or both are the one inside the program.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.path == other.path
    }

    /// Whether the wire's model is this one.
    #[must_use]
    pub fn is_of(&self, model: &v1::Model) -> bool {
        match &self.path {
            Some(path) => path.as_path() == Path::new(&model.path),
            None => model.is_demonstration,
        }
    }

    /// What a job that reads it says of its input: the path, or the name of the model inside the program.
    #[must_use]
    pub fn input(&self) -> String {
        match &self.path {
            Some(path) => path.display().to_string(),
            None => self.name.clone(),
        }
    }

    /// Where the engine reads it from.
    #[must_use]
    pub fn source(&self) -> Source {
        match self.place() {
            Some(place) => Source::Folder(place.to_owned()),
            None => Source::Embedded(embedded::EMBEDDED_FILES),
        }
    }

    /// The path that it is opened by.
    #[must_use]
    pub fn place(&self) -> Option<&Path> {
        self.checked.as_deref().or(self.path.as_deref())
    }

    pub(crate) fn to_wire(&self, state: v1::ModelState) -> v1::Model {
        let model = v1::Model {
            name: self.name.clone(),
            state: state.into(),
            ..Default::default()
        };
        match &self.path {
            Some(path) => v1::Model {
                path: path.to_string_lossy().into_owned(),
                origin: v1::ModelOrigin::Path.into(),
                ..model
            },
            None => v1::Model {
                is_demonstration: true,
                origin: v1::ModelOrigin::Embedded.into(),
                ..embedded::described(model)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_named_by_its_folder() {
        assert_eq!(ModelName::at(Path::new("/m/llada-8b")).name, "llada-8b");
        let file = Path::new("/m/llada-8b/model.safetensors");
        assert_eq!(ModelName::at(file).name, "llada-8b");
        assert_eq!(ModelName::at(file).path.as_deref(), Some(file));
        let gguf = Path::new("/m/llada-8b.q4_k_m.gguf");
        assert_eq!(ModelName::at(gguf).name, "llada-8b.q4_k_m");
        let pth = Path::new("/m/rwkv7-g1-0.4b.pth");
        assert_eq!(ModelName::at(pth).name, "rwkv7-g1-0.4b");
        let coded = Path::new("/m/llada-8b.sluice");
        assert_eq!(ModelName::at(coded).name, "llada-8b");
        assert_eq!(ModelName::at(Path::new("/")).name, "/");
    }
}
