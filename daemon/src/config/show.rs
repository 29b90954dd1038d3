//! The configuration in force as a commented TOML file.

use std::fmt;

use super::{
    Config,
    row::{SettingRow, ValueForm},
};

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(f, "# sluiced {version}: the configuration in force.")?;
        writeln!(f, "# The comment above each key names its source.")?;
        for (row, text, source) in self.shown() {
            match text {
                Some(text) => writeln!(f, "\n# {source}\n{}", row.line(&text))?,
                None => writeln!(
                    f,
                    "\n# not set; default: {}\n# {}",
                    row.default,
                    row.line(row.example)
                )?,
            }
        }
        match self.model_settings.path() {
            Some(path) => writeln!(f, "\n# Settings of single models: {}", path.display()),
            None => Ok(()),
        }
    }
}

impl SettingRow {
    /// The flag's help, without default and variable.
    pub(super) fn summary(&self) -> String {
        self.paragraphs().next().unwrap_or_default()
    }

    /// The description as whole paragraphs.
    pub(super) fn paragraphs(&self) -> impl Iterator<Item = String> {
        let paragraphs = self.docs.split("\n\n");
        paragraphs.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Its line in a configuration file.
    pub(super) fn line(&self, text: &str) -> String {
        let value = match self.form {
            ValueForm::Text | ValueForm::Path => quoted(text),
            ValueForm::Number | ValueForm::Boolean => text.to_owned(),
        };
        format!("{} = {value}", self.key)
    }
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                quoted.push_str(&format!("\\u{:04X}", u32::from(control)));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}
