//! The user's folders, by the XDG Base Directory Specification.

use std::{
    ffi::OsString,
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Sluice's folder for state, by `$XDG_STATE_HOME` and `$HOME`; `None` where neither is set.
#[must_use]
pub fn state(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    folder(variable, "XDG_STATE_HOME", ".local/state")
}

/// Sluice's folder for settings, by `$XDG_CONFIG_HOME` and `$HOME`; `None` where neither is set.
#[must_use]
pub fn settings(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    folder(variable, "XDG_CONFIG_HOME", ".config")
}

/// The home folder, by `$HOME`; `None` where that is not an absolute path.
#[must_use]
pub fn home() -> Option<PathBuf> {
    let path = std::env::var_os("HOME").map(PathBuf::from);
    path.filter(|path| path.is_absolute())
}

/// Makes a folder and its missing parents, which only their owner can enter.
///
/// # Errors
/// When a folder cannot be made.
pub fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn folder(
    variable: impl Fn(&str) -> Option<OsString>,
    name: &str,
    below_home: &str,
) -> Option<PathBuf> {
    // The specification has relative paths ignored.
    let absolute = |name| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let base = absolute(name).or_else(|| Some(absolute("HOME")?.join(below_home)));
    base.map(|base| base.join("sluice"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn folders_are_where_the_surroundings_say() {
        let variable = |xdg: &'static str| {
            move |name: &str| match name {
                "HOME" => Some("/home/a".into()),
                _ => Some(xdg.into()),
            }
        };
        assert_eq!((state(|_| None), settings(|_| None)), (None, None));
        assert_eq!(
            state(variable("/x")).as_deref(),
            Some(Path::new("/x/sluice"))
        );
        let found = state(variable("relative"));
        let expected = Path::new("/home/a/.local/state/sluice");
        assert_eq!(found.as_deref(), Some(expected));
        let found = settings(variable(""));
        assert_eq!(found.as_deref(), Some(Path::new("/home/a/.config/sluice")));
    }
}
