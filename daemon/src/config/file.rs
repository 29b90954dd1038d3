//! The configuration file: which one, and what may stand in it.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::DeserializeOwned};
use sluice_shared::{
    dial::Dial,
    level::{Embedding, Kv, Level},
};

use super::{
    AutoFactor, Budget, CacheLimit, Compute, ConfigError, Device, Environment, Filter, IdleUnload,
    Listen, PinLimit, ReadLimit, values::from_text,
};

/// What a file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileLayer {
    pub(super) model: Option<PathBuf>,
    pub(super) socket: Option<PathBuf>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) listen: Option<Listen>,
    pub(super) device: Option<Device>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) compute: Option<Compute>,
    pub(super) threads: Option<usize>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) level: Option<Level>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) budget: Option<Budget>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) read_limit: Option<ReadLimit>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) pin_limit: Option<PinLimit>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) embedding: Option<Embedding>,
    pub(super) auto_factor: Option<AutoFactor>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) kv: Option<Kv>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) dial: Option<Dial>,
    pub(super) cache: Option<PathBuf>,
    pub(super) keep_converted: Option<bool>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) cache_limit: Option<CacheLimit>,
    pub(super) models: Option<PathBuf>,
    #[serde(default, deserialize_with = "from_text")]
    pub(super) idle_unload: Option<IdleUnload>,
    pub(super) queue: Option<usize>,
    pub(super) parallel: Option<usize>,
    pub(super) drain_seconds: Option<u64>,
    pub(super) log: Option<Filter>,
}

/// Reads the file that was named, or the first that exists of those that may be there.
pub(super) fn read(
    flag: Option<&Path>,
    environment: &Environment,
) -> Result<Option<(PathBuf, FileLayer)>, ConfigError> {
    if let Some(path) = named(flag, environment) {
        return match bytes(&path)? {
            Some(bytes) => parse(path, bytes).map(Some),
            None => Err(ConfigError::Unreadable {
                path,
                cause: io::ErrorKind::NotFound.into(),
            }),
        };
    }
    for path in usual_places(environment) {
        if let Some(bytes) = bytes(&path)? {
            return parse(path, bytes).map(Some);
        }
    }
    Ok(None)
}

/// The file that somebody named.
pub(super) fn named(flag: Option<&Path>, environment: &Environment) -> Option<PathBuf> {
    let named = flag
        .map(Path::to_owned)
        .or_else(|| environment.variable("SLUICE_CONFIG").map(PathBuf::from));
    named.map(|path| environment.current_folder.join(path))
}

pub(super) fn usual_places(environment: &Environment) -> impl Iterator<Item = PathBuf> {
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
fn bytes(path: &Path) -> Result<Option<Vec<u8>>, ConfigError> {
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

pub(super) fn parse<T: DeserializeOwned>(
    path: PathBuf,
    bytes: Vec<u8>,
) -> Result<(PathBuf, T), ConfigError> {
    let fault = |path, before: &[u8], problem| {
        let (line, column) = place(before);
        ConfigError::File {
            path,
            line,
            column,
            problem,
        }
    };
    let text = match str::from_utf8(&bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = &bytes[..error.valid_up_to()];
            return Err(fault(path, before, "is not UTF-8 here".to_owned()));
        }
    };
    match toml::from_str(text) {
        Ok(layer) => Ok((path, layer)),
        Err(error) => {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            let problem = error.message().replace('\n', ", ");
            Err(fault(path, &bytes[..start], problem))
        }
    }
}

/// Line and column, from 1, of the place after `before`.
fn place(before: &[u8]) -> (usize, usize) {
    let text = String::from_utf8_lossy(before);
    let line_start = text.rfind('\n').map_or(0, |at| at + 1);
    let line = text.matches('\n').count() + 1;
    (line, text[line_start..].chars().count() + 1)
}
