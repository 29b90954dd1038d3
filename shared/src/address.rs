//! Where the daemon listens and the client connects: one rule for both.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// The socket that the systemd unit makes.
pub const SYSTEM_SOCKET: &str = "/run/sluice/sluice.sock";

/// What the rule depends on, so that it can be tested without a machine.
pub struct Surroundings<'a> {
    /// Reads an environment variable; `None` where it is not set.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Whether a path exists.
    pub exists: &'a dyn Fn(&Path) -> bool,
    /// The folder for temporary files.
    pub temporary: PathBuf,
    /// The user's numeric id.
    pub user_id: u32,
}

/// The socket's path: the flag, else `$SLUICE_SOCKET`, else the system's socket if it
/// exists, else one in `$XDG_RUNTIME_DIR`, else one in a private folder under the
/// temporary directory, named by user id.
#[must_use]
pub fn socket_path(flag: Option<&Path>, around: &Surroundings<'_>) -> PathBuf {
    // An empty variable counts as not set, as shells leave them.
    let variable = |name: &str| (around.variable)(name).filter(|value| !value.is_empty());
    if let Some(path) = flag {
        return path.to_owned();
    }
    if let Some(path) = variable("SLUICE_SOCKET") {
        return path.into();
    }
    // Before the user's own runtime folder: a system-wide daemon serves all users of the machine.
    if (around.exists)(Path::new(SYSTEM_SOCKET)) {
        return SYSTEM_SOCKET.into();
    }
    if let Some(runtime) = variable("XDG_RUNTIME_DIR") {
        return Path::new(&runtime).join("sluice").join("sluice.sock");
    }
    // The user id keeps the folders of several users apart; whoever makes the folder checks its owner.
    around
        .temporary
        .join(format!("sluice-{}", around.user_id))
        .join("sluice.sock")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(flag: Option<&str>, variables: &[(&str, &str)], system: bool) -> String {
        let around = Surroundings {
            variable: &|name| {
                variables
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| OsString::from(value))
            },
            exists: &|_| system,
            temporary: "/tmp".into(),
            user_id: 1000,
        };
        socket_path(flag.map(Path::new), &around)
            .display()
            .to_string()
    }

    #[test]
    fn each_layer_gives_way_to_the_one_above() {
        let all = [("SLUICE_SOCKET", "/s"), ("XDG_RUNTIME_DIR", "/run/user/1")];
        assert_eq!(path(Some("/f"), &all, true), "/f");
        assert_eq!(path(None, &all, true), "/s");
        assert_eq!(path(None, &all[1..], true), SYSTEM_SOCKET);
        assert_eq!(
            path(None, &all[1..], false),
            "/run/user/1/sluice/sluice.sock"
        );
        assert_eq!(path(None, &[], false), "/tmp/sluice-1000/sluice.sock");
    }

    #[test]
    fn an_empty_variable_is_none() {
        let empty = [("SLUICE_SOCKET", ""), ("XDG_RUNTIME_DIR", "")];
        assert_eq!(path(None, &empty, false), "/tmp/sluice-1000/sluice.sock");
    }
}
