//! The configuration file: which one, and what may stand in it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use sluice_shared::{names, renames};
use toml::{Spanned, Value};

use super::{
    ConfigError, Environment,
    table::{ROWS, SettingRow, ValueForm},
};

/// What a file says: texts that are values of the settings, by key.
#[derive(Debug)]
pub(super) struct FileLayer {
    pub(super) path: PathBuf,
    pub(super) texts: BTreeMap<&'static str, OsString>,
}

/// Reads the file that was named, or the first that exists of those that may be there.
pub(super) fn read(
    flag: Option<&Path>,
    environment: &Environment,
) -> Result<Option<FileLayer>, ConfigError> {
    if let Some(path) = named(flag, environment) {
        return match bytes(&path)? {
            Some(bytes) => layer(path, &bytes).map(Some),
            None => Err(ConfigError::Unreadable {
                path,
                cause: io::ErrorKind::NotFound.into(),
            }),
        };
    }
    for path in usual_paths(environment) {
        if let Some(bytes) = bytes(&path)? {
            return layer(path, &bytes).map(Some);
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

/// Checks every key and value, so that an error names its line.
fn layer(path: PathBuf, bytes: &[u8]) -> Result<FileLayer, ConfigError> {
    let found: BTreeMap<Spanned<String>, Spanned<Value>> = parse(&path, bytes)?;
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(key, _)| key.span().start);
    let mut texts = BTreeMap::new();
    for (key, value) in found {
        let row = SettingRow::find(key.get_ref())
            .ok_or_else(|| fault(&path, &bytes[..key.span().start], unknown(key.get_ref())))?;
        let text = text(row.form, value.get_ref()).and_then(|text| {
            let text = OsString::from(text);
            (row.check)(&text).map(|()| text)
        });
        let text = text.map_err(|problem| {
            let problem = format!("{}: {problem}", row.key);
            fault(&path, &bytes[..value.span().start], problem)
        })?;
        texts.insert(row.key, text);
    }
    Ok(FileLayer { path, texts })
}

/// The problem with a key that the table doesn't have.
fn unknown(key: &str) -> String {
    if let Some(new) = renames::key(key) {
        return format!("`{key}` is now `{new}`");
    }
    match names::nearest(key, ROWS.iter().map(|row| row.key)) {
        Some(nearest) => format!("unknown key `{key}`; did you mean `{nearest}`?"),
        None => format!("unknown key `{key}`; `sluiced --print-config` shows all keys"),
    }
}

/// A value of the file as one would write it after the flag.
fn text(form: ValueForm, value: &Value) -> Result<String, String> {
    let (text, expected) = match (form, value) {
        (ValueForm::Text | ValueForm::Path, Value::String(text)) => (Some(text.clone()), "string"),
        (ValueForm::Text | ValueForm::Path, _) => (None, "string"),
        (ValueForm::Number, Value::Integer(number)) => (Some(number.to_string()), "number"),
        (ValueForm::Number, Value::Float(number)) => (Some(number.to_string()), "number"),
        (ValueForm::Number, _) => (None, "number"),
        (ValueForm::Boolean, Value::Boolean(value)) => (Some(value.to_string()), "boolean"),
        (ValueForm::Boolean, _) => (None, "boolean"),
    };
    text.ok_or_else(|| format!("must be a {expected}, not of type {}", value.type_str()))
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
fn fault(path: &Path, before: &[u8], problem: String) -> ConfigError {
    let text = String::from_utf8_lossy(before);
    let line_start = text.rfind('\n').map_or(0, |at| at + 1);
    ConfigError::File {
        path: path.to_owned(),
        line: text.matches('\n').count() + 1,
        column: text[line_start..].chars().count() + 1,
        problem,
    }
}
