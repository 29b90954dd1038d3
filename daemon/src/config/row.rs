//! A row of the table of settings.

use std::ffi::OsStr;

/// A setting without its type.
pub(super) struct SettingRow {
    /// Its name in the configuration file.
    pub(super) key: &'static str,
    /// The flag, such as `--pinned-memory-limit`.
    pub(super) flag: &'static str,
    /// The environment variable, such as `SLUICE_PINNED_MEMORY_LIMIT`.
    pub(super) variable: &'static str,
    /// Its description: the first line is the flag's help, the others stand in the sample file alone.
    pub(super) docs: &'static str,
    /// What stands for the value in the help.
    pub(super) value_name: &'static str,
    pub(super) form: ValueForm,
    /// The built-in value for people.
    pub(super) default: &'static str,
    /// The value in the sample file: the built-in one where that is the same everywhere.
    pub(super) example: &'static str,
    /// Finds out whether this text is a value.
    pub(super) check: fn(&OsStr) -> Result<(), String>,
}

/// How a value is written in the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueForm {
    /// A string.
    Text,
    /// A string; a relative path begins at the current folder, or at that of the file which has it.
    Path,
    /// An integer or a float.
    Number,
    /// `true` or `false`; the flag alone stands for `true`.
    Boolean,
}
