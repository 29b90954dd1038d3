//! Laying flags over variables over the file over defaults.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use sluice_shared::address::{self, Surroundings};

use super::{
    ConfigError, Environment, IdleUnload, MemoryFile, OptionalPath, Setting, SettingSource,
    SocketFolder, SocketPath,
    row::{SettingRow, ValueForm},
    values::Value,
    wrong,
};

/// All that is said of the settings.
pub(super) struct Layers<'a> {
    /// All settings that a layer may name.
    pub(super) rows: &'a [SettingRow],
    /// What the command line says.
    pub(super) flags: &'a SettingTexts,
    pub(super) environment: &'a Environment,
    pub(super) file: Option<FileLayer>,
    /// The daemon was started on the way to an answer.
    pub(super) in_background: bool,
}

impl Layers<'_> {
    /// The setting by the first layer that names a value.
    pub(super) fn setting<T: Value>(
        &self,
        key: &'static str,
        built_in: &BuiltIn<T>,
    ) -> Result<Setting<T>, ConfigError> {
        let Some((text, source)) = self.named_text(key) else {
            let read = |text: &str| T::read(text.as_ref()).expect("a test reads every row");
            return Ok(match built_in {
                BuiltIn::Is(text) => Setting::built_in(read(text)),
                BuiltIn::Computed { compute: by, .. } => Setting::built_in(by(self)),
                BuiltIn::BySize { usual, small, .. } => match self.is_small_memory()? {
                    true => Setting {
                        value: read(small),
                        source: SettingSource::SmallMemory,
                    },
                    false => Setting::built_in(read(usual)),
                },
            });
        };
        match T::read(&text) {
            Ok(value) => Ok(Setting { value, source }),
            Err(problem) => Err(wrong(key, &source, problem, None)),
        }
    }

    /// Whether defaults are those for small memory.
    fn is_small_memory(&self) -> Result<bool, ConfigError> {
        let small = self.setting::<bool>("small_memory", &BuiltIn::Is("false"))?;
        Ok(small.value)
    }

    /// The text that counts, and its layer.
    fn named_text(&self, key: &str) -> Option<(OsString, SettingSource)> {
        let mut rows = self.rows.iter();
        let row = rows.find(|row| row.key == key);
        let row = row.expect("keys are those of the table");
        let here = &self.environment.current_folder;
        let (text, folder, source) = if let Some(text) = self.flags.get(row.key) {
            (&**text, &**here, SettingSource::Flag(row.flag))
        } else if let Some(text) = self.environment.variable(row.variable) {
            (&**text, &**here, SettingSource::Variable(row.variable))
        } else {
            let FileLayer { path, texts } = self.file.as_ref()?;
            let folder = path.parent().unwrap_or(here);
            let source = SettingSource::File(path.clone());
            (texts.get(row.key)?.as_os_str(), folder, source)
        };
        let text = match row.form {
            ValueForm::Path => folder.join(text).into_os_string(),
            ValueForm::Text | ValueForm::Number | ValueForm::Boolean => text.to_owned(),
        };
        Some((text, source))
    }

    /// The folder that systemd gave, else ours below the one that the user chose, or below the usual one.
    fn usual_folder(&self, systemd: &str, chosen: &str, usual: &str) -> Option<PathBuf> {
        let variable = |name| self.environment.variable(name);
        if let Some(folders) = variable(systemd) {
            // Of several, parted by colons, the first.
            let first = folders.as_bytes().split(|byte| *byte == b':').next();
            first.map(|first| PathBuf::from(OsStr::from_bytes(first)))
        } else if let Some(folder) = variable(chosen) {
            Some(Path::new(folder).join("sluice"))
        } else {
            variable("HOME").map(|home| Path::new(home).join(usual).join("sluice"))
        }
    }
}

/// Texts that are values of the settings, by key.
pub(super) type SettingTexts = BTreeMap<&'static str, OsString>;

/// What a file says.
#[derive(Debug)]
pub(super) struct FileLayer {
    pub(super) path: PathBuf,
    pub(super) texts: SettingTexts,
}

/// The value of a setting that no layer names.
pub(super) enum BuiltIn<T> {
    /// The same everywhere, as people write it.
    Is(&'static str),
    /// Depends on whether the defaults are those for small memory, as people write both.
    BySize {
        usual: &'static str,
        small: &'static str,
        /// In the help.
        words: &'static str,
    },
    /// Depends on the machine or the environment.
    Computed {
        compute: fn(&Layers<'_>) -> T,
        /// In the help.
        words: &'static str,
        /// In the sample file.
        example: &'static str,
    },
}

/// A file that systemd handed over, where it did.
pub(super) fn credential(layers: &Layers<'_>, name: &str) -> OptionalPath {
    let folder = layers.environment.variable("CREDENTIALS_DIRECTORY");
    let path = folder.map(|folder| Path::new(folder).join(name));
    OptionalPath(path.filter(|path| path.exists()))
}

pub(super) fn default_weight_cache(layers: &Layers<'_>) -> OptionalPath {
    OptionalPath(layers.usual_folder("CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache"))
}

/// Whether there is a folder for converted weights, whoever named it.
pub(super) fn has_weight_cache(layers: &Layers<'_>) -> bool {
    layers.named_text("weight_cache").is_some() || default_weight_cache(layers).0.is_some()
}

pub(super) fn default_models_folder(layers: &Layers<'_>) -> OptionalPath {
    let folder = layers.usual_folder("STATE_DIRECTORY", "XDG_DATA_HOME", ".local/share");
    OptionalPath(folder.map(|folder| folder.join("models")))
}

pub(super) fn default_memory(layers: &Layers<'_>) -> MemoryFile {
    let folder = layers.usual_folder("STATE_DIRECTORY", "XDG_DATA_HOME", ".local/share");
    MemoryFile(folder.map(|folder| folder.join("memory.sqlite")))
}

pub(super) fn default_idle_unload(layers: &Layers<'_>) -> IdleUnload {
    match layers.in_background {
        true => IdleUnload::IN_BACKGROUND,
        false => IdleUnload::default(),
    }
}

pub(super) fn default_socket(layers: &Layers<'_>) -> SocketPath {
    let environment = layers.environment;
    let around = Surroundings {
        variable: &|name| environment.variables.get(name).cloned(),
        exists: &|path| path.exists(),
        temporary: environment.temporary.clone(),
        user_id: environment.user_id,
    };
    let path = address::socket_path(None, &around);
    let folder = if path.starts_with(&environment.temporary)
        && environment.variable("XDG_RUNTIME_DIR").is_none()
    {
        SocketFolder::OursInPublic
    } else if path == Path::new(address::SYSTEM_SOCKET) {
        SocketFolder::Given
    } else {
        SocketFolder::Ours
    };
    SocketPath { path, folder }
}
