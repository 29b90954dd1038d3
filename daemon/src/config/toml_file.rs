//! Files of settings: where they lie, their bytes, and errors that name a place in them.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

use super::{ConfigError, Environment};

/// The file that somebody named.
pub(super) fn named(flag: Option<&Path>, environment: &Environment) -> Option<PathBuf> {
    let named = flag
        .map(Path::to_owned)
        .or_else(|| environment.variable("SLUICE_CONFIG").map(PathBuf::from));
    named.map(|path| environment.current_folder.join(path))
}

pub(super) fn usual_paths(environment: &Environment) -> impl Iterator<Item = PathBuf> {
    let user = match environment.variable("XDG_CONFIG_HOME") {
        Some(folder) => Some(PathBuf::from(folder)),
        None => environment
            .variable("HOME")
            .map(|home| Path::new(home).join(".config")),
    };
    user.map(|folder| folder.join("sluice").join("sluiced.toml"))
        .into_iter()
        .chain([environment.system_file.clone()])
}

/// The file's bytes; `None` when there is no such file.
pub(super) fn bytes(path: &Path) -> Result<Option<Vec<u8>>, ConfigError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(ConfigError::Unreadable {
            path: path.to_owned(),
            cause,
        }),
    }
}

/// The bytes of a file that is there, and no larger than this.
pub(super) fn bytes_up_to(path: &Path, max: u64) -> Result<Vec<u8>, ConfigError> {
    let unreadable = |cause| ConfigError::Unreadable {
        path: path.to_owned(),
        cause,
    };
    let file = fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let read = file.take(max + 1).read_to_end(&mut bytes);
    if read.map_err(unreadable)? as u64 > max {
        let problem = format!("it has more than {max} bytes");
        return Err(unreadable(io::Error::other(problem)));
    }
    Ok(bytes)
}

pub(super) fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, ConfigError> {
    let text = str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        fault(path, before, "is not valid UTF-8".to_owned())
    })?;
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let problem = error.message().replace('\n', ", ");
        fault(path, &bytes[..start], problem)
    })
}

/// An error at the place after `before`.
pub(super) fn fault(path: &Path, before: &[u8], problem: String) -> ConfigError {
    let text = String::from_utf8_lossy(before);
    let line_start = text.rfind('\n').map_or(0, |at| at + 1);
    ConfigError::File {
        path: path.to_owned(),
        line: text.matches('\n').count() + 1,
        column: text[line_start..].chars().count() + 1,
        problem,
    }
}
