//! The user's settings: how the dashboard looks, in `client.toml`.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use crate::{
    paint::{Glyphs, Paint, Theme},
    user_folders,
};

/// Most bytes of the file; settings are short.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Keys that the file may have.
const KEYS: [&str; 4] = ["theme", "glyphs", "mouse", "roles"];

/// The settings of the file; those that it does not have are `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientSettings {
    /// Theme of the dashboard.
    pub theme: Option<Theme>,
    /// Glyphs that graphs are drawn with.
    pub glyphs: Option<Glyphs>,
    /// Whether the dashboard takes mouse events.
    pub mouse: Option<bool>,
    /// Styles of roles, such as `warning = "#ff8800 bold"`.
    pub roles: BTreeMap<String, String>,
}

impl ClientSettings {
    /// Reads a file; a missing one has no settings.
    ///
    /// # Errors
    /// The file, the key and what is wrong with it; for an unknown key, those that are known.
    pub fn load(path: &Path) -> Result<Self, String> {
        let problem = |words: String| format!("{}: {words}", path.display());
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(problem(error.to_string())),
            Ok(found) if !found.is_file() => return Err(problem("is no file".to_owned())),
            Ok(found) if found.len() > FILE_BYTES_MAX => {
                return Err(problem(format!("has more than {FILE_BYTES_MAX} bytes")));
            }
            Ok(_) => {}
        }
        let text = fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
        Self::read(&text).map_err(problem)
    }

    fn read(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map(|span| {
                let before = text.get(..span.start).unwrap_or_default();
                format!("line {}: ", before.matches('\n').count() + 1)
            });
            format!("{}{}", line.unwrap_or_default(), error.message())
        })?;
        let mut settings = Self::default();
        for (key, value) in &table {
            let problem = |words: String| format!("{key}: {words}");
            match key.as_str() {
                "theme" => settings.theme = Some(name(value).map_err(problem)?),
                "glyphs" => settings.glyphs = Some(name(value).map_err(problem)?),
                "mouse" => match value {
                    Value::Boolean(ours) => settings.mouse = Some(*ours),
                    other => {
                        return Err(problem(format!(
                            "must be true or false, not {}",
                            other.type_str()
                        )));
                    }
                },
                "roles" => settings.roles = roles(value).map_err(problem)?,
                _ => {
                    return Err(format!(
                        "unknown key '{key}'; known are {}",
                        KEYS.join(", ")
                    ));
                }
            }
        }
        Ok(settings)
    }
}

fn name<T: std::str::FromStr<Err = String>>(value: &Value) -> Result<T, String> {
    match value {
        Value::String(text) => text.parse(),
        other => Err(format!(
            "must be a name in quotes, not {}",
            other.type_str()
        )),
    }
}

fn roles(value: &Value) -> Result<BTreeMap<String, String>, String> {
    let Value::Table(table) = value else {
        return Err("must be a table, such as [roles]".to_owned());
    };
    // Styles are checked here, where an error can name the key.
    let mut paint = Paint::new(Theme::Terminal, Glyphs::Braille, true);
    let mut roles = BTreeMap::new();
    for (role, style) in table {
        let Value::String(style) = style else {
            return Err(format!(
                "{role}: must be a style in quotes, not {}",
                style.type_str()
            ));
        };
        let judged = paint.restyle(role, style);
        judged.map_err(|problem| format!("{role}: {problem}"))?;
        roles.insert(role.clone(), style.clone());
    }
    Ok(roles)
}

/// Path of the file, by `$XDG_CONFIG_HOME` and `$HOME`; `None` where neither is set.
#[must_use]
pub fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    user_folders::settings(variable).map(|folder| folder.join("client.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_one_that_is_absent_says_nothing() {
        let text =
            "theme = \"dark\"\nglyphs = \"ascii\"\nmouse = false\n[roles]\nbad = \"red bold\"\n";
        let settings = ClientSettings::read(text).unwrap();
        assert_eq!(
            (settings.theme, settings.glyphs, settings.mouse),
            (Some(Theme::Dark), Some(Glyphs::Ascii), Some(false))
        );
        assert_eq!(settings.roles["bad"], "red bold");
        let folder = tempfile::tempdir().unwrap();
        let absent = ClientSettings::load(&folder.path().join("client.toml"));
        assert_eq!(absent, Ok(ClientSettings::default()));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_known() {
        for (text, words) in [
            (
                "them = \"dark\"",
                "unknown key 'them'; known are theme, glyphs, mouse, roles",
            ),
            (
                "theme = \"pink\"",
                "theme: unknown theme 'pink'; known are terminal",
            ),
            ("theme = 3", "theme: must be a name in quotes, not integer"),
            ("mouse = \"no\"", "mouse: must be true or false"),
            ("roles = 1", "roles: must be a table"),
            (
                "[roles]\nwarn = \"red\"",
                "roles: warn: unknown role 'warn'; known are title",
            ),
            (
                "[roles]\nbad = \"loud\"",
                "roles: bad: 'loud' is neither a colour",
            ),
            ("\ntheme", "line 2: "),
        ] {
            let problem = ClientSettings::read(text).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
        let folder = tempfile::tempdir().unwrap();
        let problem = ClientSettings::load(folder.path()).unwrap_err();
        assert!(problem.ends_with("is no file"), "{problem}");
    }
}
