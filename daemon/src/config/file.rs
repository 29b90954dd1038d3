//! The configuration file: which one, and what may stand in it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use sluice_shared::{names, renames};
use toml::{Spanned, Value};

use super::{
    ConfigError, Environment,
    layers::FileLayer,
    row::{SettingRow, ValueForm},
    table::ROWS,
    toml_file::{bytes, fault, named, parse, usual_paths},
};

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
