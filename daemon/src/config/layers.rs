//! Laying flags over variables over the file over defaults.

use std::{
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use sluice_shared::address::{self, Surroundings};

use super::{
    Address, ConfigError, Environment, Folder, Setting, Source,
    file::FileLayer,
    limits::{Limit, Number},
    wrong,
};

/// What flags are laid over.
pub(super) struct Layers<'a> {
    pub(super) environment: &'a Environment,
    pub(super) file: Option<(PathBuf, FileLayer)>,
}

impl Layers<'_> {
    /// A setting that is written as text.
    pub(super) fn value<T: FromStr<Err: fmt::Display>>(
        &self,
        (flag, given): (&'static str, Option<T>),
        key: &'static str,
        variable: &'static str,
        in_file: impl Fn(&FileLayer) -> Option<T>,
        default: T,
    ) -> Result<Setting<T>, ConfigError> {
        if let Some(value) = given {
            return Ok(set(value, Source::Flag(flag)));
        }
        if let Some(text) = self.environment.variable(variable) {
            let source = Source::Variable(variable);
            let parsed = text.to_string_lossy().parse();
            return match parsed {
                Ok(value) => Ok(set(value, source)),
                Err(error) => Err(wrong(key, &source, error.to_string(), None)),
            };
        }
        if let Some((path, file)) = &self.file
            && let Some(value) = in_file(file)
        {
            return Ok(set(value, Source::File(path.clone())));
        }
        Ok(set(default, Source::Default))
    }

    /// A setting that is a number with bounds; flags were held to them by the command line.
    pub(super) fn number<T: Number>(
        &self,
        flag: (&'static str, Option<T>),
        limit: &'static Limit<T>,
        in_file: impl Fn(&FileLayer) -> Option<T>,
        default: T,
    ) -> Result<Setting<T>, ConfigError> {
        let setting = self.value(flag, limit.key, limit.variable, in_file, default)?;
        limit
            .check(setting.value)
            .map_err(|problem| wrong(limit.key, &setting.source, problem, None))?;
        Ok(setting)
    }

    /// A path: relative ones begin at the current folder, those of a file at its own.
    fn path(
        &self,
        (flag, given): (&'static str, Option<&Path>),
        variable: &'static str,
        in_file: impl Fn(&FileLayer) -> Option<&PathBuf>,
    ) -> Option<Setting<PathBuf>> {
        let here = &self.environment.current_folder;
        if let Some(path) = given {
            return Some(set(here.join(path), Source::Flag(flag)));
        }
        if let Some(path) = self.environment.variable(variable) {
            return Some(set(here.join(path), Source::Variable(variable)));
        }
        let (file_path, file) = self.file.as_ref()?;
        let folder = file_path.parent().unwrap_or(here);
        let path = in_file(file)?;
        Some(set(folder.join(path), Source::File(file_path.clone())))
    }

    pub(super) fn model(
        &self,
        flag: Option<&Path>,
    ) -> Result<Setting<Option<PathBuf>>, ConfigError> {
        let found = self.path(("--model", flag), "SLUICE_MODEL", |file| {
            file.model.as_ref()
        });
        let Some(Setting { value, source }) = found else {
            return Ok(set(None, Source::Default));
        };
        // Names of models travel as text.
        if value.to_str().is_none() {
            let problem = format!("{} is not UTF-8", value.display());
            return Err(wrong("model", &source, problem, None));
        }
        Ok(set(Some(value), source))
    }

    /// Without a word from anybody: systemd's folder, else the user's.
    pub(super) fn cache(&self, flag: Option<&Path>) -> Setting<Option<PathBuf>> {
        let found = self.path(("--cache", flag), "SLUICE_CACHE", |file| {
            file.cache.as_ref()
        });
        if let Some(Setting { value, source }) = found {
            return set(Some(value), source);
        }
        let folder = self.usual_folder("CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache");
        set(folder, Source::Default)
    }

    /// Without a word from anybody: below systemd's folder, else the user's.
    pub(super) fn models(&self, flag: Option<&Path>) -> Setting<Option<PathBuf>> {
        let found = self.path(("--models", flag), "SLUICE_MODELS", |file| {
            file.models.as_ref()
        });
        if let Some(Setting { value, source }) = found {
            return set(Some(value), source);
        }
        let folder = self.usual_folder("STATE_DIRECTORY", "XDG_DATA_HOME", ".local/share");
        set(folder.map(|folder| folder.join("models")), Source::Default)
    }

    /// What systemd gave, else ours below what the user chose, or the place where such things usually are.
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

    pub(super) fn socket(&self, flag: Option<&Path>) -> Result<Setting<Address>, ConfigError> {
        let found = self.path(("--socket", flag), "SLUICE_SOCKET", |file| {
            file.socket.as_ref()
        });
        if let Some(Setting { value, source }) = found {
            // The client takes such a name; here it would become a path below the current folder.
            if value.to_string_lossy().contains("http:/") {
                let problem = "a socket is a path, not an address".to_owned();
                let hint = "open a port beside it with --listen 127.0.0.1:PORT";
                return Err(wrong("socket", &source, problem, Some(hint)));
            }
            let folder = Folder::Given;
            return Ok(set(
                Address {
                    path: value,
                    folder,
                },
                source,
            ));
        }
        let around = Surroundings {
            variable: &|name| self.environment.variables.get(name).cloned(),
            exists: &|path| path.exists(),
            temporary: self.environment.temporary.clone(),
            user_id: self.environment.user_id,
        };
        let path = address::socket_path(None, &around);
        let folder = if path.starts_with(&self.environment.temporary)
            && self.environment.variable("XDG_RUNTIME_DIR").is_none()
        {
            Folder::OursInPublic
        } else if path == Path::new(address::SYSTEM_SOCKET) {
            Folder::Given
        } else {
            Folder::Ours
        };
        Ok(set(Address { path, folder }, Source::Default))
    }
}

pub(super) fn set<T>(value: T, source: Source) -> Setting<T> {
    Setting { value, source }
}
